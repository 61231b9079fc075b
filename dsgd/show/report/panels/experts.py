"""Mixtures of experts: the load of each expert over time, and how far the most loaded one is above the
mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedEvaluation, RecordedRouting
from dsgd.show.report.panels.drawing import Canvas, Panel, Scene, Section, boxes, readable_ticks, spread
from dsgd.show.report.style import INK
from dsgd.show.report.written_numbers import few, number

_MOST_ROWS = 64  # experts of all layers that are drawn
_MOST_COLUMNS = 60  # evaluations
_SHADES = 10
_DARKEST = 2.5  # mean loads
_BELOW = 0.95  # inches of the axes below


def experts(scene: Scene) -> Section:
    """Draw a panel for each variant with mixtures of experts."""
    having = [v for v in scene.variants if any(evaluated(record) for record in scene.of(v))]
    shown, others = scene.most(having)
    caption = (
        "Above: a row for each expert, layer by layer; the stronger its colour, the larger its share of the "
        "layer's choices, on held-out data at each evaluation of one run; no colour at all is an expert that "
        "no token chooses. Below, with the same axis in all panels: by how many mean loads the most loaded "
        "expert is above the mean (MaxVio; 0 is even). Dashed: the same of workers, the mean over those of "
        "the last update, by their mini-batches or, where they return weights, with their own."
    )
    left_out = [v for v in scene.variants if v not in having]
    if left_out:
        caption += f" Without experts: {few(left_out)}."
    most = max(
        max(use.max_violation, use.worker_max_violation or 0.0)
        for variant in shown
        for _, use in _uses(_shown(scene, variant))
    )
    return Section(
        name="experts",
        heading="How are the experts used?",
        caption=caption + others,
        panels=[_panel(scene, variant, place, most) for place, variant in enumerate(shown)],
    )


def evaluated(record: Record) -> bool:
    """Whether a run has evaluations of a mixture of experts."""
    return any(evaluation.experts for evaluation in record.evals)


def _shown(scene: Scene, variant: str) -> Record:
    """Return the run of a variant that is drawn."""
    return next(r for r in (scene.representative(variant), *scene.of(variant)) if evaluated(r))


def _uses(record: Record) -> list[tuple[RecordedEvaluation, RecordedRouting]]:
    return [(e, e.experts) for e in record.evals if e.experts]


def _panel(scene: Scene, variant: str, place: int, most: float) -> Panel:
    """Draw a variant; most: of all panels, the largest MaxVio, so that they have the same axis."""
    record = _shown(scene, variant)
    found = _uses(record)
    last = found[-1][1]
    layers = spread(range(len(last.load)), max(1, _MOST_ROWS // max(map(len, last.load))))
    rows = sum(len(last.load[layer]) for layer in layers)
    row = min(0.17, max(0.035, 2.9 / rows))
    above = row * rows + 0.1 * (len(layers) - 1)
    canvas = Canvas(title=variant, what="Experts", axes_height=above + 0.22 + _BELOW, left=0.72)
    canvas.subtitle = _said(last)
    axes = canvas.axes(above)
    _heat_map(axes, found, layers, gap=0.1 / row, colour=scene.looks[variant].colour)
    axes.tick_params(labelbottom=False)
    below = canvas.axes(above=above + 0.22, sharex=axes)
    colour = scene.looks[variant].colour
    times = [e.t_s for e, _ in found]
    below.plot(times, [use.max_violation for _, use in found], color=colour, linewidth=1.6)
    canvas.legend = [
        (name, Patch(facecolor=colour, alpha=_alpha(load)))
        for name, load in (
            ("half the mean load", 0.5),
            ("even", 1.0),
            (f"{number(_DARKEST)} times or more", _DARKEST),
        )
    ]
    of_workers = [(e.t_s, x) for e, use in found if (x := use.worker_max_violation) is not None]
    if of_workers:
        below.plot(*zip(*of_workers, strict=True), color=INK, linewidth=1.1, linestyle=(0, (4, 2)))
        canvas.legend.append(("workers", Line2D([], [], color=INK, linewidth=1.1, linestyle=(0, (4, 2)))))
    below.set_ylim(0, 1.05 * most or 1.0)
    below.set_ylabel("MaxVio", labelpad=1)
    below.set_xlabel(f"time ({scene.seconds}), seed {record.summary.seed}")
    below.grid(visible=True, axis="y")
    readable_ticks(below, "x")
    readable_ticks(below, "y")
    return canvas.done(f"experts-{place + 1}")


def _said(use: RecordedRouting) -> str:
    """Return what the last evaluation says, in a line."""
    said = [
        f"at the end MaxVio {number(use.max_violation, 2)}, entropy {number(use.router_entropy, 2)} log E"
    ]
    if use.idle_experts:
        said.append(f"{use.idle_experts} idle")
    if use.dropped is not None:
        said.append(f"{100 * use.dropped:.2g} % dropped")
    if use.agreement is not None:
        said.append(f"workers agree on {100 * use.agreement:.0f} %")
    return ", ".join(said)


def _heat_map(
    axes: Axes,
    found: Sequence[tuple[RecordedEvaluation, RecordedRouting]],
    layers: Sequence[int],
    *,
    gap: float,
    colour: str,
) -> None:
    """Draw a box for each expert and evaluation, from this evaluation to the next, in as few paths as
    shades.
    """
    kept = spread(found, _MOST_COLUMNS)
    starts = np.array([evaluation.t_s for evaluation, _ in kept], dtype=float)
    width = float(np.median(np.diff(starts))) if len(starts) > 1 else 1.0
    ends = [*starts[1:], starts[-1] + width]
    by_shade: dict[int, list[tuple[float, float, float, float]]] = {}
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for layer in layers:
        count = len(kept[-1][1].load[layer])
        for left, right, (_, use) in zip(starts, ends, kept, strict=True):
            for expert, share in enumerate(use.load[layer]):
                if share > 0:
                    box = (left, right, top + expert + 0.06, top + expert + 0.94)
                    by_shade.setdefault(_shade(share * count), []).append(box)
        ticks.append((top + count / 2, f"layer {layer}"))
        top += count + gap
    for shade, rectangles in sorted(by_shade.items()):
        boxes(axes, rectangles, facecolor=colour, alpha=shade / _SHADES)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set(xlim=(starts[0], ends[-1]), ylim=(top - gap, 0))


def _shade(load: float) -> int:
    """Return how dark a load is, in mean loads: 1 to _SHADES.

    >>> _shade(0.01), _shade(1.0), _shade(2.5), _shade(8.0)
    (1, 4, 10, 10)
    """
    return max(1, min(_SHADES, round(_SHADES * load / _DARKEST)))


def _alpha(load: float) -> float:
    return _shade(load) / _SHADES
