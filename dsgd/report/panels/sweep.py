"""The figure of an experiment's question: the measure against what is swept, one line per second factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dsgd.report.choices import choices, option_chosen
from dsgd.report.layout import Factor, Layout
from dsgd.report.panels import Canvas, Panel, Scene, Section
from dsgd.report.panels.levels import Levels, values
from dsgd.report.questions import questions
from dsgd.report.statistics import Interval, median_interval
from dsgd.report.style import Style, styles


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
    """Whether the experiment's file compares an option, of which there are several levels."""
    return bool(scene.frames.asked.compare) and len(scene.frames.layout.compared.levels) > 1


def sweep(scene: Scene) -> Section:
    """Draw the measure (or what was chosen) against what is swept."""
    frames = scene.frames
    option, place = option_chosen(frames), axis(frames.layout)
    what = place.across.option.replace("_", " ") or "variant"
    if option:
        chosen = {c.variant: c for c in choices(frames, option)}
        numeric = all(_is_number(v) for c in chosen.values() for v in c.losses)
        found = {
            v: Swept(centre=float(c.value), interval=None, seeds=[float(x) for x in c.by_seed.values()])
            for v, c in chosen.items()
            if numeric
        }
        label, title = option.replace("_", " "), f"Best {option.replace('_', ' ')} by {what}"
        caption = (
            "Large marks are what was chosen, small dots what each seed of the tuning alone would choose."
        )
        heading = f"How does the best {option.replace('_', ' ')} depend on {what}?"
    else:
        question = questions(frames)[0]
        found = {variant: _swept(list(seeds.values())) for variant, seeds in question.values.items() if seeds}
        label, noun = question.measure.label, question.measure.noun
        title = f"{noun[0].upper()}{noun[1:]} by {what}"
        caption = "Small dots are seeds, large marks medians, bars the intervals around them."
        heading = f"How does {noun} depend on {what}?"
    return Section(
        name="sweep",
        heading=heading,
        caption=caption,
        panels=[draw(scene, "sweep", title, label, place, found, log=True if option else None)]
        if found
        else [],
    )


def _swept(seeds: Sequence[float]) -> Swept:
    interval = median_interval(seeds)
    return Swept(centre=interval.centre, interval=interval, seeds=seeds)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def draw(
    scene: Scene,
    name: str,
    title: str,
    label: str,
    place: Axis,
    found: Mapping[str, Swept],
    *,
    log: bool | None = None,
) -> Panel:
    """Draw values by line and level; lines join levels that are numbers."""
    canvas = Canvas(title=title, axes_height=2.6)
    axes = canvas.axes()
    across = Levels(place.across)
    every = [x for swept in found.values() for x in (*swept.seeds, swept.centre)]
    vertical = values(every, log=log)
    across.set_up(axes)
    vertical.set_up(axes, label)
    looks = _looks(scene, place)
    shift = _shift(across, len(place.cells))
    for nth, (line, cells) in enumerate(place.cells.items()):
        look = looks[line]
        shown = {level: found[v] for level in place.across.levels if (v := cells.get(level, "")) in found}
        x = [shift(across.at(level), nth) for level in shown]
        centres = [vertical.place(s.centre) for s in shown.values()]
        finite = [
            c if math.isfinite(s.centre) else math.nan for c, s in zip(centres, shown.values(), strict=True)
        ]
        axes.plot(x, finite, **(look.line | {"linestyle": look.dashes if across.ordered else ""}), zorder=4)
        for at, y, swept in zip(x, centres, shown.values(), strict=True):
            if math.isinf(swept.centre):
                axes.plot(at, y, marker=look.marker, color=look.colour, markerfacecolor="none", zorder=4)
            if swept.interval and swept.interval.level:
                low, high = (vertical.place(swept.interval[end]) for end in (1, 2))
                axes.vlines(at, low, high, color=look.colour, linewidth=4, alpha=0.3, zorder=2)
            dots = [vertical.place(seed) for seed in swept.seeds]
            axes.plot([at] * len(dots), dots, ".", color=look.colour, markersize=3, alpha=0.75, zorder=3)
        if line and x:
            canvas.name(axes, line, x, centres, look)
    return canvas.done(name)


def _looks(scene: Scene, place: Axis) -> dict[str, Style]:
    """Return a look for each line: the mode's, if all its variants have one mode."""
    modes = {}
    for line, cells in place.cells.items():
        own = {scene.of(variant)[0].summary.mode for variant in cells.values()}
        modes[line] = min(own) if own else ""
    return styles(modes)


def _shift(across: Levels, lines: int) -> Callable[[float, int], float]:
    """Return how the lines' marks are moved so that they do not cover each other, if the axis is of names."""

    def moved(x: float, nth: int) -> float:
        return x + 0.08 * (nth - (lines - 1) / 2) if across.scale == "equal" else x

    return moved
