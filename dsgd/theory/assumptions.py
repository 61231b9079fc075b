"""What closed forms assume, checked: each function here raises ValueError where it does not hold.

A formula raises NoClosedForm where the quantity exists, but no formula for it is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from dsgd.core.time_laws import Floats

T = TypeVar("T")


class NoClosedForm(ValueError):
    """The quantity exists, but no formula for it is known."""


def known(form: Callable[[], T]) -> T | None:
    """Return what a closed form gives; None outside its assumptions, or where none is known."""
    try:
        return form()
    except ValueError:
        return None


def need(condition: bool, rule: str) -> None:
    """Raise ValueError with the rule unless the condition holds."""
    if not condition:
        raise ValueError(rule)


def need_whole(name: str, value: float, at_least: int = 1) -> None:
    """Raise ValueError unless the value is a whole number of at least so many."""
    whole = isinstance(value, (int, np.integer)) and value >= at_least
    need(whole, f"{name} must be a whole number of at least {at_least}, not {value}")


def need_k(k: int, n: int) -> None:
    """Raise ValueError unless 1 <= k <= n, n the number of workers."""
    need_whole("the number of workers", n)
    need_whole("k", k)
    need(k <= n, f"k must be at most the number of workers, {n}, not {k}")


def need_slack(slack: float) -> None:
    """Raise ValueError unless the slack is a whole number of at least 0, or infinite."""
    whole = slack >= 0 and (slack == math.inf or slack == int(slack))
    need(whole, f"slack must be a whole number of at least 0, or inf, not {slack}")


def factors_of(num_workers: int, slowdown: Mapping[int, float]) -> Floats:
    """Return the factor on each worker's compute time (P,), 1 for workers that `slowdown` does not name."""
    need_whole("num_workers", num_workers)
    factors = np.ones(num_workers)
    for worker, factor in slowdown.items():
        need(0 <= worker < num_workers, f"slowdown names worker {worker} of {num_workers}, counted from 0")
        need(0 < factor < math.inf, f"a slowdown must be above 0 and finite, not {factor}")
        factors[worker] = factor
    return factors
