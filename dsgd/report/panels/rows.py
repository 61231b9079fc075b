"""One row per variant: seeds as dots, their median and its interval, and theory where it is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dsgd.records.schema import RecordedEvaluation
from dsgd.report.panels import Canvas, Panel, Scene, Section, left_margin, readable_ticks, shortened
from dsgd.report.statistics import median_interval
from dsgd.report.style import INK
from dsgd.report.words import NEVER
from dsgd.theory import distributions

_ROW = 0.27  # inches
_MOST_RINGS = 64  # workers of a row that are shown one by one
_THEORY: dict[str, Any] = {
    "color": INK, "marker": "|", "markersize": 14, "markeredgewidth": 1.4, "linestyle": ""
}  # fmt: skip


def time_to_target(scene: Scene) -> Section:
    """Draw time, gradients and bytes until the target loss."""
    target = scene.frames.target_loss
    assert target is not None

    def until(place: Callable[[RecordedEvaluation], float]) -> dict[str, list[float]]:
        found = {variant: [r.reached(target) for r in scene.of(variant)] for variant in scene.variants}
        return {variant: [place(e) if e else math.inf for e in seeds] for variant, seeds in found.items()}

    panels = [
        draw(scene, "time-to-target", f"Time to loss {target:g}", scene.seconds, until(lambda e: e.t_s)),
        draw(
            scene,
            "gradients-to-target",
            f"Gradients to loss {target:g}",
            "gradients (mini-batches)",
            until(lambda e: e.gradients),
        ),
        draw(
            scene,
            "bytes-to-target",
            f"Bytes to loss {target:g}",
            "MB both ways",
            until(lambda e: e.bytes / 1e6),
        ),
    ]
    return Section(
        name="time_to_target",
        heading=f"Which reaches loss {target:g} first?",
        caption="Small dots are seeds, large marks medians, bars the intervals around them. A run counts "
        "from its first evaluation at or below the target. Runs that never reach it are "
        "drawn at “never” and ranked last, so a median is “never” when half of the runs or more "
        "did not get there.",
        panels=panels,
    )


def throughput(scene: Scene) -> Section:
    """Draw gradients per second, and the share of time that workers idled."""
    summaries = {variant: [record.summary for record in scene.of(variant)] for variant in scene.variants}
    rates = {v: [x for s in own if (x := s.gradients_per_s)] for v, own in summaries.items()}
    theory = {v: _mean([distributions.gradients_per_s(s) for s in own]) for v, own in summaries.items()}
    idle = {v: [100 * s.idle_share for s in own] for v, own in summaries.items()}
    workers = {v: [100 * x for x in scene.representative(v).summary.idle_shares] for v in scene.variants}
    panels = [
        draw(
            scene,
            "throughput",
            "Throughput",
            f"gradients (mini-batches) per {scene.seconds}",
            {variant: values for variant, values in rates.items() if values},
            theory=theory,
            from_zero=True,
        ),
        draw(
            scene,
            "idle",
            "Idle share of the workers' time",
            "per cent",
            idle,
            workers=workers,
            from_zero=True,
        ),
    ]
    return Section(
        name="throughput",
        heading="How much work is done, and which workers wait?",
        caption="Throughput counts the mini-batches that were applied. Idle is the share of the time in "
        "which a worker did not compute, averaged over workers; rings are the workers of one run, so a "
        "straggler stands out.",
        panels=panels,
    )


@dataclass(frozen=True, kw_only=True)
class _Range:
    """A horizontal axis from `low` to `high`, and behind it, where asked for, the place of “never”."""

    low: float
    high: float
    log: bool
    never: bool

    def at(self, share: float) -> float:
        """Return the value at this share of the axis, 0 to 1; more is beyond its end."""
        if self.log:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)

    def place(self, x: float) -> float:
        return self.at(1.15) if math.isinf(x) else x


def _range(values: Sequence[float], *, from_zero: bool) -> _Range:
    finite = [x for x in values if math.isfinite(x)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    never = len(finite) < len(values)
    if low > 0 and high / low > (60 if from_zero else 8):
        return _Range(low=low / 1.25, high=1.25 * high, log=True, never=never)
    margin = 0.08 * (high - low) or 0.08 * high or 1.0
    start = 0.0 if from_zero or 0 <= low < margin else low - margin
    return _Range(low=start, high=high + margin, log=False, never=never)


def draw(
    scene: Scene,
    name: str,
    title: str,
    unit: str,
    values: Mapping[str, Sequence[float]],
    *,
    theory: Mapping[str, float | None] | None = None,
    workers: Mapping[str, Sequence[float]] | None = None,
    from_zero: bool = False,
) -> Panel:
    """Draw a row for each variant. values: one a seed, infinite for never. workers: of one run, as rings."""
    variants = list(values)
    said = {variant: x for variant, x in (theory or {}).items() if x is not None}
    rings = {variant: xs for variant, xs in (workers or {}).items() if len(xs) <= _MOST_RINGS}
    span = _range([*chain(*values.values(), *rings.values()), *said.values()], from_zero=from_zero)
    canvas = Canvas(title=title, axes_height=0.25 + _ROW * max(2, len(variants)), left=left_margin(variants))
    axes = canvas.axes()
    for row, variant in enumerate(variants):
        colour, _, marker = scene.looks[variant]
        look: dict[str, Any] = {"color": colour, "clip_on": False}
        ring: dict[str, Any] = {
            "markersize": 6,
            "markerfacecolor": "none",
            "markeredgewidth": 0.8,
            "alpha": 0.75,
        }
        own = rings.get(variant, [])
        axes.plot(own, [row] * len(own), "o", **look, **ring)
        interval = median_interval(values[variant])
        if interval.level:
            ends = [span.place(interval.low), span.place(interval.high)]
            axes.plot(ends, [row, row], color=colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
            seeds = [span.place(x) for x in values[variant]]
            axes.plot(seeds, [row] * len(seeds), ".", markersize=4, **look)
        axes.plot(span.place(interval.centre), row, marker, markersize=8, **look)
        if variant in said:
            axes.plot(said[variant], row, **_THEORY, clip_on=False)
    if said:
        canvas.legend.append(("theory", Line2D([], [], **_THEORY)))
    axes.set_yticks(range(len(variants)), [shortened(variant) for variant in variants])
    axes.set_ylim(len(variants) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, pad=9)  # markers at 0 reach beyond the axis
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(unit)
    axes.grid(visible=True, axis="x")
    axes.set_xscale("log" if span.log else "linear")
    axes.set_xlim(span.low, span.at(1.22) if span.never else span.high)
    readable_ticks(axes, "x", log=span.log)
    if span.never:
        _set_apart(axes, span)
    return canvas.done(name)


def _set_apart(axes: Axes, span: _Range) -> None:
    """Set “never” apart at the end of the horizontal axis."""
    axes.axvline(span.at(1.07), color=INK, linewidth=0.8, linestyle=(0, (3, 2)), alpha=0.5)
    ticks = [float(x) for x in axes.get_xticks() if span.low <= x <= span.at(1.02)]
    write = axes.xaxis.get_major_formatter()
    axes.set_xticks([*ticks, span.at(1.15)], [*(write(x, 0) for x in ticks), NEVER])
    axes.minorticks_off()


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, None if any value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
