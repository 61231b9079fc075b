"""The answer to an experiment's question: one sentence, then how sure it is and what else is worth saying."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dsgd.records.reader import Record
from dsgd.report.choices import of_tuning
from dsgd.report.frames import Frames
from dsgd.report.layout import Factor, alone
from dsgd.report.measures import BEST
from dsgd.report.panels import seconds
from dsgd.report.panels.scaling import Series, series
from dsgd.report.parts import Answer, Table
from dsgd.report.questions import Question, differs, identical, questions, until
from dsgd.report.statistics import SIGNIFICANT, Interval, Pair, median_interval
from dsgd.report.theory_words import beside_theory, throughput_beside_theory
from dsgd.report.words import confidence, few, listed, number, p_value, percent, plural, with_interval

_MOST_POINTS = 6  # groups with a sentence; the table has all
_MOST_LEVELS = 3  # that a headline compares with the baseline


def answer(frames: Frames) -> Answer:
    """Return the answer to what the experiment's file asks, or else to which variant is best."""
    if len(frames.variants) == 1:
        headline, theory = _one_variant(frames)
        return Answer(headline=headline, points=[theory])
    if (frames.asked.measure or "").startswith(BEST):
        return of_tuning(frames)
    found = series(frames)
    grown = sum(len(one.variants) for one in found) == len(frames.variants)
    if not frames.asked and grown and any(len(one.variants) > 2 for one in found):
        return _scaling(frames, found)
    first, *others = questions(frames)
    points = [] if first.layout.baseline else _points(first)
    points += [_headline(question) for question in others]
    if not others and not frames.asked:
        points.append(_price(frames))
    return Answer(
        headline=" ".join(filter(None, [first.opening, _headline(first)])),
        points=[*points, *_at_the_edge(first), *_identical(frames, first), *_unresolved(frames, first)],
        table=_table(frames, first),
        basis=_basis(first),
    )


def _headline(question: Question) -> str:
    """Return the answer in one sentence."""
    if question.layout.baseline is not None:
        return _against_baseline(question, question.layout.baseline)
    if question.measure.low_is_good is None:
        return _range(question)
    if len(question.layout.cells) == 1:
        return _only_group(question)
    return _by_group(question)


# --- which level is best


def _only_group(question: Question) -> str:
    (group,) = question.layout.cells
    ranking, by = question.ranking(group), question.measure
    first = next(iter(ranking))
    best = ranking[first]
    if math.isinf(best.centre):
        some = [v for v, seeds in question.values.items() if min(seeds.values()) < math.inf]
        named = [question.layout.level(group, v) for v in some]
        nobody = by.nobody[:1].upper() + by.nobody[1:]
        return _sentence(nobody + (f"; with some seeds, {few(named)} did" if some else ""))
    name, equal = question.layout.level(group, first), _tied(question, group)
    said = f"{name} {by.wins}, {by.said(number(best.centre))}"
    if not question.against(first) or not equal:
        return _sentence(said + _next(question, group))
    rivals = few([question.layout.compared.short(question.layout.level(group, v)) for v in equal])
    others = rivals if len(equal) < len(ranking) - 1 else "any other"
    return _sentence(f"No clear winner: {said}, but its lead over {others} is not significant")


def _by_group(question: Question) -> str:
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
        best = f"By {by.noun}, the best {layout.compared.option} is {listed(parts)}"
        return _sentence("; ".join(filter(None, [best, never])))
    if not clear and not unclear:
        return _sentence(by.nobody[:1].upper() + by.nobody[1:])
    if len(unclear) == len(layout.cells):
        return _sentence(f"By {by.noun}, there is no clear winner in any case")
    parts = [f"{level} {by.wins} with {listed(groups)}" for level, groups in clear.items()]
    if unclear:
        leads = [f"{group} ({level} leads)" for group, level in unclear.items()]
        parts.append(f"there is no clear winner with {listed(leads)}")
    return _sentence("; ".join(filter(None, [*parts, never])))


def _with_ties(question: Question, level: str, group: str) -> str:
    """Return a group's name, with the levels over which the best has no significant lead."""
    equal = [question.layout.compared.short(question.layout.level(group, v)) for v in _tied(question, group)]
    if not equal or not question.against(question.layout.cells[group][level]):
        return group
    if len(equal) > 2:
        return f"{group} (no significant lead over {len(equal)} others)"
    return f"{group} (no significant lead over {listed(equal)})"


def _points(question: Question) -> list[str]:
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
    return [variant for variant in ranking if variant != first and not differs(pairs.get(variant))]


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
    if (text := ratio_text(ratio.centre)) == "1":
        return f"; {name} is level with it"
    if (ratio.centre > 1) != bool(question.measure.low_is_good):  # the medians and the pairs disagree
        return ""
    return f"; {name}, the next, {question.measure.times.format(text)}"


# --- how many times the baseline


def _against_baseline(question: Question, baseline: str) -> str:
    layout = question.layout
    others = [level for level in layout.compared.levels if level != baseline]
    alone = len(layout.cells) == 1
    parts = [
        part
        for place, level in enumerate(others[:_MOST_LEVELS])
        if (part := _against(question, level, baseline, brief=alone and place > 0))
    ]
    more = f"; the other {len(others) - _MOST_LEVELS} are in the table" if len(others) > _MOST_LEVELS else ""
    return _sentence(f"Compared with {baseline}, {listed(parts) if alone else '; '.join(parts)}{more}")


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


def _range(question: Question) -> str:
    """Return the values where neither low nor high is better: each, or between which two they lie."""
    layout = question.layout
    found = [
        (x.centre, level, group)
        for group, cells in layout.cells.items()
        for level, variant in cells.items()
        if (x := question.median(variant)) is not None
    ]
    if not found:
        return _sentence(f"No run has a value of {question.measure.noun}")
    noun = question.measure.noun[:1].upper() + question.measure.noun[1:]
    if len(layout.cells) == 1 and len(found) <= 2 * _MOST_LEVELS:
        return _sentence(f"{noun} is {listed([f'{number(x)} with {level}' for x, level, _ in found])}")
    (low, *at_low), (high, *at_high) = min(found), max(found)
    if low == high:
        return _sentence(f"{noun} is {number(low)} in all cases")
    return _sentence(
        f"{noun} goes from {number(low)} ({', '.join(filter(None, at_low))}) to "
        f"{number(high)} ({', '.join(filter(None, at_high))})"
    )


# --- what is worth saying beside it


def _at_the_edge(question: Question) -> list[str]:
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


def _identical(frames: Frames, question: Question) -> list[str]:
    """Return which variants are the same runs under other names."""
    return [f"{few(same, 6)} are identical runs: same weights, same times." for same in identical(frames)]


def _unresolved(frames: Frames, question: Question) -> list[str]:
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


def _table(frames: Frames, question: Question) -> Table | None:
    """Return the measure by group and level; None where a sentence says it all."""
    layout = question.layout
    if len(layout.cells) == 1 and not frames.asked.compare:
        return None
    baseline, levels = layout.baseline, list(layout.compared.levels)
    note = f"{question.measure.label}, medians over seeds"
    if baseline is not None:
        levels.remove(baseline)
        levels.insert(0, baseline)
        note += f"; ×: how many times that of {baseline}, with its interval"

    def cell(cells: Mapping[str, str], level: str) -> str:
        value = question.median(cells[level]) if level in cells else None
        if value is None:
            return "–"
        ratio = (
            question.ratio(cells[level], cells[baseline])
            if baseline is not None and level != baseline and baseline in cells
            else None
        )
        if ratio is None or not math.isfinite(ratio.centre):
            return number(value.centre)
        wide = ratio.level and ratio.low < ratio.high
        interval = f" [{number(ratio.low, 2)}, {number(ratio.high, 2)}]" if wide else ""
        return f"{number(value.centre)}\n× {ratio_text(ratio.centre)}{interval}"

    grouped, compared = layout.grouped, layout.compared
    best = {}
    for row, group in enumerate(layout.cells):
        ranking = question.ranking(group)
        if question.measure.low_is_good is not None and baseline is None and ranking:
            first = next(iter(ranking))
            if math.isfinite(ranking[first].centre):
                best[row] = levels.index(layout.level(group, first))
    if len(layout.cells) == 1:
        (cells,) = layout.cells.values()
        return Table(
            title="",
            note=f"{note[0].upper()}{note[1:]}.",
            headings=[compared.option or "variant", question.measure.label],
            rows=[[compared.short(level), cell(cells, level)] for level in levels],
            best={(column, 1) for column in best.values()},
        )
    return Table(
        title="",
        note=f"{note[0].upper()}{note[1:]}.",
        headings=[_corner(grouped, compared), *(compared.short(level) for level in levels)],
        rows=[
            [grouped.short(group), *(cell(cells, level) for level in levels)]
            for group, cells in layout.cells.items()
        ],
        best={(row, 1 + column) for row, column in best.items()},
    )


def _corner(rows: Factor, columns: Factor) -> str:
    return " \\ ".join(filter(None, [rows.option, columns.option]))


def _basis(question: Question) -> str:
    """Return how sure it is: seeds, intervals, tests."""
    if not question.pairs:
        return f"{_untested(question)}."
    n = max(map(len, question.values.values()))
    level = median_interval(list(range(n))).level
    text = f"Medians of {plural(n, 'seed')} with {round(100 * level)}\N{NO-BREAK SPACE}% intervals"
    if question.layout.baseline is not None:
        return f"{text}, ratios on common seeds."
    if question.measure.low_is_good is None:
        return f"{text}."
    if len(question.layout.cells) == 1 and (test := _test_of_the_lead(question)):
        return f"{text}; {test}."
    holm = f"p < {SIGNIFICANT:g} after Holm's correction for the pairs of {_each(question)}"
    return f"{text}; a lead is significant if {holm}."


def _each(question: Question) -> str:
    return "each case" if len(question.layout.cells) > 1 else "variants"


def _test_of_the_lead(question: Question) -> str:
    (group,) = question.layout.cells
    ranking = list(question.ranking(group))
    pair = question.against(ranking[0]).get(ranking[1]) if len(ranking) > 1 else None
    if pair is None:
        return ""
    if pair.corrected_p is None:
        return "each of the first two has one value, whatever the seed, so there is nothing to test"
    corrected = f"after Holm's correction for {plural(question.tested, 'pair')}"
    over = question.layout.level(group, ranking[1])
    return f"for the lead over {over}, {p_value(pair.corrected_p)} ({test_name(pair)}, {corrected})"


def _untested(question: Question) -> str:
    """Return why there is neither an interval nor a test, or no test only."""
    if all(len(seeds) == 1 for seeds in question.values.values()):
        return "There is one seed per variant, so no interval can be given and it may be chance"
    return "No two variants share two seeds, so nothing can be tested and it may be chance"


def _sentence(text: str) -> str:
    """Return a sentence. One that begins with a variant's name begins with that, as it is spelled."""
    return f"{text}."


def ratio_text(ratio: float) -> str:
    """Return a ratio as a sentence has it: two digits, or enough to tell it from 1.

    >>> ratio_text(2.46), ratio_text(1.0041), ratio_text(0.333), ratio_text(1.0), ratio_text(123.4)
    ('2.5', '1.004', '0.33', '1', '123')
    """
    return number(ratio, 3 if ratio >= 100 else 2 if number(ratio, 2) != "1" else 4)


def test_name(pair: Pair) -> str:
    """Return the name of the test."""
    names = {"t": "paired t-test", "rank": "rank test", "identical": "identical with each seed"}
    return names.get(pair.test, pair.test)


def _price(frames: Frames) -> str:
    """Return what the throughput costs by variant: idleness or staleness."""
    parts = []
    for variant in frames.variants[:4]:
        records = frames.of(variant)
        idle = median_interval([record.summary.idle_share for record in records]).centre
        stale = [r.summary.staleness.mean for r in records if r.summary.staleness.mean is not None]
        updates = f", gradients {number(median_interval(stale).centre)} updates stale" if stale else ""
        parts.append(f"{percent(idle)} idle{updates} ({variant})")
    return f"The cost: {'; '.join(parts)}."


def _one_variant(frames: Frames) -> list[str]:
    unit, records = seconds(frames), [run.record for run in frames.records]
    return [_how_it_went(records, frames.target_loss, unit), beside_theory(records, unit)]


def _how_it_went(records: Sequence[Record], target: float | None, unit: str) -> str:
    one = records[0].summary
    if len(records) == 1 and one.stopped_by in ("failed", "diverged", "interrupted"):
        verb = "was interrupted" if one.stopped_by == "interrupted" else one.stopped_by
        error = f": {one.error}" if one.error else ""
        return f"The run {verb} after {plural(one.updates, 'update')}{error}."
    gradients = median_interval([record.summary.gradients for record in records]).centre
    losses = [loss for record in records if (loss := record.summary.eval.loss) is not None]
    if target is not None and losses:
        times = median_interval([until(record, target, lambda e: e.t_s) for record in records])
        if math.isinf(times.centre):
            return (
                f"Loss {target:g} is not reached within {number(gradients, 6)} gradients ({_detail(times)})."
            )
        return f"Loss {target:g} is reached after {number(times.centre)} {unit} ({_detail(times)})."
    if losses:
        at_end = median_interval(losses)
        clock_s = median_interval([record.summary.clock_s for record in records]).centre
        after = f"after {number(gradients, 6)} gradients and {number(clock_s)} {unit}"
        return f"The loss on held-out data is {number(at_end.centre)} {after} ({_detail(at_end)})."
    rates = [rate for record in records if (rate := record.summary.gradients_per_s) is not None]
    throughput = median_interval(rates or [0.0])
    return f"The workers compute {number(throughput.centre)} gradients per {unit} ({_detail(throughput)})."


def _detail(interval: Interval) -> str:
    if interval.n == 1:
        return "one seed, so no interval can be given"
    return f"median of {interval.n} seeds, {confidence(interval)}"


def _scaling(frames: Frames, found: Sequence[Series]) -> Answer:
    """Return how throughput grows with workers, and the result."""
    unit, asked = seconds(frames), questions(frames, alone(frames.variants))
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
        second = _headline(asked[0])
    else:
        fastest, rate = next(iter(asked[0].ranking("").items()))
        second = f"The highest is {number(rate.centre)} gradients per {unit}, by {fastest}"
        beside = throughput_beside_theory([run.record for run in frames.records])
        second += f"; {beside}." if beside else "."
    return Answer(headline=f"Throughput grows {listed(growth)}{workers}.", points=[second], basis=basis)


def _growth(frames: Frames, one: Series, *, alike: bool) -> str:
    """Return how many times the throughput of the fewest workers that of the most is; alike: in all series."""
    (few_workers, start), *_, (many_workers, end) = one.variants
    before, after = ({r.summary.seed: r.summary.gradients_per_s for r in frames.of(v)} for v in (start, end))
    times = [y / x for seed, x in before.items() if x and (y := after.get(seed))]
    if not times:
        return f"for {one.name} by an unknown factor (no seed in common)"
    text = f"{with_interval(median_interval(times))} times for {one.name}"
    return text if alike else f"{text} ({few_workers:,} to {many_workers:,} workers)"
