"""Staleness: its distribution over a variant's gradients, and worker by worker."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dsgd.records.reader import Record
from dsgd.running.predict.predictions import predicted_value, staleness_by_worker, staleness_pmf
from dsgd.show.report.panels.drawing import Canvas, Panel, Scene, Section, boxes, readable_ticks
from dsgd.show.report.style import INK
from dsgd.show.report.written_numbers import few, number

Floats = NDArray[np.float64]

_BINS = 30
_MOST_ROWS = 16
_SHADES = 8


def staleness(scene: Scene) -> Section:
    """Draw a panel for each variant with a stale gradient."""
    stale = [v for v in scene.variants if any(_stale(record) for record in scene.of(v))]
    fresh = [v for v in scene.variants if v not in stale]
    shown, others = scene.most(stale)
    caption = (
        "Above: the share of gradients by the number of updates between reading the weights and applying the "
        "gradient, its own not counted, over all seeds. Below: the same for each worker of one run, darker "
        "for more gradients; dots are the workers' means."
    )
    if any(predicted_value(scene.representative(v).summary, "staleness_mean") is not None for v in stale):
        caption += (
            " Theory, in the colour of text: the line with dots is the geometric distribution, the dashed "
            "line the mean, upright strokes below the workers' means; a dotted line is the bound."
        )
    if fresh:
        caption += f" Always 0, and so not drawn: {few(fresh)}."
    return Section(
        name="staleness",
        heading="How stale are the gradients?",
        caption=caption + others,
        panels=[_panel(scene, variant, place) for place, variant in enumerate(shown)],
    )


def _stale(record: Record) -> bool:
    return bool(record.summary.staleness.max)


def _panel(scene: Scene, variant: str, place: int) -> Panel:
    records = scene.of(variant)
    one = scene.representative(variant)
    counts: Counter[int] = Counter()
    for record in records:
        counts.update(record.summary.staleness.counts)
    total = sum(counts.values())
    mean = sum(value * count for value, count in counts.items()) / total
    shown = _quantile(counts, 0.995)
    width = max(1, math.ceil((shown + 1) / _BINS))
    edges: Floats = np.arange(0.0, shown + width + 1, width) - 0.5
    share = np.histogram(list(counts), edges, weights=[count / total for count in counts.values()])[0]
    rows = _rows(one, edges)
    strip = 0.13 if len(rows) > 8 else 0.17
    height = 1.55 + (0.12 + strip * len(rows) if rows else 0.0)  # no rows: no record of its updates
    canvas = Canvas(title=variant, what="Staleness", axes_height=height, left=0.72)
    colour = scene.looks[variant].colour
    above = canvas.axes(1.55)
    bars = [(x, x + width, 0.0, y) for x, y in zip(edges[:-1] + 0.06 * width, share, strict=True)]
    boxes(
        above, [(x, right - 0.12 * width, low, y) for x, right, low, y in bars], facecolor=colour, alpha=0.75
    )
    top = share.max()
    pmf = staleness_pmf(one, int(edges[-1]))
    if pmf is not None:
        bins = np.add.reduceat(pmf, np.arange(0, len(pmf), width))[: len(share)]
        above.plot(edges[:-1] + width / 2, bins, color=INK, linewidth=1.2, marker=".", markersize=4)
        top = max(top, bins.max())
    predicted = predicted_value(one.summary, "staleness_mean")
    if predicted is not None and predicted <= edges[-1]:
        above.axvline(predicted, color=INK, linewidth=1.1, linestyle=(0, (4, 2)))
    bound = predicted_value(one.summary, "staleness_max")
    if bound is not None and bound <= edges[-1]:
        above.axvline(bound, color=INK, linewidth=1.1, linestyle=(0, (1, 1.5)))
    said = "" if predicted is None else f" (theory {number(predicted)})"
    most = "" if bound is None else f" (theory: at most {number(bound)})"
    canvas.subtitle = f"mean {number(mean)}{said}, largest {max(counts)}{most}"
    above.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.08 * top), ylabel="share of gradients")
    above.grid(visible=True, axis="y")
    readable_ticks(above, "x", whole=True)
    readable_ticks(above, "y")
    lowest = above
    if rows:
        above.tick_params(labelbottom=False)
        lowest = canvas.axes(above=1.67, sharex=above)
        _strips(lowest, rows, edges, colour)
    beyond = sum(count for value, count in counts.items() if value > edges[-1]) / total
    unit = "staleness (updates)"
    if beyond:
        unit += f"; {100 * beyond:.1g} % are beyond, up to {max(counts)}"
    lowest.set_xlabel(unit)
    return canvas.done(f"staleness-{place + 1}")


class _Row(NamedTuple):
    """Some workers' gradients: the share in each bin, and their mean."""

    label: str
    share: Floats
    mean: float
    theory: float | None


def _rows(record: Record, edges: Floats) -> list[_Row]:
    """Return one row per worker; among many workers, neighbours share one."""
    frame = record.task_frame().select("worker", "staleness")
    worker, values = frame["worker"].to_numpy(), frame["staleness"].to_numpy()
    theory = staleness_by_worker(record)
    rows = []
    for first, last in _groups(record.summary.num_workers):
        own = values[(worker >= first) & (worker <= last)]
        if len(own):
            share = np.histogram(own, edges)[0] / len(own)
            label = str(first) if first == last else f"{first}–{last}"
            said = None if theory is None or first != last else float(theory[first])
            rows.append(_Row(label, share, float(own.mean()), said))
    return rows


def _groups(num_workers: int) -> Sequence[tuple[int, int]]:
    """Return the first and last worker of each row.

    >>> _groups(3), len(_groups(1000)), _groups(1000)[-1]
    ([(0, 0), (1, 1), (2, 2)], 16, (945, 999))
    """
    size = math.ceil(num_workers / _MOST_ROWS)
    return [(i, min(i + size, num_workers) - 1) for i in range(0, num_workers, size)]


def _strips(axes: Axes, rows: Sequence[_Row], edges: Floats, colour: str) -> None:
    """Draw a strip of shaded boxes for each row: as few paths as there are shades."""
    darkest = max((row.share.max() for row in rows), default=1.0)
    by_shade: dict[int, list[tuple[float, float, float, float]]] = {}
    for place, row in enumerate(rows):
        for left, right, share in zip(edges[:-1], edges[1:], row.share, strict=True):
            if share > 0:
                shade = math.ceil(_SHADES * (share / darkest) ** 0.5)
                by_shade.setdefault(shade, []).append((left, right, place - 0.42, place + 0.42))
    for shade, rectangles in sorted(by_shade.items()):
        boxes(axes, rectangles, facecolor=colour, alpha=0.85 * shade / _SHADES)
    seen = edges[-1]
    for place, row in enumerate(rows):
        if row.mean <= seen:
            axes.plot(row.mean, place, "o", color=INK, markersize=3.6, markeredgewidth=0)
        if row.theory is not None and row.theory <= seen:
            axes.plot(row.theory, place, "|", color=INK, markersize=9, markeredgewidth=1.3)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelsize=7 if len(rows) > 8 else 8)
    axes.set_ylabel("worker", labelpad=1)


def _quantile(counts: Counter[int], q: float) -> int:
    reached, total = 0, sum(counts.values())
    for value in sorted(counts):
        reached += counts[value]
        if reached >= q * total:
            return value
    return max(counts)
