"""Values where no level is best: as multiples of a baseline, or between which two they lie."""

from __future__ import annotations

import math

from dsgd.show.report.questions import Question
from dsgd.show.report.written_numbers import (
    listed,
    number,
    ratio_text,
    sentence,
)

_MOST_LEVELS = 3  # that a headline compares with the baseline; one more rather than "the other 1"
_MOST_GROUPS = 4  # whose multiples a headline gives one by one; of more, the least and the largest


def against_baseline(question: Question, baseline: str) -> str:
    """Return how many times the baseline's value each other level has, in each group."""
    layout = question.layout
    others = [level for level in layout.compared.levels if level != baseline]
    if len(others) > _MOST_LEVELS and len(layout.cells) == 1 and not layout.compared.numbers:
        (group,) = layout.cells  # the best are named
        places = {layout.level(group, v): place for place, v in enumerate(question.ranking(group))}
        others.sort(key=lambda level: places.get(level, len(places)))
    alone = len(layout.cells) == 1
    most = _MOST_LEVELS + (len(others) == _MOST_LEVELS + 1)
    parts = [
        part
        for place, level in enumerate(others[:most])
        if (part := _against(question, level, baseline, brief=alone and place > 0))
    ]
    if not parts:
        return sentence(
            f"Nothing can be compared with {baseline}: no run has a value of {question.measure.noun}"
        )
    more = f"; the other {len(others) - most} are in the table" if len(others) > most else ""
    return sentence(f"Compared with {baseline}, {listed(parts) if alone else '; '.join(parts)}{more}")


def _against(question: Question, level: str, baseline: str, *, brief: bool) -> str:
    """Return what a level does in each group; brief: the sentence has said before what is multiplied."""
    by = question.measure
    never, neither, only, values = (list[str]() for _ in range(4))
    ratios: dict[str, float] = {}  # by group
    for group, cells in question.layout.cells.items():
        if level not in cells or baseline not in cells:
            continue
        place = f"with {group}" if group else ""
        ratio = question.ratio(cells[level], cells[baseline])
        value, base = question.median(cells[level]), question.median(cells[baseline])
        if value is None or base is None:
            continue
        if math.isinf(value.centre):
            (neither if math.isinf(base.centre) else never).append(place)
        elif math.isinf(base.centre):
            only.append(place)
        elif ratio is None or not 0 < ratio.centre < math.inf:
            values.append(f"{number(value.centre)} against {number(base.centre)} {place}".rstrip())
        else:
            ratios[group] = ratio.centre
    times = {f"with {group}" if group else "": ratio_text(ratio) for group, ratio in ratios.items()}
    if len(times) == len(question.layout.cells) > 2 and len(set(times.values())) == 1:
        times = {f"in all {len(times)} cases": next(iter(times.values()))}
    elif len(times) > _MOST_GROUPS:
        least, most = min(ratios, key=lambda g: ratios[g]), max(ratios, key=lambda g: ratios[g])
        times = {"": f"{ratio_text(ratios[least])} ({least}) to {ratio_text(ratios[most])} ({most})"}
    said = [
        (f"{text} times {place}" if brief or n else f"{by.times.format(text)}{by.target} {place}").rstrip()
        for n, (place, text) in enumerate(times.items())
    ]
    parts = [f"{level} {listed(said)}"] if said else []
    parts += [f"{level} has {by.noun} {listed(values)}"] if values else []
    parts += [f"{level} {by.never} {listed(never)}".rstrip()] if never else []
    parts += (
        [f"{level} {by.never_plural} {listed(only)}".rstrip() + f", where {baseline} does not"]
        if only
        else []
    )
    parts += (
        [f"neither {level} nor {baseline} {by.never_plural} {listed(neither)}".rstrip()] if neither else []
    )
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
