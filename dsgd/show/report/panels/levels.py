"""Lines against a factor's levels: where the levels stand, and values that may be “never”."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dsgd.show.report.layout import Factor
from dsgd.show.report.panels import labels
from dsgd.show.report.panels.drawing import Canvas, Panel, readable_ticks
from dsgd.show.report.statistics import Interval, median_interval
from dsgd.show.report.style import INK, Style
from dsgd.show.report.written_numbers import NEVER, number

_SPREAD = 4.0  # from this ratio on, an axis is logarithmic
_WIDTH = 2.6  # inches of axes that have names at their right, from the first tick to the last
_GAP = 0.06  # inches between two names


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

    def set_up(self, axes: Axes) -> None:
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
        axes.set_xlabel(self.factor.option.replace("_", " "))

    def _names(self, places: Sequence[float]) -> list[str]:
        """Return the names below the ticks; where two would overlap, the first is left out."""
        names = [self.factor.short(level) for level in self.factor.levels]
        log = self.scale == "log"
        inches = [_WIDTH * (math.log(x) if log else x) for x in places]
        span = (max(inches) - min(inches)) / _WIDTH or 1.0
        end, shown = math.inf, []
        for name, x in zip(reversed(names), reversed(inches), strict=True):
            half = labels.extent(name)[0] / 2
            fits = x / span + half < end
            end = x / span - half - _GAP if fits else end
            shown.append(name if fits else "")
        return shown[::-1]


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
        return self.at(1.1)

    @property
    def end(self) -> float:
        """Where the axis ends, behind the lane if there is one."""
        return self.at(1.18) if self.lane else self.high

    def at(self, share: float) -> float:
        """Return the value at this share of the axis; more than 1 is above it."""
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
            axes.set_ylim(self.low, self.end)
            axes.axhline(self.at(1.03), color=INK, linewidth=0.5, alpha=0.5)
            axes.minorticks_off()


def value_axis(
    found: Sequence[float], *, from_zero: bool = True, log: bool | None = None, most: float = 2 * _SPREAD
) -> Values:
    """Return an axis for these values: logarithmic if they span much and none is 0 or less.

    most: times the smallest value, that the largest is on another axis. log: to decide that. from_zero:
    whether an axis that is not logarithmic begins at 0.
    """
    finite = [x for x in found if math.isfinite(x)]
    lane = len(finite) < len(found)
    low, high = min(finite, default=1.0), max(finite, default=1.0)
    if log is None:
        log = low > 0 and high / low > most
    if log:
        margin = max(1.15, (high / low) ** 0.08)
        return Values(low / margin, high * margin, True, lane)
    margin = 0.08 * (high - low) or 0.08 * abs(high) or 1.0
    start = min(0.0, low) if from_zero else low - margin
    return Values(start, high + margin, False, lane)


@dataclass(frozen=True, kw_only=True)
class Point:
    """What is drawn at a level."""

    centre: float
    """Infinite for never."""
    seeds: Sequence[float] = ()
    interval: Interval | None = None

    @classmethod
    def of(cls, seeds: Sequence[float]) -> Point:
        """Return the median of some values with its interval, and the values."""
        interval = median_interval(seeds)
        return cls(centre=interval.centre, seeds=seeds, interval=interval)


@dataclass(frozen=True, kw_only=True)
class LevelLine:
    """A line of the figure."""

    name: str
    look: Style
    points: Mapping[str, Point]
    """By level."""
    ringed: str = ""
    """The level whose point has a ring."""
    theory: Mapping[str, float] = field(default_factory=dict)
    """By level: drawn as dashes."""


def draw(
    name: str,
    title: str,
    label: str,
    across: Factor,
    lines: Sequence[LevelLine],
    *,
    tried: Sequence[float] = (),
    dotted: Mapping[str, float] | None = None,
    never: str = NEVER,
    from_zero: bool = True,
    log: bool | None = None,
) -> Panel:
    """Draw lines against the levels of a factor, which are numbers.

    tried: the only values that there can be, if any. dotted: by level, a line to compare with. never: the
    name of the lane of infinite values. from_zero, log: of the vertical axis, as `value_axis` takes them.
    """
    canvas = Canvas(title=title, axes_height=2.6)
    axes, places = canvas.axes(), Levels(across)
    every = [x for line in lines for p in line.points.values() for x in (*p.seeds, p.centre)]
    vertical = value_axis([*every, *tried], from_zero=from_zero, log=log)
    places.set_up(axes)
    vertical.set_up(axes, label, never)
    if tried:
        axes.set_yticks(tried, [number(x, 4) for x in tried])
        axes.minorticks_off()
    named = labels.fit([line.name for line in lines], canvas.axes_height)
    for nth, line in enumerate(lines):
        # Lines on an axis of equal distances are moved apart.
        shift = 0.08 * (nth - (len(lines) - 1) / 2) if places.scale == "equal" else 0.0
        x = [places.at(level) + shift for level in line.points]
        y = [vertical.place(point.centre) for point in line.points.values()]
        finite = [p.centre if math.isfinite(p.centre) else math.nan for p in line.points.values()]
        axes.plot(x, finite, **line.look.line, zorder=4)
        marks = [m for at, point in zip(x, line.points.values(), strict=True)
                 for m in _mark(axes, vertical, line.look, at, point)]  # fmt: skip
        if line.ringed:
            ring: dict[str, Any] = {"markersize": 10, "markerfacecolor": "none", "markeredgewidth": 1.4}
            at = list(line.points).index(line.ringed)
            axes.plot(x[at], y[at], "o", color=line.look.colour, **ring, zorder=4)
        dashes = [places.at(level) for level in line.theory], list(line.theory.values())
        axes.plot(*dashes, color=INK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=4.5)
        if named and line.name and x:
            canvas.name(axes, line.name, x, y, line.look, marks)
        elif line.name and x:
            canvas.legend.append((line.name, Line2D([], [], **line.look.line)))
    if dotted:
        straight = [places.at(level) for level in dotted], list(dotted.values())
        axes.plot(*straight, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    return canvas.done(name)


def _mark(axes: Axes, vertical: Values, look: Style, at: float, point: Point) -> list[tuple[float, float]]:
    """Draw a point's seeds and interval, and an empty mark for never; return where the seeds are."""
    on: dict[str, Any] = {"color": look.colour}
    if math.isinf(point.centre):
        axes.plot(at, vertical.lane_at, marker=look.marker, markerfacecolor="none", zorder=4, **on)
    if point.interval and point.interval.level:
        low, high = (vertical.place(point.interval[end]) for end in (1, 2))
        axes.vlines(at, low, high, linewidth=4, alpha=0.3, zorder=2, **on)
    dots = [(at, vertical.place(seed)) for seed in point.seeds]
    axes.plot([at] * len(dots), [y for _, y in dots], ".", markersize=3, alpha=0.75, zorder=3, **on)
    return dots
