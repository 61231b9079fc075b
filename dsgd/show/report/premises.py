"""What an experiment takes for granted, as ranges of measured numbers, and whether its runs were so.

A file has them under `premise:`, each with a quantity and at least one end of its range:

    premise:
      - {quantity: exchange_batches, at_least: 3.5, at_most: 4.5}
      - {quantity: staleness_mean, variants: [asgd], at_least: 10}
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dsgd.metrics import QUANTITIES
from dsgd.records.schema import Summary
from dsgd.show.report.written_numbers import listed, number

_KEYS = ("quantity", "at_least", "at_most", "variants")
_OF: Mapping[str, Callable[[Summary], float | None]] = {
    **{name: column.of for row in QUANTITIES for name, column in row.columns.items()},
    "batch_s": lambda summary: summary.batch_s,
    "slowest_ratio": lambda summary: summary.slowest_ratio,
}


@dataclass(frozen=True, kw_only=True)
class Premise:
    """A range in which the median over the seeds of each variant must be."""

    quantity: str
    """A measured column of results.csv, or batch_s (seconds of a mini-batch) or slowest_ratio (how many times
    as long as the median worker's those of the slowest are).
    """
    at_least: float = -math.inf
    at_most: float = math.inf
    variants: tuple[str, ...] = ()
    """Names of the file, of variants or of points of its grid; empty: all variants."""

    @property
    def range(self) -> str:
        """The range in words, like `at least 3.5, at most 4.5`."""
        ends = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{words} {x:g}" for words, x in ends if math.isfinite(x))

    def as_file(self) -> dict[str, Any]:
        """Return it as a file has it."""
        entry: dict[str, Any] = {"quantity": self.quantity}
        entry |= {key: x for key in ("at_least", "at_most") if math.isfinite(x := getattr(self, key))}
        return entry | ({"variants": list(self.variants)} if self.variants else {})


@dataclass(frozen=True, kw_only=True)
class JudgedPremise:
    """A premise, and whether it held."""

    held: bool
    """Not where nothing was measured."""
    text: str
    """In one line."""


def premises(given: Any, names: Collection[str]) -> tuple[Premise, ...]:
    """Return what a file has under `premise:`. names: that variants have in it.

    Raises ValueError in one line for anything else.
    """
    if given is None:
        return ()
    if not isinstance(given, list) or not given or not all(isinstance(entry, dict) for entry in given):
        raise ValueError("must be a list, like [{quantity: exchange_batches, at_least: 3, at_most: 5}]")
    return tuple(_premise(entry, names) for entry in given)


def _premise(entry: Mapping[Any, Any], names: Collection[str]) -> Premise:
    for key in entry:
        if key not in _KEYS:
            raise ValueError(f"there is no key {key}; the keys are {', '.join(_KEYS)}")
    quantity, variants = entry.get("quantity"), entry.get("variants", [])
    if quantity not in _OF:
        near = difflib.get_close_matches(str(quantity), _OF, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(_OF)}"
        raise ValueError(f"quantity: there is no {quantity}; {hint}")
    for key in ("at_least", "at_most"):
        x = entry.get(key, 0)
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            raise ValueError(f"{quantity}: {key}: must be a number; it is {x}")
    low, high = float(entry.get("at_least", -math.inf)), float(entry.get("at_most", math.inf))
    if low == -math.inf and high == math.inf:
        raise ValueError(f"{quantity}: has no range; give at_least:, at_most: or both")
    if low > high:
        raise ValueError(f"{quantity}: at_least: {low:g} is above at_most: {high:g}")
    if not isinstance(variants, list):
        raise ValueError(f"{quantity}: variants: must be a list of names")
    if unknown := [str(name) for name in variants if str(name) not in names]:
        raise ValueError(f"{quantity}: variants: there is no {unknown[0]}; choose from {', '.join(names)}")
    return Premise(quantity=str(quantity), at_least=low, at_most=high, variants=tuple(map(str, variants)))


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
    if not outside:
        return JudgedPremise(held=True, text=f"{said}: holds")
    named = listed([f"{name} ({number(x)})" for name, x in outside.items()])
    return JudgedPremise(held=False, text=f"{said}: does not hold with {named}")
