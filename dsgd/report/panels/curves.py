"""Curves over a run: loss against time, gradients and bytes; drift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedEvaluation
from dsgd.report.panels import Canvas, Panel, Scene, Section, readable_ticks, rule
from dsgd.report.statistics import median_bands
from dsgd.report.words import number

Floats = NDArray[np.float64]

_POINTS = 160  # of a curve: more than the eye can resolve, few enough for twenty curves
_MOST_BANDS = 8  # beyond, intervals only cover each other


def loss(scene: Scene) -> Section:
    """Draw loss on held-out data against time, against gradients and against bytes, for each scenario."""
    shown, others = scene.some_scenarios()
    panels = []
    for name, title, unit, at in (
        ("loss-time", "Loss against time", f"time ({scene.seconds})", _time),
        ("loss-gradients", "Loss against gradients", "gradients (mini-batches)", _gradients),
        ("loss-bytes", "Loss against bytes", "MB both ways", _megabytes),
    ):
        for place, (scenario, variants) in enumerate(shown.items()):
            seeds = {variant: [steps(record, at) for record in scene.of(variant)] for variant in variants}
            panel = draw(
                scene,
                f"{name}-{place + 1}" if len(shown) > 1 else name,
                f"{title}, {scenario}" if scenario else title,
                unit,
                "loss",
                {variant: [c for c in curves if len(c[0]) > 1] for variant, curves in seeds.items()},
                names={variant: variant.removesuffix(f" {scenario}") for variant in variants},
                target=scene.frames.target_loss,
            )
            panels.append(panel)
    caption = "Loss on held-out data of the weights at that moment."
    if any(len(scene.of(variant)) > 1 for variant in scene.variants):
        caption += " Lines are medians over seeds"
        banded = max(map(len, shown.values())) <= _MOST_BANDS
        caption += ", bands their intervals." if banded else "; intervals of so many are left out."
        caption += " A curve ends where the first of its seeds has spent its budget."
    if any(_diverged(run.record) for run in scene.frames.records):
        caption += " A diverged run counts as infinite from there on."
    return Section(
        name="loss",
        heading="How does the loss fall?"
        if len(scene.variants) == 1
        else "Which learns fastest, in time, per gradient and per byte?",
        caption=caption + others,
        panels=panels,
    )


def _time(evaluation: RecordedEvaluation) -> float:
    return evaluation.t_s


def _gradients(evaluation: RecordedEvaluation) -> float:
    return evaluation.gradients


def _megabytes(evaluation: RecordedEvaluation) -> float:
    return evaluation.bytes / 1e6


def drift(scene: Scene) -> Section:
    """Draw how far the workers' models are apart, for each scenario."""
    drifts = {v: [record.summary.measured["drift"] for record in scene.of(v)] for v in scene.variants}
    drifting = [variant for variant, values in drifts.items() if any(x is not None for x in values)]
    shown, others = scene.some_scenarios(drifting)
    panels = []
    for place, (scenario, variants) in enumerate(shown.items()):
        panel = draw(
            scene,
            f"drift-{place + 1}" if len(shown) > 1 else "drift",
            f"Drift against time{f', {scenario}' if scenario else ''}",
            f"time ({scene.seconds})",
            "mean distance to the average",
            {variant: [_drift_curve(record) for record in scene.of(variant)] for variant in variants},
            names={variant: variant.removesuffix(f" {scenario}") for variant in variants},
            bands=False,
        )
        panels.append(panel)
    return Section(
        name="drift",
        heading="How far do local models drift apart?",
        caption="Mean distance of the workers' weights to their average, at each averaging; median over "
        f"seeds. Modes without local steps have none.{others}",
        panels=panels,
    )


def _drift_curve(record: Record) -> tuple[Floats, Floats]:
    frame = record.update_frame().drop_nulls("drift")
    return frame["t_s"].to_numpy(), frame["drift"].to_numpy()


def steps(record: Record, place: Callable[[RecordedEvaluation], float]) -> tuple[Floats, Floats]:
    """Return where a run was evaluated and the losses there; infinite once it has diverged."""
    x = [place(e) for e in record.evals]
    y = [np.inf if e.loss is None else e.loss for e in record.evals]
    if _diverged(record):
        x, y = [*x, np.inf], [*y, np.inf]
    return np.array(x, dtype=float), np.array(y, dtype=float)


def _diverged(record: Record) -> bool:
    return record.summary.stopped_by == "diverged"


def draw(
    scene: Scene,
    name: str,
    title: str,
    x_label: str,
    y_label: str,
    curves: Mapping[str, Sequence[tuple[Floats, Floats]]],
    *,
    names: Mapping[str, str],
    target: float | None = None,
    bands: bool = True,
) -> Panel:
    """Draw step functions, several a variant (one a seed), as their medians and the intervals around them.

    names: of the variants, in the legend.
    """
    canvas = Canvas(title=title)
    axes = canvas.axes()
    curves = {variant: [c for c in seeds if len(c[0])] for variant, seeds in curves.items()}
    curves = {variant: seeds for variant, seeds in curves.items() if seeds}
    ends = {variant: last_x(seeds) for variant, seeds in curves.items()}
    starts = [x[x > 0][0] for seeds in curves.values() for x, _ in seeds if (x > 0).any()]
    spread = max(ends.values(), default=1.0) / max(min(ends.values(), default=1.0), 1e-300)
    log_x = bool(starts) and spread > 6
    lows, highs = [], []
    for place, (variant, seeds) in enumerate(curves.items()):
        look = scene.looks[variant]
        if log_x:
            grid = np.geomspace(min(starts), max(ends[variant], min(starts)), _POINTS)
        else:
            grid = np.linspace(min(x[0] for x, _ in seeds), ends[variant], _POINTS)
        values = np.array([values_at(x, y, grid) for x, y in seeds])
        centre, low, high = median_bands(values)
        shown = np.isfinite(centre)
        (line,) = axes.plot(
            grid[shown], centre[shown], **look.line, markevery=(7 * place % 23, 32), markeredgewidth=0
        )
        canvas.name(axes, names[variant], grid[shown], centre[shown], look)
        lows.append(centre[shown])
        if len(curves) > _MOST_BANDS:
            line.set_linewidth(1.2)
        elif bands and len(seeds) > 1:
            axes.fill_between(
                grid[shown], low[shown], high[shown], color=look.colour, alpha=0.16, linewidth=0
            )
            lows.append(low[shown])
        highs.append(centre[shown][:1])
    _scale(axes, np.concatenate(lows or [np.ones(1)]), np.concatenate(highs or [np.ones(1)]), target)
    if log_x:
        axes.set_xscale("log")
    readable_ticks(axes, "x", log=log_x)
    if target is not None:
        canvas.legend.append((f"target {number(target)}", rule(axes, target)))
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(visible=True)
    return canvas.done(name)


def _scale(axes: Axes, shown: Floats, first: Floats, target: float | None) -> None:
    """Choose the vertical axis: logarithmic if that shows more; what rises far above the start is cut."""
    low = float(min(shown.min(), np.inf if target is None else target))
    high = float(shown[shown <= 3 * max(first.max(), 1e-300)].max(initial=low))
    log = low > 0 and high / low > 4
    if log:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.12, high * 1.12)
    else:
        margin = 0.05 * (high - low) or 0.5
        axes.set_ylim(low - margin, high + margin)
    readable_ticks(axes, "y", log=log)


def last_x(seeds: Sequence[tuple[Floats, Floats]]) -> float:
    """Return where the first seed ends that did not diverge; if all did, where the last finite value is."""
    ends = [float(x[-1]) for x, _ in seeds if np.isfinite(x[-1])]
    return min(ends) if ends else max(float(x[np.isfinite(x)][-1]) for x, _ in seeds)


def values_at(x: Floats, y: Floats, grid: Floats) -> Floats:
    """Return a step function's values: what was last known at each point of the grid."""
    places = np.searchsorted(x, grid, side="right") - 1
    return y[np.clip(places, 0, len(y) - 1)]
