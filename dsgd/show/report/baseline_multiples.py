"""Values where no level is best: as multiples of a baseline, or between which two they lie; of numbers of
workers, how throughput grows with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsgd.show.report.frames import Frames
from dsgd.show.report.layout import alone
from dsgd.show.report.panels.scaling import Series
from dsgd.show.report.questions import Question, questions
from dsgd.show.report.statistics import median_interval
from dsgd.show.report.theory_words import throughput_beside_theory
from dsgd.show.report.winners import only_group
from dsgd.show.report.written_numbers import (
    Answer,
    listed,
    number,
    plural,
    ratio_text,
    sentence,
    with_interval,
)


def of_growth(frames: Frames, found: Sequence[Series]) -> Answer:
    """Return how throughput grows with workers, and the result."""
    unit, asked = frames.seconds, questions(frames, alone(frames.variants))
    ranges = {(one.variants[0][0], one.variants[-1][0]) for one in found}
    growth = [_growth(frames, one, alike=len(ranges) == 1) for one in found]
    workers = ""
    if len(ranges) == 1:
        few_workers, many_workers = ranges.pop()
        workers = f" from {few_workers:,} to {many_workers:,} workers"
    most = max(len(frames.of(variant)) for variant in frames.variants)
    level = f"{round(100 * median_interval(list(range(most))).level)}\N{NO-BREAK SPACE}%"
    basis = (
        f"Medians of {plural(most, 'seed')} with {level} intervals."
        if most > 1
        else "There is one seed per variant, so no interval can be given."
    )
    if len(asked) > 1:
        second = only_group(asked[0])
    else:
        fastest, rate = next(iter(asked[0].ranking("").items()))
        second = f"The highest is {number(rate.centre)} gradients per {unit}, by {fastest}"
        beside = throughput_beside_theory([run.record for run in frames.records])
        second += f"; {beside}." if beside else "."
    return Answer(headline=f"Throughput grows {listed(growth)}{workers}.", points=[second], basis=basis)


def _growth(frames: Frames, one: Series, *, alike: bool) -> str:
    """Return how many times the throughput of the fewest workers that of the most is.

    alike: all series go from as few to as many workers.
    """
    (few_workers, start), *_, (many_workers, end) = one.variants
    before, after = ({r.summary.seed: r.summary.gradients_per_s for r in frames.of(v)} for v in (start, end))
    times = [y / x for seed, x in before.items() if x and (y := after.get(seed))]
    if not times:
        return f"for {one.name} by an unknown factor (no seed in common)"
    text = f"{with_interval(median_interval(times))} times for {one.name}"
    return text if alike else f"{text} ({few_workers:,} to {many_workers:,} workers)"


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
