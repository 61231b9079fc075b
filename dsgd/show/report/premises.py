"""What an experiment takes for granted, as ranges of measured numbers, and whether its runs were so.

A file has them under `premise:`, each with a quantity and at least one end of its range:

    premise:
      - {quantity: exchange_batches, at_least: 3.5, at_most: 4.5}
      - {quantity: staleness_mean, variants: [asgd], at_least: 10}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec import Struct

from dsgd.metrics import QUANTITIES
from dsgd.process.checked_yaml import Finite, did_you_mean
from dsgd.records.schema import Summary
from dsgd.show.report.written_numbers import listed, number

_OF: Mapping[str, Callable[[Summary], float | None]] = {
    **{name: column.of for row in QUANTITIES for name, column in row.columns.items()},
    "batch_s": lambda summary: summary.batch_s,
    "slowest_ratio": lambda summary: summary.slowest_ratio,
}


class Premise(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A range in which the median over the seeds of each variant must be."""

    quantity: str
    """A measured column of results.csv, or batch_s (seconds of a mini-batch) or slowest_ratio (how many times
    as long as the median worker's those of the slowest are).
    """
    at_least: Finite = -math.inf
    at_most: Finite = math.inf
    variants: tuple[str, ...] = ()
    """Names of the file, of variants or of points of its grid; empty: all variants."""

    def __post_init__(self) -> None:
        if self.quantity not in _OF:
            hint = did_you_mean(self.quantity, _OF)
            raise ValueError(f"quantity: there is no {self.quantity}; {hint}")
        if not self.range:
            raise ValueError(f"{self.quantity}: has no range; give at_least:, at_most: or both")
        if self.at_least > self.at_most:
            ends = f"at_least: {self.at_least:g} is above at_most: {self.at_most:g}"
            raise ValueError(f"{self.quantity}: {ends}")

    @property
    def range(self) -> str:
        """The range in words, like `at least 3.5, at most 4.5`."""
        ends = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{words} {x:g}" for words, x in ends if math.isfinite(x))


@dataclass(frozen=True, kw_only=True)
class JudgedPremise:
    """A premise, and whether it held."""

    held: bool
    """Not where nothing was measured."""
    text: str
    """In one line."""


def require_names(premises: Sequence[Premise], names: Collection[str]) -> None:
    """Raise ValueError for a premise about a variant that is none of these."""
    for premise in premises:
        if unknown := [name for name in premise.variants if name not in names]:
            raise ValueError(
                f"{premise.quantity}: variants: there is no {unknown[0]}; choose from {', '.join(names)}"
            )


def judge(premise: Premise, runs: Mapping[str, Sequence[Summary]]) -> JudgedPremise:
    """Return whether a premise held. runs: of the variants that it is about, by their names."""
    of = _OF[premise.quantity]
    measured = {name: [x for one in found if (x := of(one)) is not None] for name, found in runs.items()}
    medians = {name: float(median(values)) for name, values in measured.items() if values}
    if not medians:
        return JudgedPremise(held=False, text=f"{premise.quantity} {premise.range}: was not measured")
    low, high = number(min(medians.values())), number(max(medians.values()))
    said = f"{premise.quantity} is {low if low == high else f'{low} to {high}'}, {premise.range}"
    outside = {name: x for name, x in medians.items() if not premise.at_least <= x <= premise.at_most}
    if premise.variants and (missing := [name for name, values in measured.items() if not values]):
        return JudgedPremise(held=False, text=f"{said}: was not measured with {listed(missing)}")
    if not outside:
        return JudgedPremise(held=True, text=f"{said}: holds")
    named = listed([f"{name} ({number(x)})" for name, x in outside.items()])
    return JudgedPremise(held=False, text=f"{said}: does not hold with {named}")
