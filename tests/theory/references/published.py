"""What a paper's formula says and what the strategy does, as values.

A reference's file may have `published(run)`, where `run(**options)` runs its strategy in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, TypeAlias

import dsgd

Run: TypeAlias = Callable[..., dsgd.Result]

SEEDS = range(8)
EXPONENTIAL = {"workload": "none", "compute_time": "exponential:1"}
"""A run that only schedules, with random times of mean 1 s."""


class Group(NamedTuple):
    """Runs that differ by their seeds only."""

    x: float
    law: float
    """The formula's value."""
    measured: Sequence[float]
    """One a seed; one in all where nothing is random; empty for a formula that is only shown."""
    at: Sequence[float] = ()
    """Where x is measured too: its values, one a seed."""


class Series(NamedTuple):
    """A formula over x, and measurements of it."""

    name: str
    groups: Sequence[Group]
    bound: bool = False
    """Whether the formula is a bound, which measurements may not exceed, rather than a mean."""


class Published(NamedTuple):
    """Formulas and measurements."""

    title: str
    series: Sequence[Series]

    @property
    def words(self) -> str:
        """Say how far measurements and formulas are apart."""
        exact = [g for s in self.series if not s.bound for g in s.groups if g.measured]
        bounds = [g for s in self.series if s.bound for g in s.groups if g.measured]
        said = []
        if exact:
            apart = max(abs(median(g.measured) / g.law - 1) for g in exact)
            if any(g.at for g in exact):
                apart = max(apart, *(abs(median(g.at) / g.x - 1) for g in exact))
            what = "median" if any(len(g.measured) > 1 for g in exact) else "measurement"
            off = "equal to the formula" if apart < 1e-9 else f"at most {100 * apart:.2g} % from the formula"
            said.append(f"{what} {off}")
        if bounds:
            most = max(max(g.measured) / g.law for g in bounds)
            said.append(f"at most {100 * most:.0f} % of the bound")
        return ", ".join(said)


def s_per_update(result: dsgd.Result) -> float:
    """Return how long an update took on average, in virtual seconds."""
    return float(result.updates["t_s"][-1]) / len(result.updates)


def harmonic(n: int) -> float:
    """Return 1 + 1/2 + ... + 1/n."""
    return sum(1 / i for i in range(1, n + 1))


def consensus(run: Run, law: Callable[[int], float], name: str, title: str) -> Published:
    """Return the mean squared distance to the workers' mean on one quadratic, by their number.

    law: of n workers, for step size 0.2 and noise of variance 1 in each of 100 dimensions.
    """
    given = {"steps": 300, "lr": 0.2, "workload": "quadratic", "dim": 100, "grad_noise": 1.0, "eval_every": 0}

    def measured(seed: int, n: int) -> float:
        updates = run(seed=seed, num_workers=n, **given).updates
        return float(updates["consensus"].to_numpy()[100:].mean()) / 100

    groups = [Group(n, law(n), [measured(seed, n) for seed in SEEDS]) for n in (4, 8, 16, 32)]
    return Published(title=title, series=[Series(name, groups)])
