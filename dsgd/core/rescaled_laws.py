"""A law of compute times in which every time is a share of another law's, and a constant more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numpy.random import Generator

from dsgd.core.time_laws import (
    Constant,
    Floats,
    Law,
    Lognormal,
    Markov,
    NoDelay,
    Normal,
    Pareto,
    ShiftedExponential,
    Trace,
    Uniform,
)


@dataclass(frozen=True)
class Shifted:
    """The times of another law of independent draws, each a constant longer."""

    law: Law
    plus_s: float
    syntax: ClassVar[str] = ""  # nobody writes it: it comes of options

    @property
    def mean_s(self) -> float:
        return self.law.mean_s + self.plus_s

    @property
    def variance_s2(self) -> float:
        return self.law.variance_s2

    def sample(self, rng: Generator, n: int) -> Floats:
        return self.law.sample(rng, n) + self.plus_s


def rescaled(law: Law, factor: float, plus_s: float = 0.0) -> Law:
    """Return the law of factor X + plus_s, where X is a time of `law`: of the same family where it can be.

    factor: above 0. plus_s: seconds, at least 0. A worker's draws stay what they were, so all else equal its
    slow mini-batches are the same ones.

    >>> rescaled(Uniform(2.0, 4.0), 0.5, 1.0), rescaled(Pareto(2.0, 1.0), 0.5, 1.0)
    (Uniform(low_s=2.0, high_s=3.0), Shifted(law=Pareto(alpha=2.0, scale_s=0.5), plus_s=1.0))
    """
    if (factor, plus_s) == (1, 0):
        return law
    match law:
        case NoDelay():
            return Constant(factor + plus_s)
        case Constant(seconds):
            return Constant(factor * seconds + plus_s)
        case ShiftedExponential(shift, mean):
            return ShiftedExponential(factor * shift + plus_s, factor * mean)
        case Uniform(low, high):
            return Uniform(factor * low + plus_s, factor * high + plus_s)
        case Markov(fast, slow, to_slow, to_fast):
            return Markov(factor * fast + plus_s, factor * slow + plus_s, to_slow, to_fast)
        case Trace(path, rows, per_worker):
            longer = tuple(tuple(factor * seconds + plus_s for seconds in row) for row in rows)
            return Trace(path, longer, per_worker)
        case Normal(mu, sigma):
            scaled: Law = Normal(factor * mu, factor * sigma)
        case Lognormal(median, sigma):
            scaled = Lognormal(factor * median, sigma)
        case Pareto(alpha, scale):
            scaled = Pareto(alpha, factor * scale)
        case Shifted(inner, more_s):
            return rescaled(inner, factor, factor * more_s + plus_s)
        case _:
            raise AssertionError(f"{law} is a law that cannot be rescaled")
    return Shifted(scaled, plus_s) if plus_s else scaled
