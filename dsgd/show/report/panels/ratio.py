"""How many times the baseline's value each level has."""

from __future__ import annotations

import math

from dsgd.show.report.panels import labels
from dsgd.show.report.panels.drawing import Canvas, Panel, Scene, left_margin, readable_ticks
from dsgd.show.report.questions import Question
from dsgd.show.report.statistics import Interval
from dsgd.show.report.style import INK
from dsgd.show.report.written_numbers import NEVER

_ROW, _BETWEEN = 0.27, 0.06  # inches: a row at least, and what is left between two
_HEIGHT = 2.6  # inches, as the sweep has beside it
_LEAST = 1.5  # the axis spans at least 1/this to this


def ratio(scene: Scene, question: Question, baseline: str) -> Panel:
    """Draw each level's ratio to the baseline, by group."""
    rows: list[tuple[str, str, Interval | None, list[float]]] = []
    many = len(question.layout.cells) > 1
    others = len(question.layout.compared.levels) > 2
    for group, cells in question.layout.cells.items():
        for level in question.layout.compared.levels:
            if level == baseline or level not in cells or baseline not in cells:
                continue
            name = ", ".join(filter(None, [level if others or not many else "", group if many else ""]))
            variant = cells[level]
            rows.append(
                (
                    variant,
                    name,
                    question.ratio(variant, cells[baseline]),
                    _seeds(question, variant, cells[baseline]),
                )
            )
    finite = [
        x for _, _, i, seeds in rows for x in (*seeds, *(i[:3] if i else ())) if math.isfinite(x) and x > 0
    ]
    low, high = min([1 / _LEAST, *finite]) / 1.12, max([_LEAST, *finite]) * 1.12
    rows = [row for row in rows if row[2] is not None and row[2].centre > 0]  # others have no ratio
    never = any(i is not None and math.isinf(i.centre) for _, _, i, _ in rows)
    beyond = high * (high / low) ** 0.1
    noun, names = question.measure.noun, [labels.wrapped(name) for _, name, _, _ in rows] or [""]
    row = max(_ROW, _BETWEEN + max(labels.extent(name)[1] for name in names))
    canvas = Canvas(
        title=f"{noun[0].upper()}{noun[1:]}: times that of {baseline}",
        axes_height=max(_HEIGHT, row * len(rows)),
        left=left_margin(names),
    )
    axes = canvas.axes()
    axes.set_xscale("log")
    axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    for y, (variant, _, interval, seeds) in enumerate(rows):
        look = scene.looks[variant]
        if interval is None or math.isinf(interval.centre):
            axes.plot(beyond, y, marker=look.marker, color=look.colour, markerfacecolor="none")
            continue
        if interval.level:
            axes.hlines(y, interval.low, interval.high, color=look.colour, linewidth=4, alpha=0.3)
        dots = [beyond if math.isinf(x) else x for x in seeds if x > 0]
        axes.plot(dots, [y] * len(dots), ".", color=look.colour, markersize=3, alpha=0.75)
        axes.plot(interval.centre, y, marker=look.marker, color=look.colour, markersize=6)
    axes.set_xlim(low, beyond * 1.1 if never else high)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), names[: len(rows)])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x")
    readable_ticks(axes, "x", log=True)
    axes.set_xlabel(f"times that of {baseline}")
    if never:
        axes.axvline(math.sqrt(high * beyond), color=INK, linewidth=0.5, alpha=0.5)
        axes.text(beyond, 1.02, NEVER, transform=axes.get_xaxis_transform(), ha="center", size=8.5)
    return canvas.done("ratio")


def _seeds(question: Question, variant: str, baseline: str) -> list[float]:
    """Return the ratio with each common seed where there is one."""
    a, b = question.values.get(baseline, {}), question.values.get(variant, {})
    return [b[seed] / a[seed] for seed in sorted(a.keys() & b.keys()) if 0 < a[seed] < math.inf]
