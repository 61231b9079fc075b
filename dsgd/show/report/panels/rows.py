"""One row per variant: seeds as dots, their median and its interval, and theory where it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from dsgd.running.predict.predictions import predicted_gradients_per_s
from dsgd.show.report.measures import OF_TARGET, measure
from dsgd.show.report.panels import labels
from dsgd.show.report.panels.drawing import (
    WIDTH,
    Canvas,
    Panel,
    Scene,
    Section,
    left_margin,
    readable_ticks,
    rule,
)
from dsgd.show.report.panels.levels import Values, value_axis
from dsgd.show.report.questions import Question
from dsgd.show.report.statistics import Interval, median_interval
from dsgd.show.report.style import INK, Style
from dsgd.show.report.written_numbers import NEVER, number, percent

_ROW = 0.27  # inches
_WIDEST = 22  # letters of a line of a name
_MOST_RINGS = 64  # workers of a row that are shown one by one
_THEORY: dict[str, Any] = {
    "color": INK, "marker": "|", "markersize": 14, "markeredgewidth": 1.4, "linestyle": ""
}  # fmt: skip


def time_to_target(scene: Scene) -> Section:
    """Draw time, gradients and bytes until the target loss."""
    target = scene.frames.target_loss
    assert target is not None

    panels = []
    for name, what in zip(OF_TARGET, ("Time", "Gradients", "Bytes"), strict=True):
        by = measure(name, target, scene.seconds)
        values = {
            v: {r.summary.seed: x for r in scene.of(v) if (x := by.of(r)) is not None} for v in scene.variants
        }
        asked = Question(measure=by, values=values, layout=scene.frames.layout)
        unit = {"Time": scene.seconds, "Gradients": "gradients (mini-batches)", "Bytes": "MB sent"}[what]
        seeds = {variant: list(own.values()) for variant, own in values.items()}
        name, title = f"{what.lower()}-to-target", f"{what} to loss {target:g}"
        panels.append(draw(scene, name, title, unit, seeds, asked=asked))
    best = "the best of its group" if len(scene.frames.scenarios) > 1 else "the best"
    return Section(
        name="time_to_target",
        heading=f"Which reaches loss {target:g} first?",
        caption="Small dots are seeds, large marks medians, bars the intervals around them; at the right the "
        f"median, and how many times {best} "
        "it is. A run counts from its first evaluation at or below the target. Runs that never reach it are "
        "drawn at “never” and ranked last, so a median is “never” when half of the runs or more "
        "did not get there.",
        panels=panels,
        columns=len(panels),
    )


def throughput(scene: Scene) -> Section:
    """Draw gradients per second, and the share of time that workers idled."""
    if len(scene.variants) == 1:
        return _throughput_of_one(scene)
    summaries = {variant: [record.summary for record in scene.of(variant)] for variant in scene.variants}
    rates = {v: [x for s in own if (x := s.gradients_per_s)] for v, own in summaries.items()}
    theory = {v: _mean([predicted_gradients_per_s(s) for s in own]) for v, own in summaries.items()}
    idle = {v: [100 * s.idle_share for s in own] for v, own in summaries.items()}
    workers = {v: [100 * x for x in scene.representative(v).summary.idle_shares] for v in scene.variants}
    strokes = " Upright strokes are theory." if any(x is not None for x in theory.values()) else ""
    panels = [
        draw(
            scene,
            "throughput",
            "Throughput",
            f"gradients (mini-batches) per {scene.seconds}",
            {variant: values for variant, values in rates.items() if values},
            theory=theory,
            most_linear=60,
        ),
        draw(
            scene,
            "idle",
            "Idle share of the workers' time",
            "per cent",
            idle,
            workers=workers,
            most_linear=math.inf,
        ),
    ]
    return Section(
        name="throughput",
        heading="How much work is done, and which workers wait?",
        caption="Throughput counts the mini-batches that were applied. Idle is the share of the time in "
        "which a worker did not compute, averaged over workers; rings are the workers of one run, so a "
        f"straggler stands out.{strokes}",
        panels=panels,
    )


def _throughput_of_one(scene: Scene) -> Section:
    """Say in words what would be a figure with one mark."""
    (variant,) = scene.variants
    summaries = [record.summary for record in scene.of(variant)]
    rate = median_interval([s.gradients_per_s or 0.0 for s in summaries]).centre
    said = _mean([predicted_gradients_per_s(s) for s in summaries])
    one = scene.representative(variant).summary
    idle = one.idle_shares
    theory = "" if said is None else f" (theory: {number(said)})"
    parts = [
        f"{number(rate)} gradients (mini-batches) per {scene.seconds} were applied{theory}.",
        f"Workers did not compute for {percent(one.idle_share)} of the time",
    ]
    if idle and max(idle) - min(idle) > 0.005:  # without any: too many workers to list them
        least, most = (choose(range(len(idle)), key=idle.__getitem__) for choose in (min, max))
        parts[1] += f": worker {least} for {percent(idle[least])}, worker {most} for {percent(idle[most])}"
    return Section(
        name="throughput",
        heading="How much work is done, and which workers wait?",
        caption=" ".join(parts) + ".",
        panels=[],
    )


def draw(
    scene: Scene,
    name: str,
    title: str,
    unit: str,
    values: Mapping[str, Sequence[float]],
    *,
    theory: Mapping[str, float | None] | None = None,
    workers: Mapping[str, Sequence[float]] | None = None,
    medians: Mapping[str, Interval] | None = None,
    asked: Question | None = None,
    rule_at: float | None = None,
    most_linear: float = 12,
) -> Panel:
    """Draw a row for each variant. values: one a seed, infinite for never. workers: of one run, as rings.

    medians: of the values; None: to be computed. asked: of the same values; each median is written at the
    right, and how many times the best it is. rule_at: where an upright dotted line is. most_linear: times the
    smallest value, that the largest is on an axis from 0; others are logarithmic, where lengths show factors.
    """
    medians = medians or {v: median_interval(seeds) for v, seeds in values.items()}
    said = {variant: x for variant, x in (theory or {}).items() if x is not None}
    rings = {variant: xs for variant, xs in (workers or {}).items() if len(xs) <= _MOST_RINGS}
    marks = [x for interval in medians.values() for x in interval[:3]]
    marks += [] if rule_at is None else [rule_at]
    span = value_axis([*chain(*values.values(), *rings.values()), *said.values(), *marks], most=most_linear)
    rows = _rows(scene, list(values))
    height = max(_ROW, *(0.06 + labels.extent(row.text)[1] for row in rows))
    canvas = Canvas(
        title=title,
        axes_height=0.25 + height * max(2, len(rows)),
        left=left_margin([row.text for row in rows], bold=[row.text for row in rows if row.variant is None]),
    )
    axes = canvas.axes()
    if rule_at is not None:
        rule(axes, rule_at, "x")
    places = {row.variant: place for place, row in enumerate(rows) if row.variant}
    for variant, place in places.items():
        own = values[variant], rings.get(variant, [])
        _mark(axes, place, scene.looks[variant], span, medians[variant], *own)
        if variant in said:
            axes.plot(said[variant], place, **_THEORY, clip_on=False)
    axes.set_yticks(range(len(rows)), [row.text for row in rows], linespacing=1.05)
    for row, text in zip(rows, axes.get_yticklabels(), strict=True):
        text.set_fontweight("normal" if row.variant else "bold")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0, pad=9)  # markers at 0 reach beyond the axis
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(unit)
    axes.grid(visible=True, axis="x")
    axes.set_xscale("log" if span.log else "linear")
    axes.set_xlim(span.low, span.end)
    if asked and len(values) > 1:
        canvas.right = _write_factors(axes, places, asked)
    readable_ticks(axes, "x", log=span.log)
    if span.lane:
        axes.set_position((0, 0, 1 - (canvas.left + canvas.right) / WIDTH, 1))  # how much room ticks have
        _set_apart(axes, span)
    return canvas.done(name)


class _Row(NamedTuple):
    """A variant, or the heading of a group of them."""

    text: str
    variant: str | None


def _rows(scene: Scene, variants: Sequence[str]) -> list[_Row]:
    """Return a row for each variant, those that are compared below each other under their group's name."""
    layout = scene.frames.layout
    rows = []
    for group, members in layout.groups.items():
        own = [variant for variant in members if variant in variants]
        if group and own:
            rows.append(_Row(labels.wrapped(group, _WIDEST), None))
        rows += [_Row(labels.wrapped(layout.level(group, v), _WIDEST), v) for v in own]
    return rows


def _mark(
    axes: Axes,
    place: int,
    style: Style,
    span: Values,
    median: Interval,
    seeds: Sequence[float],
    workers: Sequence[float],
) -> None:
    """Draw a variant's row: rings for workers, dots for seeds, the interval and the median."""
    look: dict[str, Any] = {"color": style.colour, "clip_on": False}
    ring: dict[str, Any] = {"markersize": 6, "markerfacecolor": "none", "markeredgewidth": 0.8, "alpha": 0.75}
    axes.plot(workers, [place] * len(workers), "o", **look, **ring)
    if median.level:
        ends = [span.place(median.low), span.place(median.high)]
        axes.plot(ends, [place, place], color=style.colour, linewidth=5, alpha=0.3, solid_capstyle="butt")
        axes.plot([span.place(x) for x in seeds], [place] * len(seeds), ".", markersize=4, **look)
    axes.plot(span.place(median.centre), place, style.marker, markersize=8, **look)


def _set_apart(axes: Axes, span: Values) -> None:
    """Set “never” apart at the end of the horizontal axis."""
    axes.axvline(span.at(1.03), color=INK, linewidth=0.8, linestyle=(0, (3, 2)), alpha=0.5)
    ticks = [float(x) for x in axes.get_xticks() if span.low <= x <= span.at(0.92)]
    write = axes.xaxis.get_major_formatter()
    axes.set_xticks([*ticks, span.lane_at], [*(write(x, 0) for x in ticks), NEVER])
    axes.minorticks_off()


def _write_factors(axes: Axes, places: Mapping[str, int], asked: Question) -> float:
    """Write medians and their ratios to the best of the group; return the inches that these take."""
    written: dict[str, tuple[str, str]] = {}
    first: set[str] = set()
    for group in asked.scenarios:
        ranking = asked.ranking(group)
        first |= set(asked.leaders(group))
        for variant, interval in ranking.items():
            ratio = asked.ratio(variant, next(iter(ranking)))
            known = ratio is not None and math.isfinite(ratio.centre)
            times = f"×{number(ratio.centre, 2)}" if ratio and known else ""
            written[variant] = (number(interval.centre), times)
    widths = [max(labels.extent(texts[i])[0] for texts in written.values()) for i in (0, 1)]
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    for variant, texts in written.items():
        look: dict[str, Any] = {"weight": "bold" if variant in first else "normal", "size": labels.SIZE}
        for text, inches in zip(texts, (0.14 + widths[0], 0.24 + sum(widths)), strict=True):
            at = (1, places[variant])
            axes.annotate(text, at, (72 * inches, 0), ha="right", va="center", **look, **where)
    return 0.3 + sum(widths)


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, None if any value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
