"""The answer to a question in one sentence: which variant is best and by how much, how many times a baseline
each level has, or between which values all lie. Of several groups a table has the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from dsgd.show.report.measures import Measure
from dsgd.show.report.questions import Question
from dsgd.show.report.statistics import Interval
from dsgd.show.report.written_numbers import (
    few,
    listed,
    number,
    p_value,
    plural,
    ratio_text,
    ratio_with_interval,
    with_interval,
)

_MOST_LEVELS = 3  # that a sentence compares with the baseline; one more rather than "the other 1"
_MOST_GROUPS = 6  # that a sentence names for a level; the table has all
_OF_SEVERAL = {"reaches": "reach", "needs": "need", "ends": "end", "is": "are", "has": "have"}


def sentence(question: Question) -> str:
    """Return the answer to a question."""
    if question.layout.baseline is not None:
        return against_baseline(question, question.layout.baseline)
    if question.measure.low_is_good is None:
        return _range(question)
    return only_group(question) if len(question.layout.cells) == 1 else _by_group(question)


def only_group(question: Question) -> str:
    """Return which level of a single group is best, and by how much."""
    (group,) = question.layout.cells
    ranking, leaders, by = question.ranking(group), question.leaders(group), question.measure
    if math.isinf(ranking[leaders[0]].centre):
        some = [v for v, seeds in question.values.items() if min(seeds.values()) < math.inf]
        named = [question.layout.level(group, v) for v in some]
        return _opened(by.nobody) + (f"; with some seeds, {few(named)} did." if some else ".")
    names, alone = few([question.layout.level(group, v) for v in leaders]), len(leaders) == 1
    values = list(dict.fromkeys(by.said(with_interval(ranking[v])) for v in leaders))
    said = f"{listed(values)}{' each' if len(values) == 1 and not alone else ''}"
    if len(leaders) == len(ranking) > 1:
        return f"{names} are level in {by.noun}: {said}."
    if equal := _named(question, group, tied(question, group)):
        over = few(equal) if len(equal) < len(ranking) - len(leaders) else "any other"
        best = f"{names} {'has' if alone else 'have'} the best median, {said}"
        lead = f"{'its' if alone else 'their'} lead over {over} is not significant"
        return f"No clear winner in {by.noun}: {best}, but {lead}{_next(question, group)}."
    verb, _, rest = by.wins.partition(" ")
    return f"{names} {verb if alone else _OF_SEVERAL[verb]} {rest.format(said)}{_next(question, group)}."


def tied(question: Question, group: str) -> list[str]:
    """Return the variants over which the best of a group have no significant lead with these seeds."""
    leaders = question.leaders(group)
    by_leader = [(first, pairs) for first in leaders if (pairs := question.against(first))]
    return [
        v
        for v in question.ranking(group)
        if v not in leaders
        and any(v not in pairs or not question.shown(v, first) for first, pairs in by_leader)
    ]


def largest_difference(question: Question) -> float:
    """Return the logarithm of the largest ratio between two medians that the seeds show to differ; 0 if none
    does, infinite where one of the two never gets there.
    """
    found = [0.0]
    for variants in question.scenarios.values():
        centres = {v: x.centre for v in variants if (x := question.median(v)) is not None and x.centre > 0}
        for a, b in combinations(centres, 2):
            if question.shown(a, b) and centres[a] != centres[b]:
                found.append(abs(math.log(centres[a]) - math.log(centres[b])))
    return max(found)


def _named(question: Question, group: str, variants: Sequence[str]) -> list[str]:
    return [question.layout.compared.short(question.layout.level(group, v)) for v in variants]


def _next(question: Question, group: str) -> str:
    """Return how far the next one is behind over which there is a lead: by the ratio on common seeds, else by
    that of the medians.
    """
    ranking, first, equal = question.ranking(group), question.leaders(group)[0], tied(question, group)
    second = next((v for v in ranking if v not in (*question.leaders(group), *equal)), None)
    if second is None:
        return ""
    ratio, pair = question.ratio(second, first), question.against(first).get(second)
    name = question.layout.level(group, second)
    sure = f" ({p_value(pair.corrected_p)})" if pair and pair.corrected_p is not None else ""
    if math.isinf(ranking[second].centre):
        does = "no other gets there in the median of its seeds"
        return f"; {f'{name} {question.measure.never}' if equal else does}{sure}"
    if ratio is None:
        return f"; the next is {name}, {question.measure.said(with_interval(ranking[second]))}"
    if ratio_text(ratio.centre) == "1":
        return f"; {name} is level with it"
    if (ratio.centre > 1) != bool(question.measure.low_is_good):  # the medians and the pairs disagree
        return ""
    times = question.measure.times.format(ratio_with_interval(ratio))
    return f"; {name}{'' if equal else ', the next,'} {times}{sure}"


def _by_group(question: Question) -> str:
    """Return the best level of each group, groups with the same one together."""
    layout, by = question.layout, question.measure
    winners: dict[str, list[str]] = {}
    nobody, unclear = [], []
    for group in layout.cells:
        ranking = question.ranking(group)
        if not ranking:
            continue
        leaders = question.leaders(group)
        if math.isinf(ranking[leaders[0]].centre):
            nobody.append(group)
            continue
        equal = _named(question, group, tied(question, group))
        unclear += [group] if equal else []
        over = f" (no significant lead over {few(equal, 2)})" if equal else ""
        level = " (level)" if len(leaders) > 1 else ""
        winners.setdefault(f"{listed(_named(question, group, leaders))}{level}", []).append(f"{group}{over}")
    if not winners:
        return f"{_opened(by.nobody)}."
    never = f"; with {listed(nobody)}, {by.nobody}" if nobody else ""
    if len(unclear) == len(layout.cells) and not layout.compared.option:
        return f"By {by.noun}, there is no clear winner in any case."
    every = len(winners) == 1 and len(layout.cells) > 2 and not unclear and not nobody
    best = [
        f"{level} {f'in all {len(groups)} cases' if every else f'with {few(groups, _MOST_GROUPS)}'}"
        for level, groups in winners.items()
    ]
    option = f"best {layout.compared.option}".rstrip()
    return f"By {by.noun}, the {option} is {'; '.join(best)}{never}."


def _range(question: Question) -> str:
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
    noun = _opened(question.measure.noun)
    if len(layout.cells) == 1 and len(found) <= 2 * _MOST_LEVELS:
        return f"{noun} is {listed([f'{with_interval(x)} with {level}' for x, level, _ in found])}."
    (low, *at_low), (high, *at_high) = min(found), max(found)
    if low.centre == high.centre:
        return f"{noun} is {number(low.centre)} in all cases."
    return (
        f"{noun} goes from {with_interval(low)} ({', '.join(filter(None, at_low))}) to "
        f"{with_interval(high)} ({', '.join(filter(None, at_high))})."
    )


# --- a baseline


def against_baseline(question: Question, baseline: str) -> str:
    """Return how many times the baseline's value each other level has, and which make no difference."""
    layout = question.layout
    others = [level for level in layout.compared.levels if level != baseline]
    if len(others) > _MOST_LEVELS and len(layout.cells) == 1 and not layout.compared.numbers:
        (group,) = layout.cells  # the best are named
        places = {layout.level(group, v): place for place, v in enumerate(question.ranking(group))}
        others.sort(key=lambda level: places.get(level, len(places)))
    most = _MOST_LEVELS + (len(others) == _MOST_LEVELS + 1)
    said, unsure = set[str](), list[str]()
    parts = [part for level in others[:most] if (part := _against(question, level, baseline, said, unsure))]
    parts = [listed(parts)] if len(layout.cells) == 1 and parts else parts
    if unsure:
        seeds = max((pair.seeds for pair in question.pairs), default=0)
        verb = "shows" if len(unsure) == 1 else "show"
        parts.append(f"{listed(unsure)} {verb} no clear difference with {plural(seeds, 'seed')}")
    if not parts:
        return f"Nothing can be compared with {baseline}: no run has a value of {question.measure.noun}."
    more = f"; the other {len(others) - most} are in the table" if len(others) > most else ""
    return f"Compared with {baseline}, {'; '.join(parts)}{more}."


def _against(question: Question, level: str, baseline: str, said: set[str], unsure: list[str]) -> str:
    """Return what a level does to the baseline's value, in the groups where seeds show that it does anything.

    said: what is multiplied, as the sentence has said it of the levels before. unsure: gets the level, with
    the groups in which it makes no difference.
    """
    by, cases = question.measure, len(question.layout.cells)
    ratios: dict[str, Interval] = {}
    found: dict[str, list[str]] = {}  # groups by what else there is to say of them
    none, neither = dict[str, str](), list[str]()
    for group, cells in question.layout.cells.items():
        own, other = cells.get(level, ""), cells.get(baseline, "")
        value, base = question.median(own), question.median(other)
        if value is None or base is None:
            continue
        ratio, pair = question.ratio(own, other), question.against(own).get(other)
        beside = f"{with_interval(value)} against {with_interval(base)}"
        ratio = ratio if ratio is not None and 0 < ratio.centre < math.inf else None
        if math.isinf(value.centre) and math.isinf(base.centre):
            neither.append(group)
            continue
        elif pair and pair.test == "identical":
            does = f"has the same {by.noun} with each seed"
        elif not question.shown(own, other) and not _all_or_none(question, own, other):
            none[group] = f"{ratio_with_interval(ratio)} times" if ratio and ratio.level else beside
            continue
        elif math.isinf(value.centre):
            does = by.never
        elif math.isinf(base.centre):
            does = f"{by.never_plural}, where {baseline} does not"
        elif ratio:
            ratios[group] = ratio
            continue
        else:
            does = f"has {by.noun} {beside}"
        found.setdefault(does, []).append(group)
    if none:
        every = "in either case" if cases == 2 else f"in any of {cases} cases"
        where = few([f"with {group}" for group in none]) if len(none) < cases else every
        unsure.append(f"{level} ({', '.join(none.values())})" if cases == 1 else f"{level} {where}")
    parts = [_multiplied(by, ratios, cases, said)] if ratios else []
    parts += [f"{does} {_where(groups, cases)}".rstrip() for does, groups in found.items()]
    whole = f"{level} {', and '.join(parts)}" if parts else ""
    both = f"neither {level} nor {baseline} {by.never_plural} {_where(neither, cases)}" if neither else ""
    return ", and ".join(filter(None, [whole, both.rstrip()]))


def _all_or_none(question: Question, a: str, b: str) -> bool:
    """Whether one gets there with every seed, and the other with none: that is said, and not tested."""
    ends = [{math.isinf(x) for x in question.values[variant].values()} for variant in (a, b)]
    return all(len(found) == 1 for found in ends) and ends[0] != ends[1]


def _multiplied(by: Measure, ratios: dict[str, Interval], cases: int, said: set[str]) -> str:
    """Return by how much a level is above the baseline; or below it in all groups, if there are words.

    Of several groups it has the least and the largest.
    """
    words = by.times + by.target
    if by.fewer and all(ratio.centre < 1 for ratio in ratios.values()):
        words = by.fewer
        ratios = {group: _inverse(ratio) for group, ratio in ratios.items()}
    least, most = (end(ratios, key=lambda group: ratios[group].centre) for end in (min, max))
    text, where = ratio_with_interval(ratios[least]), f"with {least}" if least else ""
    if len(ratios) == cases > 2 and ratio_text(ratios[least].centre) == ratio_text(ratios[most].centre):
        low, high = min(x.low for x in ratios.values()), max(x.high for x in ratios.values())
        text = ratio_with_interval(ratios[least]._replace(low=low, high=high))
        where = f"in all {cases} cases"
    elif len(ratios) > 1:
        text, where = f"{text} ({least}) to {ratio_with_interval(ratios[most])} ({most})", ""
    brief = cases == 1 and words in said
    said.add(words)
    return f"{f'{text} times' if brief else words.format(text)} {where}".rstrip()


def _inverse(ratio: Interval) -> Interval:
    high = 1 / ratio.low if ratio.low else math.inf
    return ratio._replace(centre=1 / ratio.centre, low=1 / ratio.high, high=high)


def _where(groups: Sequence[str], cases: int) -> str:
    if cases == 1:
        return ""
    return f"in all {cases} cases" if len(groups) == cases else f"with {few(list(groups))}"


def _opened(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
