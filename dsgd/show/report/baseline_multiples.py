"""Values where no level is best: as multiples of a baseline, or between which two they lie; of numbers of
workers, how throughput grows with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dsgd.show.report.frames import Frames
from dsgd.show.report.layout import alone
from dsgd.show.report.measures import Measure
from dsgd.show.report.panels.scaling import Series
from dsgd.show.report.questions import Question, questions
from dsgd.show.report.statistics import Interval, median_interval
from dsgd.show.report.theory_words import throughput_beside_theory
from dsgd.show.report.winners import only_group
from dsgd.show.report.written_numbers import (
    Answer,
    few,
    listed,
    number,
    plural,
    ratio_text,
    ratio_with_interval,
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
    said, unsure = set[str](), list[str]()
    parts = [part for level in others[:most] if (part := _against(question, level, baseline, said, unsure))]
    parts = [listed(parts)] if alone and parts else parts
    if unsure:
        parts.append(f"{listed(unsure)} {'makes' if len(unsure) == 1 else 'make'} {_none(question)}")
    if not parts:
        return f"Nothing can be compared with {baseline}: no run has a value of {question.measure.noun}."
    more = f"; the other {len(others) - most} are in the table" if len(others) > most else ""
    return f"Compared with {baseline}, {'; '.join(parts)}{more}."


def _against(question: Question, level: str, baseline: str, said: set[str], unsure: list[str]) -> str:
    """Return what a level does in each group.

    said: what is multiplied, as the sentence has said it of the levels before. unsure: gets the level, if
    there is one group, in which it makes no difference.
    """
    by, cases = question.measure, len(question.layout.cells)
    never, neither, only, values, same, none = (list[str]() for _ in range(6))
    ratios: dict[str, Interval] = {}  # by group
    for group, cells in question.layout.cells.items():
        if level not in cells or baseline not in cells:
            continue
        own, other = cells[level], cells[baseline]
        place = f"with {group}" if group else ""
        ratio, pair = question.ratio(own, other), question.against(own).get(other)
        value, base = question.median(own), question.median(other)
        if value is None or base is None:
            continue
        if ratio is not None and not 0 < ratio.centre < math.inf:
            ratio = None
        if math.isinf(value.centre) and math.isinf(base.centre):
            neither.append(place)
        elif pair and pair.test == "identical":
            same.append(place)
        elif not question.shown(own, other) and not _all_or_none(question, own, other):
            sized = ratio is not None and ratio.level
            times = f"{ratio_with_interval(ratio)} times" if ratio and sized else _beside(value, base)
            (unsure if cases == 1 else none).append(f"{place or level} ({times})")
        elif math.isinf(value.centre):
            never.append(place)
        elif math.isinf(base.centre):
            only.append(place)
        elif ratio:
            ratios[group] = ratio
        else:
            values.append(f"{_beside(value, base)} {place}".rstrip())
    where = f"in any of {cases} cases" if len(none) == cases > _MOST_GROUPS else few(none)
    neither_of = f"neither {level} nor {baseline} {by.never_plural} {listed(neither)}".rstrip()
    parts = [
        text.rstrip()
        for found, text in (
            (ratios, _multiplied(by, ratios, cases, said) if ratios else ""),
            (values, f"has {by.noun} {listed(values)}"),
            (same, f"has the same {by.noun} with each seed {listed(same)}"),
            (none, f"makes {_none(question)} {where}"),
            (never, f"{by.never} {listed(never)}"),
            (only, f"{by.never_plural} {listed(only)}".rstrip() + f", where {baseline} does not"),
        )
        if found
    ]
    whole = f"{level} {', and '.join(parts)}" if parts else ""
    return ", and ".join(filter(None, [whole, neither_of if neither else ""]))


def _none(question: Question) -> str:
    return f"no difference that {max((pair.seeds for pair in question.pairs), default=0)} seeds show"


def _all_or_none(question: Question, a: str, b: str) -> bool:
    """Whether one gets there with every seed, and the other with none: that is said, and not tested."""
    ends = [{math.isinf(x) for x in question.values[variant].values()} for variant in (a, b)]
    return all(len(found) == 1 for found in ends) and ends[0] != ends[1]


def _multiplied(by: Measure, ratios: Mapping[str, Interval], cases: int, said: set[str]) -> str:
    """Return by how much a level is above the baseline, by group; or below it in all, if there are words."""
    words = by.times + by.target
    if by.fewer and all(ratio.centre < 1 for ratio in ratios.values()):
        words = by.fewer
        ratios = {group: _inverse(ratio) for group, ratio in ratios.items()}
    times = {f"with {group}" if group else "": ratio_with_interval(ratio) for group, ratio in ratios.items()}
    if len(ratios) == cases > 2 and len({ratio_text(ratio.centre) for ratio in ratios.values()}) == 1:
        centre, *_, level_of, n = next(iter(ratios.values()))
        widest = Interval(
            centre, min(x.low for x in ratios.values()), max(x.high for x in ratios.values()), level_of, n
        )
        times = {f"in all {cases} cases": ratio_with_interval(widest)}
    elif len(times) > _MOST_GROUPS:
        ends = (min(ratios, key=lambda g: ratios[g]), max(ratios, key=lambda g: ratios[g]))
        times = {"": " to ".join(f"{ratio_with_interval(ratios[group])} ({group})" for group in ends)}
    parts: list[str] = []
    for place, text in times.items():
        brief = parts or (cases == 1 and words in said)
        parts.append(f"{text} times {place}".rstrip() if brief else f"{words.format(text)} {place}".rstrip())
    said.add(words)
    return listed(parts)


def _inverse(ratio: Interval) -> Interval:
    high = 1 / ratio.low if ratio.low else math.inf
    return ratio._replace(centre=1 / ratio.centre, low=1 / ratio.high, high=high)


def _beside(value: Interval, base: Interval) -> str:
    return f"{with_interval(value)} against {with_interval(base)}"


def value_range(question: Question) -> str:
    """Return the values where neither low nor high is better: each, or between which two they lie."""
    layout = question.layout
    found = [
        (x, level, group)
        for group, cells in layout.cells.items()
        for level, variant in cells.items()
        if (x := question.median(variant)) is not None
    ]
    if not found:
        return f"No run has a value of {question.measure.noun}."
    noun = question.measure.noun[:1].upper() + question.measure.noun[1:]
    if len(layout.cells) == 1 and len(found) <= 2 * _MOST_LEVELS:
        return f"{noun} is {listed([f'{with_interval(x)} with {level}' for x, level, _ in found])}."
    (low, *at_low), (high, *at_high) = min(found), max(found)
    if low.centre == high.centre:
        return f"{noun} is {number(low.centre)} in all cases."
    return (
        f"{noun} goes from {with_interval(low)} ({', '.join(filter(None, at_low))}) to "
        f"{with_interval(high)} ({', '.join(filter(None, at_high))})."
    )
