"""Curves over a run: loss against time, gradients and bytes; drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedEvaluation
from dsgd.show.report.comparable import identical
from dsgd.show.report.measures import LOSS, LossScale, scale_of
from dsgd.show.report.panels import labels
from dsgd.show.report.panels.drawing import (
    Canvas,
    Panel,
    Scene,
    Section,
    legend,
    readable_ticks,
    rule,
    spread,
)
from dsgd.show.report.statistics import median_bands
from dsgd.show.report.style import INK, Style
from dsgd.show.report.written_numbers import number

Floats = NDArray[np.float64]

_POINTS = 160  # of a curve: more than the eye can resolve, few enough for twenty curves
_MOST_THIN = 6  # seeds of a variant that are drawn as separate lines; more are shown as an interval
_MOST_SPREADS = 8  # variants with such lines or intervals; beyond, they only cover each other
_HEIGHT = 2.3  # inches
_MOST_MARKS = 200  # of a variant's faults


@dataclass(frozen=True, kw_only=True)
class Range:
    """An axis, the same for all panels that are compared."""

    low: float
    high: float
    log: bool


class SeedCurves(NamedTuple):
    """Step functions, one a seed, and on common places their median and the interval around it."""

    seeds: Sequence[tuple[Floats, Floats]]
    x: Floats
    centre: Floats
    low: Floats
    high: Floats


Seeds = Mapping[str, Sequence[tuple[Floats, Floats]]]
"""By variant, places and values of each seed."""


def loss(scene: Scene) -> Section:
    """Draw loss on held-out data against time, against gradients and against bytes, for each scenario."""
    shown, others = scene.some_scenarios()
    scale = scale_of(run.record for run in scene.frames.records)
    noun = scale.noun.capitalize()
    kinds: list[tuple[str, str, str, Callable[[RecordedEvaluation], float]]] = [
        ("loss-time", f"{noun} against time", f"time ({scene.seconds})", lambda e: e.t_s),
        ("loss-gradients", f"{noun} against gradients", "gradients (mini-batches)", lambda e: e.gradients),
        ("loss-bytes", f"{noun} against bytes", "MB sent", lambda e: e.bytes / 1e6),
    ]
    drawings = []
    marks = _marks(scene, shown)
    for name, title, unit, at in kinds:
        seeds = {
            scenario: {
                variant: [steps(record, at, scale) for record in scene.of(variant)] for variant in variants
            }
            for scenario, variants in shown.items()
        }
        drawing = _drawing(name, title, unit, scale.noun, seeds)
        drawings.append(replace(drawing, marks=marks) if name == "loss-time" else drawing)
    return Section(
        name="loss",
        heading="How does the loss fall?"
        if len(scene.variants) == 1
        else "Which learns fastest, in time, per gradient and per byte?",
        caption=_loss_caption(scene, shown, scale) + others,
        panels=draw(scene, drawings, rules=_rules(scene, scale)),
        columns=len(kinds),
    )


def _rules(scene: Scene, scale: LossScale) -> dict[str, float]:
    """Return by name the heights at which lines run across: the target, and what compresses the same text."""
    target = scale.target(scene.frames.target_loss)
    return ({} if target is None else {f"target {number(target)}": target}) | {
        f"{name} {number(bits)}": bits for name, bits in scale.yardsticks.items()
    }


def _loss_caption(scene: Scene, shown: Mapping[str, Sequence[str]], scale: LossScale) -> str:
    caption = "Loss on held-out data of the weights at that moment."
    if scale.in_bits:
        caption = "Bits that a byte of held-out text takes with the weights at that moment."
    if scale.yardsticks:
        caption += f" Dotted: {' and '.join(scale.yardsticks)}, of all the held-out text."
    seeds = max(len(scene.of(variant)) for variant in scene.variants)
    if seeds > 1:
        caption += " Thick lines are medians over seeds"
        if max(map(len, shown.values())) > _MOST_SPREADS:
            caption += "; with so many variants, single seeds are not drawn."
        else:
            caption += ", thin ones single seeds." if seeds <= _MOST_THIN else ", bands their intervals."
        caption += " A line ends where the first of its seeds has spent its budget."
    if any(_diverged(run.record) for run in scene.frames.records):
        caption += " A diverged run counts as infinite from there on."
    if any(scene.representative(variant).faults for variants in shown.values() for variant in variants):
        caption += " Triangles on the time axis: the faults of one run per variant, all with the same seed."
    if len(shown) > 1:
        caption += " Panels of one kind have the same axes."
    return caption


def _marks(scene: Scene, shown: Mapping[str, Sequence[str]]) -> dict[str, dict[str, list[float]]]:
    """Return when faults began, by scenario and variant; under no name where a shorter run met the same."""
    found = {}
    for scenario, variants in shown.items():
        times = {v: [fault.t_s for fault in scene.representative(v).faults] for v in variants}
        times = {v: own for v, own in times.items() if own}
        longest = max(times.values(), key=len, default=[])
        if len(times) != 1 and all(own == longest[: len(own)] for own in times.values()):
            times = {"": longest} if longest else {}
        found[scenario] = {v: spread(own, _MOST_MARKS) for v, own in times.items()}
    return found


def drift(scene: Scene) -> Section:
    """Draw how far the workers' models are apart, for each scenario."""
    drifts = {v: [record.summary.measured["drift"] for record in scene.of(v)] for v in scene.variants}
    drifting = [variant for variant, values in drifts.items() if any(x is not None for x in values)]
    shown, others = scene.some_scenarios(drifting)
    seeds = {
        scenario: {variant: [_drift_curve(record) for record in scene.of(variant)] for variant in variants}
        for scenario, variants in shown.items()
    }
    unit = f"time ({scene.seconds})"
    drawing = _drawing("drift", "Drift against time", unit, "mean distance to the average", seeds)
    return Section(
        name="drift",
        heading="How far do local models drift apart?",
        caption="Mean distance of the workers' weights to their average, at each averaging; median over "
        f"seeds. Modes without local steps have none.{others}",
        panels=draw(scene, [drawing], seeds_too=False),
    )


def _drift_curve(record: Record) -> tuple[Floats, Floats]:
    frame = record.update_frame().drop_nulls("drift")
    return frame["t_s"].to_numpy(), frame["drift"].to_numpy()


def steps(
    record: Record, place: Callable[[RecordedEvaluation], float], scale: LossScale = LOSS
) -> tuple[Floats, Floats]:
    """Return where a run was evaluated and the losses there; infinite once it has diverged."""
    x = [place(e) for e in record.evals]
    y = [np.inf if (loss := scale.of(e)) is None else loss for e in record.evals]
    if _diverged(record):
        x, y = [*x, np.inf], [*y, np.inf]
    return np.array(x, dtype=float), np.array(y, dtype=float)


def _diverged(record: Record) -> bool:
    return record.summary.stopped_by == "diverged"


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Panels of one kind, one a scenario, with the same horizontal axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    x: Range
    curves: Mapping[str, Mapping[str, SeedCurves]]
    """By scenario and variant."""
    marks: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    """By scenario and variant, where faults began; under no name if they are the same for all."""


def _drawing(name: str, title: str, x_label: str, y_label: str, seeds: Mapping[str, Seeds]) -> Drawing:
    """Compute the medians of all seeds, and the axis on which they lie."""
    drawn = {
        scenario: {
            variant: whole for variant, own in of.items() if (whole := [s for s in own if len(s[0]) > 1])
        }
        for scenario, of in seeds.items()
    }
    every = [own for found in drawn.values() for own in found.values()]
    ends = [last_x(own) for own in every] or [1.0]
    starts = [float(x[x > 0][0]) for own in every for x, _ in own if (x > 0).any()]
    log = bool(starts) and max(ends) / max(min(ends), 1e-300) > 6
    low = min(starts) if log else min((float(x[0]) for own in every for x, _ in own), default=0.0)
    high = max(ends)
    span = Range(low=low, high=high if high > low else low + 1, log=log)
    curves = {
        scenario: {variant: _median(own, span) for variant, own in found.items()}
        for scenario, found in drawn.items()
    }
    return Drawing(name=name, title=title, x_label=x_label, y_label=y_label, x=span, curves=curves)


def _median(seeds: Sequence[tuple[Floats, Floats]], span: Range) -> SeedCurves:
    first, last = min(float(x[0]) for x, _ in seeds), last_x(seeds)
    if span.log:
        grid = np.geomspace(span.low, max(last, span.low), _POINTS)
    else:
        grid = np.linspace(first, last, _POINTS)
    return SeedCurves(seeds, grid, *median_bands(np.array([values_at(x, y, grid) for x, y in seeds])))


def draw(
    scene: Scene,
    drawings: Sequence[Drawing],
    *,
    rules: Mapping[str, float] | None = None,
    seeds_too: bool = True,
) -> list[Panel]:
    """Draw the panels of each scenario, one of each kind, all with the same vertical axis.

    rules: by name, the heights of dotted lines across them.

    Where names do not fit beside the lines, a panel with the legend of all comes first.
    """
    rules = rules or {}
    every = [c for one in drawings for found in one.curves.values() for c in found.values()]
    y = _vertical(every, list(rules.values()))
    named = {
        scenario: {v: scene.frames.layout.level(scenario, v) for v in found}
        for scenario, found in drawings[0].curves.items()
    }
    beside = all(
        labels.fit([*names.values(), *(list(rules) or ["target"])], _HEIGHT) for names in named.values()
    )
    panels, canvases = [], []
    if not beside:
        entries = {name: scene.looks[v] for names in named.values() for v, name in names.items()}
        panels.append(legend(f"{drawings[0].name.partition('-')[0]}-legend", entries))
    for place, (scenario, names) in enumerate(named.items()):
        for one in drawings:
            canvas = Canvas(title=one.title, subtitle=scenario, axes_height=_HEIGHT)
            axes = canvas.axes()
            axes.set_xscale("log" if one.x.log else "linear")
            axes.set_yscale("log" if y.log else "linear")
            axes.set(xlim=(one.x.low, one.x.high), ylim=(y.low, y.high))
            axes.set(xlabel=one.x_label, ylabel=one.y_label)
            curves = one.curves[scenario]
            thin = seeds_too and len(curves) <= _MOST_SPREADS
            _lines(axes, curves, scene.looks, seeds_too=thin, plain=beside)
            readable_ticks(axes, "x", log=one.x.log)
            readable_ticks(axes, "y", log=y.log)
            axes.grid(visible=True)
            if beside:
                _name_lines(canvas, axes, curves, names, scene)
            if any(other.marks.get(scenario) for other in drawings):
                _mark_faults(canvas, axes, one.marks.get(scenario, {}), scene.looks)
            for text, height in rules.items():
                rule(axes, height)
                canvas.name(axes, text, [one.x.low, one.x.high], [height] * 2, Style(INK, "-", ""))
            canvases.append((f"{one.name}-{place + 1}" if len(named) > 1 else one.name, canvas))
    right = max((canvas.room for _, canvas in canvases), default=0.0)
    for name, canvas in canvases:
        canvas.right = right  # axes of one size can be compared
        panels.append(canvas.done(name))
    return panels


def _lines(
    axes: Axes, curves: Mapping[str, SeedCurves], looks: Mapping[str, Style], *, seeds_too: bool, plain: bool
) -> None:
    """Draw medians; behind them each seed, or an interval where there are many. plain: without markers."""
    for variant, curve in curves.items():
        look, several = looks[variant], len(curve.seeds) > 1
        if several and seeds_too and len(curve.seeds) <= _MOST_THIN:
            end = curve.x[-1]
            for x, y in curve.seeds:
                x, y = x[x <= end], y[x <= end]
                thin: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.5, "drawstyle": "steps-post"}
                axes.plot(np.append(x, end), np.append(y, y[-1]), color=look.colour, **thin)
        elif several and seeds_too:
            shown = np.isfinite(curve.centre)
            axes.fill_between(
                curve.x[shown],
                curve.low[shown],
                curve.high[shown],
                color=look.colour,
                alpha=0.16,
                linewidth=0,
            )
    for place, (variant, curve) in enumerate(curves.items()):
        shown = np.isfinite(curve.centre)
        marks = {"marker": ""} if plain else {"markevery": (7 * place % 23, 32), "markeredgewidth": 0}
        width = 1.8 if len(curves) <= _MOST_SPREADS else 1.2
        line = looks[variant].line | marks | {"linewidth": width}
        axes.plot(curve.x[shown], curve.centre[shown], **line)


def _mark_faults(
    canvas: Canvas, axes: Axes, marks: Mapping[str, Sequence[float]], looks: Mapping[str, Style]
) -> None:
    """Draw triangles at the foot of the axes, a row for each variant, and a legend for them.

    A panel without marks gets the legend's room, to stay as high as its neighbours.
    """
    look: dict[str, Any] = {"marker": "v", "linestyle": "", "markersize": 5, "markeredgewidth": 0}
    for row, (variant, times) in enumerate(marks.items()):
        colour = looks[variant].colour if variant else INK
        feet = np.full(len(times), 0.025 + 0.035 * row)
        axes.plot(times, feet, transform=axes.get_xaxis_transform(), color=colour, **look)
    legend_look = look | {"color": INK} if marks else {"linestyle": ""}
    canvas.legend.append(("fault" if marks else " ", Line2D([], [], **legend_look)))


def _name_lines(
    canvas: Canvas, axes: Axes, curves: Mapping[str, SeedCurves], names: Mapping[str, str], scene: Scene
) -> None:
    """Name each line; those of variants whose runs are the same have one name."""
    same = {v: group for group in identical(scene.frames) for v in group}
    for variant, curve in curves.items():
        group = [v for v in same.get(variant, [variant]) if v in curves]
        shown = np.isfinite(curve.centre)
        if variant == group[-1] and shown.any():  # on top of the others
            text = names[variant] if len(group) == 1 else f"{', '.join(names[v] for v in group)}: the same"
            canvas.name(axes, text, curve.x[shown], curve.centre[shown], scene.looks[variant])


def _vertical(curves: Sequence[SeedCurves], rules: Sequence[float]) -> Range:
    """Choose the vertical axis: logarithmic if that shows more; what rises far above the start is cut."""
    finite = [curve.centre[np.isfinite(curve.centre)] for curve in curves]
    shown = np.concatenate([np.ones(0), *finite])
    if not len(shown):
        return Range(low=0, high=1, log=False)
    first = max((float(centre[0]) for centre in finite if len(centre)), default=1.0)
    low = float(min(shown.min(), *rules, np.inf))
    high = float(shown[shown <= 3 * max(first, 1e-300)].max(initial=low))
    if low > 0 and high / low > 4:
        return Range(low=low / 1.12, high=high * 1.12, log=True)
    margin = 0.05 * (high - low) or 0.5
    return Range(low=low - margin, high=high + margin, log=False)


def last_x(seeds: Sequence[tuple[Floats, Floats]]) -> float:
    """Return where the first seed ends that did not diverge; if all did, where the last finite value is."""
    ends = [float(x[-1]) for x, _ in seeds if np.isfinite(x[-1])]
    return min(ends) if ends else max(float(x[np.isfinite(x)][-1]) for x, _ in seeds)


def values_at(x: Floats, y: Floats, grid: Floats) -> Floats:
    """Return a step function's values: what was last known at each point of the grid."""
    places = np.searchsorted(x, grid, side="right") - 1
    return y[np.clip(places, 0, len(y) - 1)]
