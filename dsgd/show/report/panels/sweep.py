"""The figure of an experiment's question: the measure against what is swept, one line per second factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.lines import Line2D

from dsgd.show.report.choices import choices
from dsgd.show.report.layout import Factor, Layout
from dsgd.show.report.panels import labels, ratio, rows
from dsgd.show.report.panels.drawing import Canvas, Panel, Scene, Section
from dsgd.show.report.panels.levels import Levels, values
from dsgd.show.report.questions import questions
from dsgd.show.report.statistics import Interval, median_interval
from dsgd.show.report.style import Style, styles
from dsgd.show.report.written_numbers import listed, number


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What the figure draws of a variant."""

    centre: float
    interval: Interval | None
    seeds: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Which factor goes along the horizontal axis, and which one has a line for each level."""

    across: Factor
    lines: Factor
    cells: Mapping[str, Mapping[str, str]]
    """The variant by line and level."""


def axis(layout: Layout) -> Axis:
    """Return the arrangement: what is compared goes along the axis, unless only the other one is a number."""
    if layout.grouped.numbers and not layout.compared.numbers:
        turned = {
            level: {group: cells[level] for group, cells in layout.cells.items() if level in cells}
            for level in layout.compared.levels
        }
        return Axis(across=layout.grouped, lines=layout.compared, cells=turned)
    return Axis(across=layout.compared, lines=layout.grouped, cells=layout.cells)


def applies(scene: Scene) -> bool:
    """Whether the experiment's file compares an option, or names a baseline; of tuning only with numbers."""
    layout = scene.frames.layout
    if scene.frames.asked.tuned and not axis(layout).across.numbers:
        return False  # the answer's sentence and the next figure have it
    return bool(scene.frames.asked.compare and len(layout.compared.levels) > 1) or layout.baseline is not None


def sweep(scene: Scene) -> Section:
    """Draw the measure, or what tuning chose, against what is swept, and the ratios to the baseline."""
    option = scene.frames.asked.tuned
    return _of_tuning(scene, option) if option else _of_runs(scene)


def _of_tuning(scene: Scene, option: str) -> Section:
    found, place = choices(scene.frames, option), axis(scene.frames.layout)
    words, what = option.replace("_", " "), _words(place.across)
    panels = []
    if all(_is_number(value) for choice in found for value in choice.losses):
        swept = {
            choice.variant: Swept(
                centre=float(choice.value), interval=None, seeds=[float(x) for x in choice.by_seed.values()]
            )
            for choice in found
        }
        tried = sorted({float(value) for choice in found for value in choice.losses})
        panels.append(_draw(scene, f"Best {words} by {what}", f"best {words}", place, swept, tried))
    return Section(
        name="sweep",
        heading=f"How does the best {words} depend on {what}?",
        caption="Large marks are the chosen values, small dots those that each seed of the tuning would "
        "choose alone.",
        panels=panels,
    )


def _of_runs(scene: Scene) -> Section:
    asked, layout, panels, caption = questions(scene.frames), scene.frames.layout, [], ""
    asked = asked if scene.frames.asked.measures else asked[:1]
    what = "variant"
    if scene.frames.asked.compare:
        place = axis(layout)
        what = _words(place.across)
        for question in asked:
            noun, label = question.measure.noun, question.measure.label
            found = {variant: list(seeds.values()) for variant, seeds in question.values.items()}
            title = f"{noun[0].upper()}{noun[1:]} by {what}"
            name = "sweep" if question is asked[0] else f"sweep-{question.measure.name.replace('_', '-')}"
            if place.across.numbers:
                swept = {variant: _swept(seeds) for variant, seeds in found.items()}
                panels.append(_draw(scene, title, label, place, swept, name=name))
            else:
                panels.append(rows.draw(scene, name, title, label, found, asked=question))
        caption = "Small dots are seeds, large marks medians, bars the intervals around them. "
    if layout.baseline is not None:
        panels.append(ratio.ratio(scene, asked[0], layout.baseline))
        caption += (
            "Ratios are those on common seeds, with their medians and intervals; 1 is no difference from "
            f"{layout.baseline}."
        )
    nouns = listed([question.measure.noun for question in asked])
    verb = "does" if len(asked) == 1 else "do"
    return Section(
        name="sweep", heading=f"How {verb} {nouns} depend on {what}?", caption=caption.strip(), panels=panels
    )


def _words(factor: Factor) -> str:
    return factor.option.replace("_", " ") or "variant"


def _swept(seeds: Sequence[float]) -> Swept:
    interval = median_interval(seeds)
    return Swept(centre=interval.centre, interval=interval, seeds=seeds)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _draw(
    scene: Scene,
    title: str,
    label: str,
    place: Axis,
    found: Mapping[str, Swept],
    tried: Sequence[float] = (),
    name: str = "sweep",
) -> Panel:
    """Draw values by line and level, which is a number.

    tried: the only values that there can be, if any.
    """
    canvas = Canvas(title=title, axes_height=2.6)
    axes = canvas.axes()
    across = Levels(place.across)
    every = [x for swept in found.values() for x in (*swept.seeds, swept.centre)]
    vertical = values([*every, *tried], log=min(tried) > 0 if tried else None)
    across.set_up(axes)
    vertical.set_up(axes, label)
    if tried:
        axes.set_yticks(tried, [number(x, 4) for x in tried])
        axes.minorticks_off()
    looks = _looks(scene, place)
    shift, named = _shift(across, len(place.cells)), labels.fit(list(place.cells), canvas.axes_height)
    for nth, (line, cells) in enumerate(place.cells.items()):
        look = looks[line]
        shown = {level: found[v] for level in place.across.levels if (v := cells.get(level, "")) in found}
        x = [shift(across.at(level), nth) for level in shown]
        centres = [vertical.place(s.centre) for s in shown.values()]
        finite = [
            c if math.isfinite(s.centre) else math.nan for c, s in zip(centres, shown.values(), strict=True)
        ]
        axes.plot(x, finite, **look.line, zorder=4)
        marks: list[tuple[float, float]] = []
        for at, y, swept in zip(x, centres, shown.values(), strict=True):
            if math.isinf(swept.centre):
                axes.plot(at, y, marker=look.marker, color=look.colour, markerfacecolor="none", zorder=4)
            if swept.interval and swept.interval.level:
                low, high = (vertical.place(swept.interval[end]) for end in (1, 2))
                axes.vlines(at, low, high, color=look.colour, linewidth=4, alpha=0.3, zorder=2)
            dots = [vertical.place(seed) for seed in swept.seeds]
            axes.plot([at] * len(dots), dots, ".", color=look.colour, markersize=3, alpha=0.75, zorder=3)
            marks += [(at, dot) for dot in dots]
        if named and line and x:
            canvas.name(axes, line, x, centres, look, marks)
        elif line and x:
            canvas.legend.append((line, Line2D([], [], **look.line)))
    return canvas.done(name)


def _looks(scene: Scene, place: Axis) -> dict[str, Style]:
    """Return a look for each line: the mode's, if all its variants have one mode."""
    modes = {}
    for line, cells in place.cells.items():
        own = {scene.of(variant)[0].summary.mode for variant in cells.values()}
        modes[line] = min(own) if own else ""
    return styles(modes)


def _shift(across: Levels, lines: int) -> Callable[[float, int], float]:
    """Return how lines' marks are moved apart on an axis of equal distances."""

    def moved(x: float, nth: int) -> float:
        return x + 0.08 * (nth - (lines - 1) / 2) if across.scale == "equal" else x

    return moved
