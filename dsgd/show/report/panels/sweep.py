"""The figure of an experiment's question: the measure against what is swept, one line per second factor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dsgd.show.report.choices import choices
from dsgd.show.report.layout import Factor, Layout
from dsgd.show.report.panels import levels, rows
from dsgd.show.report.panels.drawing import Panel, Scene, Section
from dsgd.show.report.panels.levels import LevelLine, Point
from dsgd.show.report.questions import Question, questions
from dsgd.show.report.style import styles
from dsgd.show.report.written_numbers import listed


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
    """Whether the experiment's file compares an option, or names a baseline, by what its runs have values of;
    of tuning only with numbers.
    """
    asked, layout = scene.frames.asked, scene.frames.layout
    if layout.baseline is None and not (asked.compare and len(layout.compared.levels) > 1):
        return False
    if asked.tuned:
        return bool(axis(layout).across.numbers)  # else the answer's sentence and the next figure have it
    return any(question.values for question in questions(scene.frames))  # else the answer says so


def sweep(scene: Scene) -> Section:
    """Draw the measure, or what tuning chose, against what is swept, and the ratios to the baseline."""
    option = scene.frames.asked.tuned
    return _of_tuning(scene, option) if option else _of_runs(scene)


def _of_tuning(scene: Scene, option: str) -> Section:
    found, place = choices(scene.frames, option), axis(scene.frames.layout)
    words, what = option.replace("_", " "), _words(place.across)
    panels = []
    if found and all(_is_number(value) for choice in found for value in choice.losses):
        swept = {
            choice.variant: Point(
                centre=float(choice.value), seeds=[float(x) for x in choice.by_seed.values()]
            )
            for choice in found
        }
        tried = sorted({float(value) for choice in found for value in choice.losses})
        title, lines = f"Best {words} by {what}", _lines(scene, place, swept)
        log = min(tried) > 0
        panels.append(levels.draw("sweep", title, f"best {words}", place.across, lines, tried=tried, log=log))
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
            if not (found := {variant: list(seeds.values()) for variant, seeds in question.values.items()}):
                continue
            title = f"{noun[0].upper()}{noun[1:]} by {what}"
            name = "sweep" if question is asked[0] else f"sweep-{question.measure.name.replace('_', '-')}"
            if place.across.numbers:
                lines = _lines(scene, place, {v: Point.of(seeds) for v, seeds in found.items()})
                panels.append(levels.draw(name, title, label, place.across, lines))
            else:
                panels.append(rows.draw(scene, name, title, label, found, asked=question))
        caption = "Small dots are seeds, large marks medians, bars the intervals around them. "
    if layout.baseline is not None and (panel := _ratio(scene, asked[0], layout.baseline)):
        panels.append(panel)
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


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _lines(scene: Scene, place: Axis, found: Mapping[str, Point]) -> list[LevelLine]:
    """Return a line for each level of the second factor: in its mode's look, if its variants have one."""
    modes = {}
    for line, cells in place.cells.items():
        own = {scene.of(variant)[0].summary.mode for variant in cells.values()}
        modes[line] = min(own) if own else ""
    looks = styles(modes)
    return [
        LevelLine(
            name=line,
            look=looks[line],
            points={level: found[v] for level in place.across.levels if (v := cells.get(level, "")) in found},
        )
        for line, cells in place.cells.items()
    ]


def _ratio(scene: Scene, question: Question, baseline: str) -> Panel | None:
    """Draw how many times the baseline's value each level has, by group, on common seeds.

    None where no level has a ratio: its values are 0, or there are none.
    """
    values, medians = {}, {}
    for cells in question.layout.cells.values():
        for variant in cells.values():
            base = cells.get(baseline, variant)
            found = None if base == variant else question.ratio(variant, base)
            if found is not None and found.centre > 0:
                own, of_base = question.values.get(variant, {}), question.values.get(base, {})
                common = {
                    seed: x / of_base[seed] for seed, x in own.items() if 0 < of_base.get(seed, 0) < math.inf
                }
                values[variant] = [x for x in common.values() if x > 0]
                medians[variant] = found
    if not values:
        return None
    noun, label = question.measure.noun, f"times that of {baseline}"
    title = f"{noun[0].upper()}{noun[1:]}: {label}"
    return rows.draw(scene, "ratio", title, label, values, medians=medians, rule_at=1.0, most_linear=0)
