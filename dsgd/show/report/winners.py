"""Which level is best, in sentences: in a single group, and in each of several."""

from __future__ import annotations

import math

from dsgd.show.report.comparable import identical
from dsgd.show.report.frames import Frames
from dsgd.show.report.questions import Question
from dsgd.show.report.written_numbers import (
    few,
    listed,
    number,
    ratio_text,
    ratio_with_interval,
    with_interval,
)

_MOST_POINTS = 6  # groups with a sentence; the table has all


def only_group(question: Question) -> str:
    """Return which level of a single group is best, and by how much."""
    (group,) = question.layout.cells
    ranking, by = question.ranking(group), question.measure
    first = next(iter(ranking))
    best = ranking[first]
    if math.isinf(best.centre):
        some = [v for v, seeds in question.values.items() if min(seeds.values()) < math.inf]
        named = [question.layout.level(group, v) for v in some]
        nobody = by.nobody[:1].upper() + by.nobody[1:]
        return nobody + (f"; with some seeds, {few(named)} did." if some else ".")
    name, equal = question.layout.level(group, first), _tied(question, group)
    said = f"{name} {by.wins}, {by.said(number(best.centre))}"
    if not question.against(first) or not equal:
        return f"{said}{_next(question, group)}."
    level_with = [v for v in equal if ranking[v].centre == best.centre]
    if level_with:
        said += f" ({listed([question.layout.level(group, v) for v in level_with])}: the same)"
    rivals = few([question.layout.compared.short(question.layout.level(group, v)) for v in equal])
    others = rivals if len(equal) < len(ranking) - 1 else "any other"
    return f"No clear winner: {said}, but its lead over {others} is not significant."


def by_group(question: Question) -> str:
    """Return the best level of each group, groups with the same one together."""
    layout, by = question.layout, question.measure
    clear: dict[str, list[str]] = {}
    unclear: dict[str, str] = {}
    nobody = []
    for group in layout.cells:
        ranking = question.ranking(group)
        first = next(iter(ranking), None)
        if first is None:
            continue
        level = layout.level(group, first)
        if math.isinf(ranking[first].centre):
            nobody.append(group)
        elif question.against(first) and _tied(question, group) and not layout.compared.option:
            unclear[group] = level
        else:
            clear.setdefault(level, []).append(group)
    never = f"with {listed(nobody)}, {by.nobody}" if nobody else ""
    if layout.compared.option and clear:
        parts = [
            f"{layout.compared.short(level)} with {listed([_with_ties(question, level, g) for g in groups])}"
            for level, groups in clear.items()
        ]
        (level, groups), *others = clear.items()
        if (
            not others
            and len(groups) == len(layout.cells) > 2
            and not any(_tied(question, g) for g in groups)
        ):
            parts = [f"{layout.compared.short(level)} in all {len(groups)} cases"]
        best = f"By {by.noun}, the best {layout.compared.option} is {listed(parts)}"
        return "; ".join(filter(None, [best, never])) + "."
    if not clear and not unclear:
        return f"{by.nobody[:1].upper()}{by.nobody[1:]}."
    if len(unclear) == len(layout.cells):
        return f"By {by.noun}, there is no clear winner in any case."
    parts = [f"{level} {by.wins} {_with(groups, question)}" for level, groups in clear.items()]
    if unclear:
        leads = [f"{group} ({level} leads)" for group, level in unclear.items()]
        parts.append(f"there is no clear winner with {listed(leads)}")
    return "; ".join(filter(None, [*parts, never])) + "."


def _with(groups: list[str], question: Question) -> str:
    """Return in which groups, as words: that it is all of them, or some of many by their names."""
    if len(groups) == len(question.layout.cells) > 2:
        return f"in all {len(groups)} cases"
    return f"with {few(groups, _MOST_POINTS)}"


def _with_ties(question: Question, level: str, group: str) -> str:
    """Return a group's name, with the levels over which the best has no significant lead."""
    equal = [question.layout.compared.short(question.layout.level(group, v)) for v in _tied(question, group)]
    if not equal or not question.against(question.layout.cells[group][level]):
        return group
    if len(equal) > 2:
        return f"{group} (no significant lead over {len(equal)} others)"
    return f"{group} (no significant lead over {listed(equal)})"


def of_each_group(question: Question) -> list[str]:
    """Return each group's winner with its number, where there are several groups."""
    layout, by = question.layout, question.measure
    if by.low_is_good is None or len(layout.cells) == 1:
        return []
    points = []
    for group in layout.cells:
        ranking = question.ranking(group)
        best = next(iter(ranking.values()), None)
        if best is None or math.isinf(best.centre):
            continue
        name = layout.level(group, next(iter(ranking)))
        said = f"{group}: {name} {by.wins}, {by.said(with_interval(best))}"
        equal = _tied(question, group)
        if equal and question.pairs:
            named = few([layout.level(group, v) for v in equal])
            points.append(f"{said}; its lead over {named} is not significant.")
        else:
            points.append(f"{said}{_next(question, group)}.")
    if len(points) > _MOST_POINTS:
        return [*points[:_MOST_POINTS], f"{len(points) - _MOST_POINTS} more are in the table."]
    return points


def _tied(question: Question, group: str) -> list[str]:
    """Return the variants over which the first has no significant lead with these seeds."""
    ranking = question.ranking(group)
    first = next(iter(ranking))
    pairs = question.against(first)
    return [v for v in ranking if v != first and (v not in pairs or not question.shown(v, first))]


def _next(question: Question, group: str) -> str:
    """Return how far the next one is behind: by the ratio on common seeds, else by that of the medians."""
    ranking = question.ranking(group)
    if len(ranking) < 2:
        return ""
    first, second, *_ = ranking
    if math.isinf(ranking[second].centre):
        return "; no other gets there in the median of its seeds"
    ratio = question.ratio(second, first)
    name = question.layout.level(group, second)
    if ratio is None:
        return f"; the next is {name}, {question.measure.said(number(ranking[second].centre))}"
    if ratio_text(ratio.centre) == "1":
        return f"; {name} is level with it"
    if (ratio.centre > 1) != bool(question.measure.low_is_good):  # the medians and the pairs disagree
        return ""
    return f"; {name}, the next, {question.measure.times.format(ratio_with_interval(ratio))}"


def at_the_edge(question: Question) -> list[str]:
    """Return that the best level is the largest or smallest compared, so that a better one may lie beyond.

    A smallest level of 0 or 1 is where most options end.
    """
    layout, numbers = question.layout, question.layout.compared.numbers
    if len(numbers) < 3 or layout.baseline is not None or question.measure.low_is_good is None:
        return []
    found: dict[str, list[str]] = {}
    for group in layout.cells:
        ranking = question.ranking(group)
        best = next(iter(ranking), None)
        if best is None or math.isinf(ranking[best].centre):
            continue
        level = layout.level(group, best)
        if numbers[level] == max(numbers.values()) < math.inf:
            found.setdefault(f"{level} is the largest compared", []).append(group)
        elif numbers[level] == min(numbers.values()) and numbers[level] not in (0, 1):
            found.setdefault(f"{level} is the smallest compared", []).append(group)
    many = len(layout.cells) > 1
    return [
        f"{text}{f' (with {listed(groups)})' if many else ''}; a better one may lie beyond."
        for text, groups in found.items()
    ]


def unresolved(frames: Frames, question: Question) -> list[str]:
    """Return the leads that are no longer than the distance between two evaluations."""
    layout, by = question.layout, question.measure
    same = identical(frames)
    leads = []
    for group in layout.cells:
        ranking = list(question.ranking(group))
        if by.place is None or len(ranking) < 2:
            continue
        first, second = ranking[:2]
        if question.resolved(first, second) or any(first in own and second in own for own in same):
            continue
        a, b = layout.level(group, first), layout.level(group, second)
        leads.append(f"{a} over {b}{f' with {group}' if group else ''}")
    if not leads:
        return []
    every = min(int(run.record.config.get("eval_every", 0)) for run in frames.records)
    finer = f"; --set eval_every={max(1, every // 5)} would resolve it" if every > 1 else ""
    return [f"The lead of {few(leads)} is at most one evaluation interval{finer}."]
