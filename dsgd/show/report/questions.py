"""The questions that a report answers: by which measure variants are compared, within which groups, and how
sure an answer is: seeds, intervals, tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedEvaluation
from dsgd.show.report.frames import Frames
from dsgd.show.report.layout import Layout
from dsgd.show.report.measures import OF_TARGET, Measure, loss_at, measure, scale_of
from dsgd.show.report.statistics import SIGNIFICANT, Interval, Pair, compare, median_interval
from dsgd.show.report.written_numbers import number, plural

_ALONE = "There is one seed per variant, so no interval can be given"
_APART = "No two variants share two seeds, so nothing can be tested"


def basis(question: Question) -> str:
    """Return how sure it is: seeds, intervals, tests."""
    if not question.values:
        return ""
    if not question.pairs:
        alone = all(len(seeds) == 1 for seeds in question.values.values())
        return f"{_ALONE if alone else _APART}; it may be chance."
    n = max(map(len, question.values.values()))
    level = median_interval(list(range(n))).level
    text = f"Medians of {plural(n, 'seed')} with {round(100 * level)}\N{NO-BREAK SPACE}% intervals"
    baseline = question.layout.baseline is not None
    if question.measure.low_is_good is None and not baseline:
        return f"{text}."
    tests = sorted({test_name(pair) for pair in question.pairs if pair.test in ("t", "rank")})
    if not tests:
        return f"{text}; a variant has the same value with each seed, so there is nothing to test."
    family = "the pairs of each case" if len(question.layout.cells) > 1 else plural(question.tested, "pair")
    what = "a difference has an interval without 1 and" if baseline else "a lead is significant at"
    test = f"p < {SIGNIFICANT:g} ({' or '.join(tests)}, after Holm's correction for {family})"
    return f"{text}, ratios on common seeds; {what} {test}."


def test_name(pair: Pair) -> str:
    """Return the name of the test."""
    names = {"t": "paired t-test", "rank": "rank test", "identical": "identical with each seed"}
    return names.get(pair.test, pair.test)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A measure by which the variants of each group are compared."""

    measure: Measure
    values: Mapping[str, Mapping[int, float]]
    """By variant and seed; infinite for never."""
    layout: Layout
    opening: str = ""
    """What must be said before the answer, as a sentence."""
    between: Mapping[str, float] = field(default_factory=dict)
    """By variant: how far the value is, in the median, from that of one evaluation earlier."""

    @property
    def name(self) -> str:
        """As a table's heading."""
        return self.measure.label

    @property
    def scenarios(self) -> dict[str, list[str]]:
        """The variants that compete with each other, by group."""
        return self.layout.groups

    @cached_property
    def pairs(self) -> list[Pair]:
        """All comparisons within groups, or with the baseline, corrected for the number of pairs in each."""
        found = []
        for cells in self.layout.cells.values():
            family = {variant: self.values[variant] for variant in cells.values() if variant in self.values}
            found += compare(family, cells.get(self.layout.baseline or ""))
        return found

    @property
    def tested(self) -> int:
        """How many pairs the correction is for."""
        return sum(pair.p is not None for pair in self.pairs)

    def median(self, variant: str) -> Interval | None:
        """Return a variant's median and interval; None if it has no value."""
        values = self.values.get(variant)
        return median_interval(list(values.values())) if values else None

    def ranking(self, group: str) -> dict[str, Interval]:
        """Return the median and interval of a group's variants, the best first; the earlier of equals.

        In their order where neither low nor high is better.
        """
        found = {v: x for v in self.scenarios[group] if (x := self.median(v)) is not None}
        if self.measure.low_is_good is None:
            return found
        sign = 1 if self.measure.low_is_good else -1
        return dict(sorted(found.items(), key=lambda item: sign * item[1].centre))

    def leaders(self, group: str) -> list[str]:
        """Return the variants of a group whose median none is better than: several where they are level."""
        ranking = self.ranking(group)
        return [v for v, x in ranking.items() if x.centre == next(iter(ranking.values())).centre]

    def against(self, variant: str) -> dict[str, Pair]:
        """Return the comparisons of a variant by its rival, where the two share two seeds."""
        return {p.b if p.a == variant else p.a: p for p in self.pairs if variant in (p.a, p.b)}

    def ratio(self, variant: str, baseline: str) -> Interval | None:
        """Return how many times the baseline's values a variant's are; infinite for never against a value.

        The median over common seeds and its interval; if there are none, or the baseline did not get there
        with one of them, the ratio of the medians without an interval. None where there is none to give.
        """
        x, y = self.values.get(baseline, {}), self.values.get(variant, {})
        seeds = sorted(x.keys() & y.keys())
        if seeds and all(0 < x[seed] < math.inf for seed in seeds):
            return median_interval([y[seed] / x[seed] for seed in seeds])
        a, b = self.median(baseline), self.median(variant)
        if a is None or b is None or not math.isfinite(a.centre) or a.centre <= 0:
            return None
        return Interval(b.centre / a.centre, b.centre / a.centre, b.centre / a.centre, 0.0, b.n)

    def shown(self, a: str, b: str) -> bool:
        """Whether the seeds show that two variants differ: by a test, and by the interval of their ratio.

        True where they share fewer than two seeds, so that there is neither.
        """
        pair, ratio = self.against(a).get(b), self.ratio(a, b)
        if pair is None:
            return True
        return differs(pair) and (ratio is None or not ratio.low <= 1 <= ratio.high)

    def resolved(self, a: str, b: str) -> bool:
        """Whether the medians of two variants differ by more than the distance between two evaluations."""
        x, y = self.median(a), self.median(b)
        if x is None or y is None or not (math.isfinite(x.centre) and math.isfinite(y.centre)):
            return True
        return abs(x.centre - y.centre) > max(self.between.get(a, 0.0), self.between.get(b, 0.0)) * (1 + 1e-9)


def differs(pair: Pair | None) -> bool:
    """Whether two variants differ: significantly after the correction, or deterministically."""
    return pair is not None and (pair.corrected_p is None or pair.corrected_p < SIGNIFICANT)


def questions(frames: Frames, layout: Layout | None = None) -> list[Question]:
    """Return what variants are compared by, the most important measure first.

    The measures that the experiment's file names, if it names any. Else, with a target loss: time, gradients
    and bytes until it is reached. Without: the loss after equal times, gradients and bytes. Without losses:
    gradients per second. None for what tuning chose: that is no number of a run.

    layout: how the variants are arranged; None: as the frames have it.
    """
    layout = layout or frames.layout
    unit, target, asked = frames.seconds, frames.target_loss, frames.asked.measures
    if frames.asked.tuned:
        return []
    scale = scale_of(run.record for run in frames.records)
    names: Sequence[str] = asked or OF_TARGET
    if any(name in OF_TARGET for name in names):
        if not all(run.record.evals for run in frames.records):
            return [_question(frames, layout, measure("throughput", target, unit))]
        answered = target is not None and any(run.record.reached(target) for run in frames.records)
    else:
        answered = True
    if answered:
        return [_question(frames, layout, measure(name, target, unit, scale)) for name in names]
    places: dict[str, tuple[Callable[[RecordedEvaluation], float], int, str]] = {
        "loss-at-time": (lambda e: e.t_s, 3, unit),
        "loss-at-gradients": (lambda e: e.gradients, 6, "gradients"),
        "loss-at-bytes": (lambda e: e.bytes / 1e6, 3, "MB"),
    }
    found = list[Question]()
    for name, (place, digits, of) in places.items():
        equal = _shortest(frames, place)
        one = loss_at(name, equal, place, f"{number(equal, digits)} {of}", scale)
        none = "" if target is None or found else f"No run reaches loss {target:g}."
        found.append(_question(frames, layout, one, none))
    return found


def _question(frames: Frames, layout: Layout, by: Measure, opening: str = "") -> Question:
    values: dict[str, dict[int, float]] = {}
    for run in frames.records:
        value = by.of(run.record)
        if value is not None and not math.isnan(value):
            values.setdefault(run.variant, {})[run.seed] = value
    return Question(
        measure=by,
        values=values,
        layout=layout,
        opening=opening,
        between=_between(frames, by.place) if by.place else {},
    )


def _between(frames: Frames, place: Callable[[RecordedEvaluation], float]) -> dict[str, float]:
    """Return by variant how far the evaluation that reached the target is from the one before it."""
    assert frames.target_loss is not None
    found: dict[str, list[float]] = {}
    for run in frames.records:
        evaluations = run.record.evals
        reached = run.record.reached(frames.target_loss)
        if reached and (at := evaluations.index(reached)):
            found.setdefault(run.variant, []).append(place(reached) - place(evaluations[at - 1]))
    return {variant: median(gaps) for variant, gaps in found.items()}


def until(record: Record, target: float, place: Callable[[RecordedEvaluation], float]) -> float:
    """Return the time, gradients or bytes until the target loss; infinite if it was not reached."""
    reached = record.reached(target)
    return place(reached) if reached else math.inf


def _shortest(frames: Frames, place: Callable[[RecordedEvaluation], float]) -> float:
    """Return how far all runs got that did not diverge (all runs, if all did)."""
    whole = [run.record for run in frames.records if run.record.summary.stopped_by != "diverged"]
    return min(place(record.evals[-1]) for record in whole or [run.record for run in frames.records])
