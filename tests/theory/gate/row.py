"""A row of the gate, and the runs and quantities that rows are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dsgd.core.time_laws import parse_law
from dsgd.running.quick_run import QuickRun, run

LEVEL = 0.999  # of each row's interval; seeds are fixed, so a row that holds once holds always
ROUNDING = 1e-5  # float32, over some thousand additions
EXPONENTIAL, CONSTANT = parse_law("exponential:1"), parse_law("constant:1")

Measure = Callable[[int], float]
"""Returns the measurement of one seed."""


@dataclass(frozen=True)
class Row:
    """One closed form, and how the simulator measures it."""

    what: str
    formula: str
    value: float
    measure: Measure
    seeds: int = 20
    """Independent repetitions; 1 where nothing is left to chance."""
    tolerance: float = 0.0
    """Of `value` itself, where it is known to so many digits only."""

    def check(self) -> Measurement:
        """Measure, and compare with the value."""
        measured = np.array([self.measure(seed) for seed in range(self.seeds)])
        mean = float(measured.mean())
        if self.seeds == 1:
            half = ROUNDING * max(1.0, abs(self.value))
        else:
            from scipy.stats import t

            deviation = float(measured.std(ddof=1)) / math.sqrt(self.seeds)
            half = float(t.ppf((1 + LEVEL) / 2, self.seeds - 1)) * deviation
        return Measurement(self, mean, half + self.tolerance)


@dataclass(frozen=True)
class Measurement:
    """A row's measurement: the mean, and how far the formula may be from it."""

    row: Row
    measured: float
    allowed: float

    @property
    def holds(self) -> bool:
        return abs(self.measured - self.row.value) <= self.allowed


def schedule(
    mode: str, workers: int, steps: int, seed: int, law: str = "exponential:1", **options: Any
) -> QuickRun:
    """Run a strategy without weights: all that is measured is time and staleness."""
    return run(
        mode, workload="none", num_workers=workers, steps=steps, seed=seed, compute_time=law, **options
    )


def quadratic(mode: str, workers: int, steps: int, seed: int, **options: Any) -> QuickRun:
    """Run a strategy on the quadratic w^2/2 for each worker, with unit steps of time."""
    return run(mode, workload="quadratic", num_workers=workers, steps=steps, seed=seed, **options)


def iterates(outcome: QuickRun) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the weights after each update, shape (updates, D)."""
    return np.array([update.weights.vector for update in outcome.updates], dtype=np.float64)


def s_per_update(outcome: QuickRun, skip: int = 0) -> float:
    """Return seconds per update, after the first `skip` updates."""
    last = [update.finished_s for update in outcome.updates]
    return (last[-1] - (last[skip - 1] if skip else 0.0)) / (len(last) - skip)


def staleness(outcome: QuickRun, skip: int = 0) -> list[int]:
    """Return the staleness of all gradients after the first `skip` updates."""
    return [update.staleness(done) for update in outcome.updates[skip:] for done in update.dones]


def of(quantity: Callable[[QuickRun], float], *run: Any, **options: Any) -> Measure:
    """Return what measures a quantity of a run without weights.

    run: mode, workers, steps, and the law of times if it is not exponential.
    """
    mode, workers, steps, *law = run
    return lambda seed: quantity(schedule(mode, workers, steps, seed, *law, **options))


def timed(*run: Any, skip: int = 0, then: Callable[[float], float] = float, **options: Any) -> Measure:
    """Return what measures seconds an update after the first `skip`, or what `then` makes of them."""
    return of(lambda outcome: then(s_per_update(outcome, skip)), *run, **options)


def stale(*run: Any, skip: int = 0, over: Callable[[list[int]], Any] = np.mean, **options: Any) -> Measure:
    """Return what measures the mean staleness after the first `skip` updates, or what `over` makes of all."""
    return of(lambda outcome: float(over(staleness(outcome, skip))), *run, **options)


exactly = partial(Row, seeds=1)
"""A row that leaves nothing to chance."""
