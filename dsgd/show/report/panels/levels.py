"""Axes on which a factor's levels stand, and values that may be “never” above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from dsgd.show.report.layout import Factor
from dsgd.show.report.panels import labels
from dsgd.show.report.panels.drawing import readable_ticks
from dsgd.show.report.style import INK
from dsgd.show.report.written_numbers import NEVER, number

_SPREAD = 4.0  # from this ratio on, an axis is logarithmic
_WIDTH = 2.6  # inches of axes that have names at their right, from the first tick to the last
_GAP = 0.08  # inches between two names


@dataclass(frozen=True)
class Levels:
    """Where the levels of a factor, which are numbers, stand on a horizontal axis.

    They stand in proportion, on a logarithmic axis if they span much, and at equal distances if one of them
    is 0 or infinite while others span much.
    """

    factor: Factor

    @property
    def _values(self) -> list[float]:
        return [self.factor.numbers[level] for level in self.factor.levels]

    @property
    def _wide(self) -> bool:
        finite = [x for x in self._values if math.isfinite(x) and x > 0]
        return bool(finite) and max(finite) / min(finite) > _SPREAD

    @property
    def scale(self) -> str:
        """The axis: log, linear, or equal for levels at equal distances."""
        if not all(map(math.isfinite, self._values)):
            return "equal"
        if self._wide:
            return "log" if min(self._values) > 0 else "equal"
        return "linear"

    def at(self, level: str) -> float:
        if self.scale == "equal":
            return float(list(self.factor.levels).index(level))
        return self.factor.numbers[level]

    def set_up(self, axes: Axes, label: str = "") -> None:
        """Scale the axis, with a tick at each level."""
        if self.scale == "log":
            axes.set_xscale("log")
        places = [self.at(level) for level in self.factor.levels]
        axes.set_xticks(places, self._names(places))
        axes.minorticks_off()
        low, high = min(places), max(places)
        if self.scale == "log":
            margin = (high / low) ** 0.06
            axes.set_xlim(low / margin, high * margin)
        else:
            margin = 0.06 * (high - low) if self.scale == "linear" else 0.4
            axes.set_xlim(low - margin, high + margin)
        axes.set_xlabel(label or self.factor.option.replace("_", " "))

    def _names(self, places: Sequence[float]) -> list[str]:
        """Return the names below the ticks; where two would overlap, the second is left out."""
        names = [self.factor.short(level) for level in self.factor.levels]
        log = self.scale == "log"
        inches = [_WIDTH * (math.log(x) if log else x) for x in places]
        span = (max(inches) - min(inches)) / _WIDTH or 1.0
        end, shown = -math.inf, []
        for name, x in zip(names, inches, strict=True):
            half = labels.extent(name)[0] / 2
            fits = x / span - half > end
            end = x / span + half + _GAP if fits else end
            shown.append(name if fits else "")
        return shown


@dataclass(frozen=True)
class Values:
    """A vertical axis for values that may be infinite: these have a lane above the axis, named “never”."""

    low: float
    high: float
    log: bool
    lane: bool

    @property
    def lane_at(self) -> float:
        """Where the lane is."""
        return self._at(1.1)

    def _at(self, share: float) -> float:
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)

    def place(self, x: float) -> float:
        return self.lane_at if math.isinf(x) else x

    def set_up(self, axes: Axes, label: str, never: str = NEVER) -> None:
        """Scale the axis, with its ticks and, where there is one, the lane."""
        axes.set_yscale("log" if self.log else "linear")
        axes.set_ylim(self.low, self.high)
        readable_ticks(axes, "y", log=self.log)
        axes.set_ylabel(label)
        axes.grid(visible=True, axis="y")
        if self.lane:
            ticks = [tick for tick in axes.get_yticks() if self.low <= tick <= self.high]
            names = [number(tick, 4) for tick in ticks]
            axes.set_yticks([*ticks, self.lane_at], [*names, never])
            axes.set_ylim(self.low, self._at(1.18))
            axes.axhline(self._at(1.03), color=INK, linewidth=0.5, alpha=0.5)
            axes.minorticks_off()


def values(found: Sequence[float], *, from_zero: bool = True, log: bool | None = None) -> Values:
    """Return an axis for these values: logarithmic if they span much and none is 0 or less.

    log: to decide that. from_zero: whether an axis that is not logarithmic begins at 0.
    """
    finite = [x for x in found if math.isfinite(x)]
    lane = len(finite) < len(found)
    low, high = min(finite, default=1.0), max(finite, default=1.0)
    if log is None:
        log = low > 0 and high / low > 2 * _SPREAD
    if log:
        margin = max(1.15, (high / low) ** 0.08)
        return Values(low / margin, high * margin, True, lane)
    margin = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    start = min(0.0, low) if from_zero else low - margin
    return Values(start, high + margin, False, lane)
