"""The distributions of compute times: survival function, quantiles, and special cases.

X is a compute time in seconds per mini-batch, drawn for each mini-batch from a law of `dsgd.core.time_laws`.
Law `none` counts as in the simulator, 1 s a mini-batch. A replayed trace is not a law of independent draws:
whatever needs a law raises NoClosedForm for it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dsgd.core.rescaled_laws import Shifted
from dsgd.core.time_laws import (
    Constant,
    Exponential,
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
from dsgd.theory.assumptions import NoClosedForm, need


class Erlang(NamedTuple):
    """shift + the sum of `terms` independent exponentials of mean `scale_s`."""

    shift_s: float
    scale_s: float
    terms: int

    @property
    def mean_s(self) -> float:
        return self.shift_s + self.terms * self.scale_s


def survival(law: Law | Erlang, t_s: ArrayLike) -> Floats:
    """Return P(X > t) for each time t of `t_s` (seconds, any shape); 1 less it is the distribution function.

    Markov: a chain starts stationary, so at any one step a worker's law is the two-point law.

    >>> float(survival(Uniform(1.0, 3.0), 2.5))
    0.25
    """
    from scipy.special import gammaincc, ndtr

    t = np.asarray(t_s, dtype=np.float64)
    with np.errstate(divide="ignore"):
        match plain_law(law):
            case Constant(seconds):
                tail = np.where(t < seconds, 1.0, 0.0)
            case ShiftedExponential(shift, mean):
                tail = np.exp(-np.maximum(t - shift, 0) / mean)
            case Uniform(low, high):
                tail = np.clip((high - t) / (high - low), 0.0, 1.0)
            case Normal(mu, sigma):
                tail = np.where(t < 0, 1.0, ndtr((mu - t) / sigma))
            case Lognormal(median, sigma):
                tail = ndtr(-np.log(np.maximum(t, 0) / median) / sigma)
            case Pareto(alpha, scale):
                tail = (scale / np.maximum(t, scale)) ** alpha
            case Markov(fast, slow) as chain:
                tail = np.where(t < fast, 1.0, np.where(t < slow, chain.p_slow, 0.0))
            case Erlang(shift, scale, terms):
                tail = gammaincc(terms, np.maximum(t - shift, 0) / scale)
            case Shifted(inner, plus):
                tail = np.where(t < plus, 1.0, survival(inner, t - plus))
            case other:
                raise NoClosedForm(f"no distribution function is known for {other}")
    return np.asarray(tail, dtype=np.float64)


def quantile(law: Law | Erlang, u: ArrayLike) -> Floats:
    """Return the smallest time (seconds) with P(X <= time) >= u, for each u in [0, 1] (any shape).

    >>> float(quantile(Uniform(1.0, 3.0), 0.25).round(12))
    1.5
    """
    p = np.asarray(u, dtype=np.float64)
    need(bool(np.all((p >= 0) & (p <= 1))), "u must lie in [0, 1]")
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(log_quantile(law, np.log(p) - np.log1p(-p))))


def log_quantile(law: Law | Erlang, y: Floats) -> Floats:
    """Return the logarithm of the quantile at u = 1/(1 + e^-y): neither tail loses digits or overflows."""
    from scipy.special import gammainccinv, gammaincinv

    log_u, log_1_u = -np.logaddexp(0.0, -y), -np.logaddexp(0.0, y)
    with np.errstate(divide="ignore"):
        match plain_law(law):
            case Constant(seconds):
                log_t = np.full_like(y, np.log(seconds))
            case ShiftedExponential(shift, mean):
                log_t = np.log(shift - mean * log_1_u)
            case Uniform(low, high):
                log_t = np.log(low + (high - low) * np.exp(log_u))
            case Normal(mu, sigma):
                log_t = np.log(np.maximum(0.0, mu + sigma * _normal_quantile(log_u, log_1_u)))
            case Lognormal(median, sigma):
                log_t = np.log(median) + sigma * _normal_quantile(log_u, log_1_u)
            case Pareto(alpha, scale):
                log_t = np.log(scale) - log_1_u / alpha
            case Markov(fast, slow) as chain:
                log_t = np.log(np.where(log_1_u < math.log(chain.p_slow), slow, fast))
            case Erlang(shift, scale, terms):
                below, above = gammaincinv(terms, np.exp(log_u)), gammainccinv(terms, np.exp(log_1_u))
                log_t = np.log(shift + scale * np.where(y < 0, below, above))
            case Shifted(inner, plus):
                log_t = np.logaddexp(np.log(plus), log_quantile(inner, y))
            case other:
                raise NoClosedForm(f"no quantile function is known for {other}")
    return np.asarray(log_t, dtype=np.float64)


def _normal_quantile(log_u: Floats, log_1_u: Floats) -> Floats:
    from scipy.special import ndtri_exp

    return np.asarray(np.where(log_u < log_1_u, ndtri_exp(log_u), -ndtri_exp(log_1_u)))


def mean_excess_s(law: Law | Erlang, t: Floats) -> Floats:
    """Return E[(X - t)^+] for times t so late that only heavy tails remain."""
    from scipy.special import ndtr

    match law:
        case Pareto(alpha):
            return np.asarray(t * survival(law, t) / (alpha - 1))
        case Lognormal(median, sigma):
            z = np.log(t / median) / sigma
            return np.asarray(law.mean_s * ndtr(sigma - z) - t * ndtr(-z))
        case Shifted(inner, plus):
            return mean_excess_s(inner, t - plus)
    return np.zeros_like(t)


def plain_law(law: Law | Erlang) -> Law | Erlang:
    """Return the law with its special cases written as the laws they are."""
    match law:
        case NoDelay():
            return Constant(1.0)
        case Uniform(low, high) | Markov(low, high) if low == high:
            return Constant(low)
        case Trace():
            raise NoClosedForm("a replayed trace is not a law of independent draws; simulate it")
    return law


def memory_steps(law: Law) -> float:
    """Return after how many steps a worker's times have forgotten their past; 1 for independent draws.

    Markov: the correlation of two times falls as r^distance, r = 1 - both probabilities of a change, so that
    (1 + |r|)/(1 - |r|) steps are worth one draw: twice as many; inf for a worker that changes at every step.
    A trace: as many mean times as its longest.

    >>> round(memory_steps(Markov(1.0, 5.0, 0.05, 0.2)), 9)
    14.0
    """
    match law:
        case Markov(fast, slow) if fast < slow:
            r = abs(1 - law.p_fast_to_slow - law.p_slow_to_fast)
            return 2 * (1 + r) / (1 - r) if r < 1 else math.inf
        case Trace():
            return max(map(max, law.rows)) / law.mean_s if law.mean_s else 1.0
    return 1.0


def exponential_mean_s(law: Law, what: str) -> float:
    """Return an exponential law's mean (seconds); raise NoClosedForm, naming `what`, for any other law."""
    match plain_law(law):
        case Exponential(_, mean) | ShiftedExponential(0, mean):
            return mean
        case other:
            raise NoClosedForm(f"{what} has a closed form for exponential times only, not for {other}")


def per_s(seconds: float) -> float:
    """Return the rate per second of something that takes so many seconds; inf if it takes none."""
    return 1 / seconds if seconds else math.inf
