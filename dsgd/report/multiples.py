"""Values where no level is best: as multiples of a baseline, or between which two they lie."""

from __future__ import annotations

import math

from dsgd.report.questions import Question
from dsgd.report.words import (
    listed,
    number,
    ratio_text,
    sentence,
)

_MOST_LEVELS = 3  # that a headline compares with the baseline


def against_baseline(question: Question, baseline: str) -> str:
    """Return how many times the baseline's value each other level has, in each group."""
    layout = question.layout
    others = [level for level in layout.compared.levels if level != baseline]
    if len(others) > _MOST_LEVELS and len(layout.cells) == 1 and not layout.compared.numbers:
        (group,) = layout.cells  # the best are named
        places = {layout.level(group, v): place for place, v in enumerate(question.ranking(group))}
        others.sort(key=lambda level: places.get(level, len(places)))
    alone = len(layout.cells) == 1
    parts = [
        part
        for place, level in enumerate(others[:_MOST_LEVELS])
        if (part := _against(question, level, baseline, brief=alone and place > 0))
    ]
    more = f"; the other {len(others) - _MOST_LEVELS} are in the table" if len(others) > _MOST_LEVELS else ""
    return sentence(f"Compared with {baseline}, {listed(parts) if alone else '; '.join(parts)}{more}")


def _against(question: Question, level: str, baseline: str, *, brief: bool) -> str:
    """Return what a level does in each group; brief: the sentence has said before what is multiplied."""
    by, said, never, neither = question.measure, list[str](), list[str](), list[str]()
    for group, cells in question.layout.cells.items():
        if level not in cells or baseline not in cells:
            continue
        place = f" with {group}" if group else ""
        ratio, value = question.ratio(cells[level], cells[baseline]), question.median(cells[level])
        if ratio is not None and math.isfinite(ratio.centre):
            said.append(
                f"{ratio_text(ratio.centre)} times{place}"
                if said or brief
                else f"{by.times.format(ratio_text(ratio.centre))}{by.target}{place}"
            )
        elif value is not None and math.isinf(value.centre):
            (never if ratio is not None else neither).append(place.strip())
    parts = [f"{level} {listed(said)}"] if said else []
    if never:
        verb = by.never if not said else "never does"
        parts.append(f"{level} {verb} {listed([g for g in never if g])}".rstrip())
    if neither:
        parts.append(f"neither of them {by.never_plural} {listed([g for g in neither if g])}".rstrip())
    return ", and ".join(parts)


def value_range(question: Question) -> str:
    """Return the values where neither low nor high is better: each, or between which two they lie."""
    layout = question.layout
    found = [
        (x.centre, level, group)
        for group, cells in layout.cells.items()
        for level, variant in cells.items()
        if (x := question.median(variant)) is not None
    ]
    if not found:
        return sentence(f"No run has a value of {question.measure.noun}")
    noun = question.measure.noun[:1].upper() + question.measure.noun[1:]
    if len(layout.cells) == 1 and len(found) <= 2 * _MOST_LEVELS:
        return sentence(f"{noun} is {listed([f'{number(x)} with {level}' for x, level, _ in found])}")
    (low, *at_low), (high, *at_high) = min(found), max(found)
    if low == high:
        return sentence(f"{noun} is {number(low)} in all cases")
    return sentence(
        f"{noun} goes from {number(low)} ({', '.join(filter(None, at_low))}) to "
        f"{number(high)} ({', '.join(filter(None, at_high))})"
    )
