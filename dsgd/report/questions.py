"""The measures by which variants are compared, and which variant is ahead in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedEvaluation
from dsgd.report.frames import Frames
from dsgd.report.panels import seconds
from dsgd.report.statistics import SIGNIFICANT, Interval, Pair, compare, median_interval
from dsgd.report.words import number


@dataclass(frozen=True, kw_only=True)
class Question:
    """A measure by which variants are ranked."""

    name: str
    """As a table's heading."""
    opening: str
    """Of a sentence: under which conditions the variants meet."""
    winner: str
    """What the best one is."""
    value: Callable[[str], str]
    """What it achieves, given its number."""
    than: str
    """Comparative: how it differs from the next."""
    lost: str
    """Of variants that are clearly behind."""
    nobody: str
    """What to say where the median of every variant is infinite."""
    values: Mapping[str, Mapping[int, float]]
    """By variant and seed; infinite for never."""
    scenarios: Mapping[str, Sequence[str]]
    """The variants that compete with each other, the scenarios by name."""
    low_is_good: bool = True

    @cached_property
    def pairs(self) -> list[Pair]:
        """All comparisons within scenarios, corrected for the number of pairs in each."""
        families = (
            {variant: self.values[variant] for variant in variants if variant in self.values}
            for variants in self.scenarios.values()
        )
        return [pair for family in families for pair in compare(family)]

    @property
    def tested(self) -> int:
        """How many pairs the correction is for."""
        return sum(pair.p is not None for pair in self.pairs)

    def ranking(self, scenario: str) -> dict[str, Interval]:
        """Return the median and interval of a scenario's variants, the best first; the earlier of equals."""
        variants = self.scenarios[scenario]
        found = {v: median_interval(list(self.values[v].values())) for v in variants if v in self.values}
        sign = 1 if self.low_is_good else -1
        return dict(sorted(found.items(), key=lambda item: sign * item[1].centre))

    def against(self, variant: str) -> dict[str, Pair]:
        """Return the comparisons of a variant by its rival, where the two share two seeds."""
        return {p.b if p.a == variant else p.a: p for p in self.pairs if variant in (p.a, p.b)}


def differs(pair: Pair | None) -> bool:
    """Whether two variants differ: significantly after the correction, or deterministically."""
    return pair is not None and (pair.corrected_p is None or pair.corrected_p < SIGNIFICANT)


def questions(frames: Frames, scenarios: Mapping[str, Sequence[str]] | None = None) -> list[Question]:
    """Return what variants are compared by, the most important measure first.

    With a target loss: time and gradients until it is reached. Without: the loss at equal times and after
    equally many gradients. Without losses: gradients per second. scenarios: None for those of the frames.
    """
    unit, target = seconds(frames), frames.target_loss
    within = frames.scenarios if scenarios is None else scenarios
    if not all(run.record.evals for run in frames.records):
        return [
            Question(
                name=f"gradients per {unit}",
                opening="",
                winner="first in throughput is",
                value=lambda x: f"with {x} gradients per {unit}",
                than="more",
                lost="clearly slower",
                nobody="",
                values=_values(frames, lambda r: r.summary.gradients_per_s),
                scenarios=within,
                low_is_good=False,
            )
        ]
    if target is not None and any(run.record.reached(target) for run in frames.records):
        return [
            Question(
                name=f"{unit} to loss {target:g}",
                opening=f"{_budget(frames)}, ",
                winner=f"first to reach loss {target:g} is",
                value=lambda x: f"after {x} {unit}",
                than="sooner",
                lost="clearly later",
                nobody=f"no variant reaches loss {target:g} in the median of its seeds",
                values=_values(frames, lambda r: until(r, target, lambda e: e.t_s)),
                scenarios=within,
            ),
            Question(
                name=f"gradients to loss {target:g}",
                opening="Per gradient, ",
                winner="the quickest is",
                value=lambda x: f"after {x}",
                than="fewer",
                lost="clearly more",
                nobody="none of them gets there",
                values=_values(frames, lambda r: until(r, target, lambda e: e.gradients)),
                scenarios=within,
            ),
        ]
    equal_s = _shortest(frames, lambda e: e.t_s)
    equal_gradients = _shortest(frames, lambda e: e.gradients)
    never = "" if target is None else f"No run reaches loss {target:g}; "
    after_s = f"after {number(equal_s)} {unit}, which all runs lasted, "
    return [
        Question(
            name=f"loss after {number(equal_s)} {unit}",
            opening=never + (after_s if never else after_s.capitalize()),
            winner="lowest in loss is",
            value=lambda x: f"with {x}",
            than="lower",
            lost="clearly higher",
            nobody="all losses are infinite",
            values=_values(frames, lambda r: _loss_at(r, equal_s, lambda e: e.t_s)),
            scenarios=within,
        ),
        Question(
            name=f"loss after {number(equal_gradients)} gradients",
            opening=f"Per gradient, after {number(equal_gradients, 6)} of them, ",
            winner="lowest in loss is",
            value=lambda x: f"with {x}",
            than="lower",
            lost="clearly higher",
            nobody="all losses are infinite",
            values=_values(frames, lambda r: _loss_at(r, equal_gradients, lambda e: e.gradients)),
            scenarios=within,
        ),
    ]


def _values(frames: Frames, measure: Callable[[Record], float | None]) -> dict[str, dict[int, float]]:
    """Return a measure by variant and seed; runs without it are left out."""
    found: dict[str, dict[int, float]] = {}
    for run in frames.records:
        value = measure(run.record)
        if value is not None:
            found.setdefault(run.variant, {})[run.seed] = value
    return found


def until(record: Record, target: float, place: Callable[[RecordedEvaluation], float]) -> float:
    """Return the time, gradients or bytes until the target loss; infinite if it was not reached."""
    reached = record.reached(target)
    return place(reached) if reached else math.inf


def _shortest(frames: Frames, place: Callable[[RecordedEvaluation], float]) -> float:
    """Return how far all runs got that did not diverge (all runs, if all did)."""
    whole = [run.record for run in frames.records if run.record.summary.stopped_by != "diverged"]
    return min(place(record.evals[-1]) for record in whole or [run.record for run in frames.records])


def _loss_at(record: Record, at: float, place: Callable[[RecordedEvaluation], float]) -> float:
    """Return the last loss known then; infinite if the run had diverged."""
    known = [e.loss for e in record.evals if place(e) <= at]
    diverged = record.summary.stopped_by == "diverged" and place(record.evals[-1]) < at
    return math.inf if diverged or not known or known[-1] is None else known[-1]


def _budget(frames: Frames) -> str:
    budgets = {int(r.record.config["num_workers"]) * int(r.record.config["steps"]) for r in frames.records}
    if len(budgets) == 1:
        return f"With equal budgets of {budgets.pop():,} gradients"
    return f"With budgets of {min(budgets):,} to {max(budgets):,} gradients"
