"""Means of the k-th smallest and of the largest of independent compute times.

X_(K) is the K-th smallest of n draws, H_n = 1 + 1/2 + ... + 1/n. Closed forms where there are any, else
quadrature with a relative error below 1e-9; nothing is sampled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dsgd.core.rescaled_laws import Shifted
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
from dsgd.theory.assumptions import need_k, need_whole
from dsgd.theory.laws_of_times import Erlang, log_quantile, mean_excess_s, plain_law, survival


def harmonic(n: int) -> float:
    """Return H_n = 1 + 1/2 + ... + 1/n; H_0 = 0.

    >>> harmonic(2)
    1.5
    """
    need_whole("n", n, at_least=0)
    return harmonic_between(0, n)


def harmonic_between(m: int, n: int) -> float:
    """Return H_n - H_m, without cancellation."""
    return float((1.0 / np.arange(m + 1, n + 1)).sum())


def order_statistic_mean(law: Law, k: int, n: int) -> float:
    """Return E[X_(k)], the mean (seconds) of the k-th smallest of `n` independent draws of `law`.

    Shifted exponential: shift + mean (H_n - H_{n-k}).  Uniform: low + (high - low) k/(n + 1).
    Pareto: scale Gamma(n+1) Gamma(n-k+1-1/alpha) / (Gamma(n-k+1) Gamma(n+1-1/alpha)), which is
    scale prod_{j=n-k+1..n} 1/(1 - 1/(alpha j)); infinite where alpha (n - k + 1) <= 1.
    Markov: fast + (slow - fast) P(n - k + 1 or more of n are slow).  Normal, lognormal: by quadrature.
    Source: Renyi 1953, "On the theory of order statistics"; David & Nagaraja 2003, "Order statistics".

    >>> order_statistic_mean(Uniform(0.0, 1.0), 3, 3)
    0.75
    """
    need_k(k, n)
    match plain_law(law):
        case Constant(seconds):
            return seconds
        case ShiftedExponential(shift, mean):
            return shift + mean * harmonic_between(n - k, n)
        case Uniform(low, high):
            return low + (high - low) * k / (n + 1)
        case Pareto(alpha, scale):
            if alpha * (n - k + 1) <= 1:
                return math.inf
            return scale * math.exp(-float(np.log1p(-1 / (alpha * np.arange(n - k + 1, n + 1))).sum()))
        case Markov(fast, slow) as chain:
            from scipy.special import betainc

            return fast + (slow - fast) * float(betainc(n - k + 1, k, chain.p_slow))
        case Shifted(inner, plus):
            return plus + order_statistic_mean(inner, k, n)
    return order_statistic_mean_by_quadrature(law, k, n)


def order_statistic_mean_by_quadrature(law: Law, k: int, n: int) -> float:
    """Return what `order_statistic_mean` returns, for any law, with a relative error below 1e-9."""
    return _order_statistic_moment(law, k, n, 1)


def _order_statistic_moment(law: Law, k: int, n: int, power: int) -> float:
    """Return E[X_(k)^power].

    X_(k) is the quantile at the k-th smallest of n uniform draws, so the mean is the integral over (0, 1) of
    quantile(u)^power times the density of Beta(k, n-k+1). In y = log(u/(1-u)) that density is log-concave.
    Source: David & Nagaraja 2003, "Order statistics".
    """
    from scipy.special import betaln, log_ndtr

    need_k(k, n)
    if isinstance(law, Pareto) and law.alpha * (n - k + 1) <= power:
        return math.inf

    def integrand(y: Floats) -> Floats:
        log_density = -k * np.logaddexp(0.0, -y) - (n - k + 1) * np.logaddexp(0.0, y) - betaln(k, n - k + 1)
        return np.asarray(np.exp(log_density + power * log_quantile(law, y)))

    mode, width = math.log(k / (n - k + 1)), math.sqrt((n + 1) / k / (n - k + 1))
    edges = [mode + width * np.concatenate([-(2.0 ** np.arange(12, -2, -1)), [0], 2.0 ** np.arange(-1, 30)])]
    if isinstance(law, Normal):  # negative draws are cut to 0: a kink
        z = law.mu_s / law.sigma_s
        edges.append(np.array([log_ndtr(-z) - log_ndtr(z)]))
    return _integral(integrand, np.unique(np.concatenate(edges)))


def order_statistic_skewness(law: Law, k: int = 1, n: int = 1) -> float:
    """Return the skewness of X_(k), the k-th smallest of `n` draws of `law`: E[(X - E X)^3] / deviation^3.

    inf where it has no third moment, as Pareto's with alpha (n - k + 1) <= 3; 0 for what is always the same,
    and for a trace, which nobody draws. Closed forms as for the mean: an exponential's X_(k) is a sum of
    independent ones with means 1/j, j = n-k+1..n; a uniform's has the law Beta(k, n-k+1).

    >>> from dsgd.core.time_laws import Exponential
    >>> order_statistic_skewness(Exponential(1.0)), round(order_statistic_skewness(Exponential(1.0), 8, 8), 3)
    (2.0, 1.266)
    """
    need_k(k, n)
    rest = n - k + 1
    match NoDelay() if isinstance(law, Trace) else plain_law(law):
        case Constant() | NoDelay():
            return 0.0
        case ShiftedExponential():
            j = np.arange(rest, n + 1, dtype=float)
            return float(2 * (1 / j**3).sum() / (1 / j**2).sum() ** 1.5)
        case Uniform():
            return float(2 * (rest - k) * math.sqrt(n + 2) / ((n + 3) * math.sqrt(k * rest)))
        case Markov() as chain:
            p = chain.p_slow
            if n > 1:
                from scipy.special import betainc

                p = float(betainc(rest, k, p))
            return (1 - 2 * p) / math.sqrt(p * (1 - p)) if 0 < p < 1 else math.inf
        case Pareto(alpha):
            if alpha * rest <= 3:
                return math.inf
            j = np.arange(rest, n + 1)
            moments = [math.exp(-float(np.log1p(-power / (alpha * j)).sum())) for power in (1, 2, 3)]
        case Shifted(inner, _):
            return order_statistic_skewness(inner, k, n)
        case Lognormal(_, sigma) if sigma > 4:  # its third moment would overflow; no run is that long
            return math.inf
        case _:
            moments = [_order_statistic_moment(law, k, n, power) for power in (1, 2, 3)]
    first, second, third = moments
    variance = second - first**2
    if not variance > 1e-7 * second:  # lost to rounding: hardly any spread
        return 0.0
    return float((third - 3 * first * variance - first**3) / variance**1.5)


def slowest_mean(law: Law | Erlang, factors: Floats) -> float:
    """Return E[max_i f_i X_i] for independent X_i of `law` and factors f_i (P,).

    It is the integral of P(max > t) = 1 - prod_i F(t/f_i); past the last edge, where no two workers are still
    busy, that is the sum of the workers' mean excesses.
    """
    law, slowest = plain_law(law), float(factors.max())
    if law.mean_s == math.inf:
        return math.inf
    match law:
        case Constant(seconds):
            return seconds * slowest
        case Markov(fast, slow) as chain:
            # In falling order of f_i slow, the first worker that is slow is the last of all to finish.
            late = np.sort(factors * slow)[::-1]
            late = late[late > slowest * fast]
            none_before = (1 - chain.p_slow) ** np.arange(len(late) + 1)
            return float(chain.p_slow * none_before[:-1] @ late + none_before[-1] * slowest * fast)
    distinct, counts = np.unique(factors, return_counts=True)
    if len(distinct) == 1 and not isinstance(law, Erlang):
        return slowest * order_statistic_mean(law, len(factors), len(factors))

    def not_done(t: Floats, f: Floats, n: NDArray[np.int64]) -> Floats:
        log_done = np.zeros_like(t)
        with np.errstate(divide="ignore"):
            for i in range(0, len(f), 64):  # in blocks, to bound the memory
                log_done += np.log1p(-survival(law, t[..., None] / f[i : i + 64])) @ n[i : i + 64]
        return np.asarray(-np.expm1(log_done))

    y = np.linspace(-40, 40 + math.log(len(factors)), 32)  # e^-40 of a probability is less than rounding
    some = distinct[np.unique(np.linspace(0, len(distinct) - 1, 4).round().astype(int))]
    edges = np.unique(np.outer(some, np.exp(log_quantile(law, y))))
    edges = edges[max(0, np.count_nonzero(not_done(edges, distinct, counts) == 1) - 1) :]
    low_s, high_s = edges[0], edges[-1]
    busy = survival(law, low_s / distinct) > 1e-20
    middle = _integral(lambda t: not_done(t, distinct[busy], counts[busy]), edges)
    return float(low_s + middle + counts @ (distinct * mean_excess_s(law, high_s / distinct)))


def _integral(f: Callable[[Floats], Floats], edges: Floats) -> float:
    """Integrate `f` from the first edge to the last: Gauss-Legendre panels, halved until the halves agree."""
    nodes, weights = _gauss_legendre()

    def areas(a: Floats, b: Floats) -> Floats:
        half = (b - a) / 2
        return np.asarray((f((a + b)[:, None] / 2 + half[:, None] * nodes) @ weights) * half)

    a, b, total = edges[:-1], edges[1:], 0.0
    whole = areas(a, b)
    while len(a):
        middle = (a + b) / 2
        left, right = areas(a, middle), areas(middle, b)
        both = left + right
        rough = np.abs(both - whole) > 1e-12 * (total + both.sum())
        rough &= b - a > 1e-14 * np.abs(middle)
        total += float(both[~rough].sum())
        a, b = np.concatenate([a[rough], middle[rough]]), np.concatenate([middle[rough], b[rough]])
        whole = np.concatenate([left[rough], right[rough]])
    return total


@functools.cache
def _gauss_legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(16)
    return nodes, weights
