"""The answer to an experiment's question, in two sentences with their numbers and their confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dsgd.records.reader import Record
from dsgd.report.frames import Frames
from dsgd.report.panels import seconds
from dsgd.report.panels.scaling import Series, series
from dsgd.report.questions import Question, differs, questions, until
from dsgd.report.statistics import SIGNIFICANT, Interval, Pair, median_interval
from dsgd.report.theory_words import beside_theory, throughput_beside_theory
from dsgd.report.words import confidence, few, listed, number, p_value, percent, plural

_MOST_SCENARIOS = 6
_DETERMINISTIC = "deterministic: each has one value, whatever the seed, so there is no p"
_ONE_SEED = "there is one seed per variant, so no interval can be given and it may be chance"
_NO_TEST = "so nothing can be tested and it may be chance"


def answer(frames: Frames) -> list[str]:
    """Return the two sentences."""
    if len(frames.variants) == 1:
        return _one_variant(frames)
    found = series(frames)
    if sum(len(one.variants) for one in found) == len(frames.variants) and any(
        len(one.variants) > 2 for one in found
    ):
        return _scaling(frames, found)
    asked = questions(frames)
    sentences = [_sentence(question) for question in asked]
    if len(sentences) == 1:
        sentences.append(_price(frames))
    return sentences


def _sentence(question: Question) -> str:
    """Return which variant is ahead, by how much, and with what confidence."""
    if len(question.scenarios) > 1:
        return _sentence_of_scenarios(question)
    (scenario,) = question.scenarios
    ranking = question.ranking(scenario)
    first = next(iter(ranking))
    best, pairs = ranking[first], question.against(first)
    if math.isinf(best.centre):
        some = [variant for variant, seeds in question.values.items() if min(seeds.values()) < math.inf]
        return _begun(question, question.nobody + (f"; with some seeds, {few(some)} did" if some else ""))
    said = f"{first}, {question.value(number(best.centre))}"
    if not pairs:
        return _begun(question, f"{question.winner} {said}{_gap(question, ranking)}; {_untested(question)}")
    of_seeds = f"median of {plural(best.n, 'seed')}, {confidence(best)}"
    corrected = f"Holm's correction for {plural(question.tested, 'pair')}"
    equal = _not_told_apart(question, ranking)
    if not equal:
        pair = pairs[list(ranking)[1]]
        test = (
            _DETERMINISTIC
            if pair.corrected_p is None
            else f"{p_value(pair.corrected_p)}, {test_name(pair)}, {corrected}"
        )
        return _begun(question, f"{question.winner} {said} ({of_seeds}){_gap(question, ranking)} ({test})")
    behind = [variant for variant in ranking if variant != first and variant not in equal]
    least = min((p for v in equal if v in pairs and (p := pairs[v].corrected_p) is not None), default=1.0)
    others = few(equal) if behind else "any other variant"
    rest = f"; {question.lost}: {few(behind)}" if behind else ""
    return _begun(
        question,
        f"there is no clear winner: {question.winner} {said} ({of_seeds}), but its lead over "
        f"{others} is not significant with these seeds ({p_value(least).replace('=', '≥')} after "
        f"{corrected}){rest}",
    )


def _sentence_of_scenarios(question: Question) -> str:
    parts = []
    for scenario in list(question.scenarios)[:_MOST_SCENARIOS]:
        ranking = {name.removesuffix(f" {scenario}"): x for name, x in question.ranking(scenario).items()}
        first = next(iter(ranking))
        best = ranking[first]
        if math.isinf(best.centre):
            parts.append(f"under {scenario} {question.nobody}")
            continue
        interval = f" ({number(best.low)} to {number(best.high)})" if best.level else ""
        said = f"under {scenario} {first}, {question.value(number(best.centre))}{interval}"
        equal = _not_told_apart(question, question.ranking(scenario))
        if not question.pairs or not equal:
            said += _gap(question, question.ranking(scenario), scenario)
        else:
            said += (
                f", not significantly ahead of {few([name.removesuffix(f' {scenario}') for name in equal])}"
            )
        parts.append(said)
    more = len(question.scenarios) - len(parts)
    if more > 0:
        parts.append(f"{more} more in the tables")
    if question.pairs:
        n = max(map(len, question.values.values()))
        level = median_interval(list(range(n))).level
        intervals = f"their {round(100 * level)}\N{NO-BREAK SPACE}% intervals"
        told = f"a lead is significant where p < {SIGNIFICANT:g} after Holm's correction within each scenario"
        if question.tested < len(question.pairs):
            told += f", or {_DETERMINISTIC}"
        basis = f"medians of {plural(n, 'seed')} with {intervals}, {told}"
    else:
        basis = _untested(question)
    return _begun(question, f"{question.winner} {'; '.join(parts)} ({basis})")


def _untested(question: Question) -> str:
    """Return why there is neither an interval nor a test, or no test only."""
    if all(len(seeds) == 1 for seeds in question.values.values()):
        return _ONE_SEED
    whose = (
        "no other variant shares two seeds with it" if question.pairs else "no two variants share two seeds"
    )
    return f"{whose}, {_NO_TEST}"


def _begun(question: Question, text: str) -> str:
    """Return a sentence with its opening, its first letter and its end."""
    whole = question.opening + text
    return f"{whole[0].upper()}{whole[1:]}."


def _not_told_apart(question: Question, ranking: Mapping[str, Interval]) -> list[str]:
    """Return the variants over which the first has no significant lead with these seeds."""
    first = next(iter(ranking))
    pairs = question.against(first)
    return [variant for variant in ranking if variant != first and not differs(pairs.get(variant))]


def _gap(question: Question, ranking: Mapping[str, Interval], scenario: str = "") -> str:
    """Return how far ahead the first is: by the ratio on common seeds, else by that of the medians."""
    if len(ranking) < 2:
        return ""
    first, second, *_ = ranking
    low, high = sorted((ranking[first].centre, ranking[second].centre))
    if math.isinf(high):
        return "; no other variant gets there in the median of its seeds"
    pair = question.against(first).get(second)
    the_next = second.removesuffix(f" {scenario}")
    if pair and pair.ratio and pair.ratio.level:
        ratio = pair.ratio.centre if pair.a == first else 1 / pair.ratio.centre
        if (ratio < 1) == question.low_is_good:  # the medians and the pairs disagree about which is ahead
            return ""
        return f", {_times(max(ratio, 1 / ratio), question.than)} than the next, {the_next}"
    if low == high:
        return f", no {question.than} than the next, {the_next}"
    more = _times(high / low, question.than) if low > 0 else question.than
    return f", {more} than the next, {the_next}"


def _times(ratio: float, than: str) -> str:
    """Return how far one is ahead, by a ratio of 1 or more.

    >>> _times(1.25, "lower"), _times(1.0041, "lower"), _times(1.0000001, "lower")
    ('1.2 times lower', '1.004 times lower', 'less than 0.1 % lower')
    """
    digits = 2 if number(ratio, 2) != "1" else 4
    text = number(ratio, digits)
    return f"less than 0.1 % {than}" if text == "1" else f"{text} times {than}"


def test_name(pair: Pair) -> str:
    """Return the name of the test."""
    return {"t": "paired t-test", "rank": "rank test"}.get(pair.test, pair.test)


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


def _scaling(frames: Frames, found: Sequence[Series]) -> list[str]:
    """Return how throughput grows with workers, and the result."""
    unit, asked = seconds(frames), questions(frames, {"": frames.variants})
    growth = [_growth(frames, one) for one in found]
    most = max(len(frames.of(variant)) for variant in frames.variants)
    if most > 1:
        first = f"In the median of {most} seeds, throughput grows {listed(growth)}."
    else:
        first = (
            f"Throughput grows {listed(growth)}; there is one seed per variant, so no interval can be given."
        )
    if len(asked) > 1:
        return [first, _sentence(asked[0])]
    fastest, rate = next(iter(asked[0].ranking("").items()))
    second = f"The highest is {number(rate.centre)} gradients per {unit}, by {fastest}"
    if beside := throughput_beside_theory([run.record for run in frames.records]):
        second += f"; {beside}"
    return [first, f"{second}."]


def _growth(frames: Frames, one: Series) -> str:
    (few, start), *_, (many, end) = one.variants
    before, after = ({r.summary.seed: r.summary.gradients_per_s for r in frames.of(v)} for v in (start, end))
    times = [y / x for seed, x in before.items() if x and (y := after.get(seed))]
    if not times:
        return f"for {one.name} by an unknown factor (no seed in common)"
    interval = median_interval(times)
    detail = f", {confidence(interval)}" if interval.level else ""
    return f"{number(interval.centre)} times for {one.name} ({few:,} to {many:,} workers{detail})"
