"""How sure an answer is: seeds, intervals, tests."""

from __future__ import annotations

from dsgd.show.report.questions import Question
from dsgd.show.report.statistics import SIGNIFICANT, Pair, median_interval
from dsgd.show.report.written_numbers import p_value, plural


def basis(question: Question) -> str:
    """Return how sure it is: seeds, intervals, tests."""
    if not question.values:
        return ""
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


def test_name(pair: Pair) -> str:
    """Return the name of the test."""
    names = {"t": "paired t-test", "rank": "rank test", "identical": "identical with each seed"}
    return names.get(pair.test, pair.test)
