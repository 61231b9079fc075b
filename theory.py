"""What theory says a run must measure: times per update, staleness, noise floors, stability.

Closed forms and quadrature only, nothing is sampled. Notation: P = `num_workers` workers; X a compute
time, in seconds per mini-batch, drawn anew for each mini-batch from one of `cluster.laws` and multiplied
by the worker's factor in `slowdown` (1 where a worker is not named); X_(K) the K-th smallest of P draws;
H_n = 1 + 1/2 + ... + 1/n. An update is a new version of the weights. Workers push and fetch at once and
messages take no time, unless said. All values are long-run means.

The synchronous modes (SSGD, K-sync, backup workers, K-batch-sync, LocalSGD) have staleness 0: no function.

A function raises ValueError for arguments outside its assumptions, and NoClosedForm, which is one, where
the quantity exists but no formula is known: simulate it. Law `none` is taken as it is in the simulator,
1 s a mini-batch. A replayed trace is no law of independent draws, and nothing here holds for it.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cluster.laws import (
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

_NEGLIGIBLE = 40.0  # e^-40 = 4e-18 of a probability is less than rounding
_MAX_STATES = 100_000  # of a Markov chain: a second


class NoClosedForm(ValueError):
    """The quantity exists, but no formula for it is known."""


# --- Laws ---------------------------------------------------------------------------------------------


def survival(law: Law, t_s: ArrayLike) -> Floats:
    """Return P(X > t) for each time in `t_s` (seconds, any shape).

    Markov: a worker's chain starts stationary, so at any one step its law is the two-point law.

    >>> float(survival(Uniform(1.0, 3.0), 2.5))
    0.25
    """
    t = np.asarray(t_s, dtype=np.float64)
    match _plain(law):
        case Constant(seconds=c):
            tail = np.where(t < c, 1.0, 0.0)
        case ShiftedExponential(shift_s=shift, exponential_mean_s=mean):
            tail = np.exp(-np.maximum(t - shift, 0) / mean)
        case Uniform(low_s=low, high_s=high):
            tail = np.clip((high - t) / (high - low), 0.0, 1.0)
        case Normal(mu_s=mu, sigma_s=sigma):
            from scipy.special import ndtr

            tail = np.where(t < 0, 1.0, ndtr((mu - t) / sigma))
        case Lognormal(median_s=median, sigma=sigma):
            from scipy.special import ndtr

            with np.errstate(divide="ignore"):
                tail = ndtr(-np.log(np.maximum(t, 0) / median) / sigma)
        case Pareto(alpha=alpha, scale_s=scale):
            tail = (scale / np.maximum(t, scale)) ** alpha
        case Markov(fast_s=fast, slow_s=slow) as chain:
            tail = np.where(t < fast, 1.0, np.where(t < slow, chain.p_slow, 0.0))
        case _Erlang(shift_s=shift, mean_s=mean, terms=terms):
            from scipy.special import gammaincc

            tail = gammaincc(terms, np.maximum(t - shift, 0) / mean)
        case other:
            raise NoClosedForm(f"no distribution function is known for {other}")
    return np.asarray(tail, dtype=np.float64)


def quantile(law: Law, u: ArrayLike) -> Floats:
    """Return the smallest time (seconds) with P(X <= time) >= u, for each u in [0, 1] (any shape).

    >>> float(quantile(Uniform(1.0, 3.0), 0.25).round(12))
    1.5
    """
    p = np.asarray(u, dtype=np.float64)
    _need(bool(np.all((p >= 0) & (p <= 1))), "u must lie in [0, 1]")
    with np.errstate(divide="ignore"):
        logit = np.log(p) - np.log1p(-p)
    return np.asarray(np.exp(_log_quantile(_plain(law), logit)))


def _log_quantile(law: Law, y: Floats) -> Floats:
    """Return the logarithm of the quantile at u = 1/(1 + e^-y), which loses no digits in either tail."""
    softplus = np.logaddexp(0.0, y)  # -log(1 - u)
    with np.errstate(divide="ignore"):
        match law:
            case Constant(seconds=c):
                log_q = np.full_like(y, np.log(c))
            case ShiftedExponential(shift_s=shift, exponential_mean_s=mean):
                log_q = np.log(shift + mean * softplus)
            case Uniform(low_s=low, high_s=high):
                log_q = np.log(low + (high - low) * np.exp(-np.logaddexp(0.0, -y)))
            case Normal(mu_s=mu, sigma_s=sigma):
                log_q = np.log(np.maximum(0.0, mu + sigma * _standard_normal_quantile(y)))
            case Lognormal(median_s=median, sigma=sigma):
                log_q = math.log(median) + sigma * _standard_normal_quantile(y)
            case Pareto(alpha=alpha, scale_s=scale):
                log_q = math.log(scale) + softplus / alpha
            case Markov(fast_s=fast, slow_s=slow) as chain:
                is_slow = y > math.log1p(-chain.p_slow) - math.log(chain.p_slow)
                log_q = np.where(is_slow, np.log(slow), np.log(fast))
            case _Erlang(shift_s=shift, mean_s=mean, terms=terms):
                from scipy.special import gammainccinv, gammaincinv

                low = gammaincinv(terms, np.exp(-np.logaddexp(0.0, -y)))
                high = gammainccinv(terms, np.exp(-softplus))
                log_q = np.log(shift + mean * np.where(y < 0, low, high))
            case other:
                raise NoClosedForm(f"no quantile function is known for {other}")
    return np.asarray(log_q, dtype=np.float64)


def _standard_normal_quantile(y: Floats) -> Floats:
    from scipy.special import ndtri_exp  # takes log u

    below, above = ndtri_exp(-np.logaddexp(0.0, -y)), -ndtri_exp(-np.logaddexp(0.0, y))
    return np.asarray(np.where(y < 0, below, above))


def _mean_excess_s(law: Law, t: Floats) -> Floats:
    """Return E[(X - t)^+] for times t so late that only heavy tails have anything left."""
    match law:
        case Pareto(alpha=alpha):
            return np.asarray(t * survival(law, t) / (alpha - 1))
        case Lognormal(median_s=median, sigma=sigma):
            from scipy.special import ndtr

            z = np.log(t / median) / sigma
            return np.asarray(law.mean_s * ndtr(sigma - z) - t * ndtr(-z))
    return np.zeros_like(t)


@dataclass(frozen=True)
class _Erlang:
    """shift + the sum of `terms` exponentials of mean `mean_s` each; survival and quantile only."""

    shift_s: float
    mean_s: float
    terms: int
    syntax = ""
    variance_s2 = math.nan

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        raise NotImplementedError


def _plain(law: Law) -> Law:
    """Return the law with its special cases written as the law they are."""
    match law:
        case NoDelay():
            return Constant(1.0)
        case Uniform(low_s=low, high_s=high) if low == high:
            return Constant(low)
        case Markov(fast_s=fast, slow_s=slow) if fast == slow:
            return Constant(fast)
        case Trace():
            raise NoClosedForm("a replayed trace is not a law of independent draws; simulate it")
    return law


# --- Order statistics ---------------------------------------------------------------------------------


def harmonic(n: int) -> float:
    """Return H_n = 1 + 1/2 + ... + 1/n; H_0 = 0.

    >>> harmonic(4) == 25 / 12
    True
    """
    _need_whole("n", n, at_least=0)
    return _harmonic_between(0, n)


def _harmonic_between(m: int, n: int) -> float:
    """Return H_n - H_m, without cancellation."""
    return float((1.0 / np.arange(m + 1, n + 1)).sum())


def order_statistic_mean(law: Law, k: int, n: int) -> float:
    """Return E[X_(k)], the mean (seconds) of the k-th smallest of `n` independent draws of `law`.

    Shifted exponential: shift + mean (H_n - H_{n-k}).  Uniform: low + (high - low) k/(n + 1).
    Pareto: scale Gamma(n+1) Gamma(n-k+1-1/alpha) / (Gamma(n-k+1) Gamma(n+1-1/alpha)), which is
    scale * prod_{j=n-k+1..n} 1/(1 - 1/(alpha j)), and infinite where alpha (n - k + 1) <= 1.
    Markov: fast + (slow - fast) P(at least n-k+1 of n are slow).  Normal, lognormal: by quadrature.
    Source: Renyi 1953, "On the theory of order statistics"; David & Nagaraja 2003, "Order statistics".

    >>> order_statistic_mean(Uniform(0.0, 1.0), 3, 3)
    0.75
    """
    _need_order(k, n)
    match _plain(law):
        case Constant(seconds=c):
            return c
        case ShiftedExponential(shift_s=shift, exponential_mean_s=mean):
            return shift + mean * _harmonic_between(n - k, n)
        case Uniform(low_s=low, high_s=high):
            return low + (high - low) * k / (n + 1)
        case Pareto(alpha=alpha, scale_s=scale):
            if alpha * (n - k + 1) <= 1:
                return math.inf
            j = np.arange(n - k + 1, n + 1)
            return scale * math.exp(-float(np.log1p(-1 / (alpha * j)).sum()))
        case Markov(fast_s=fast, slow_s=slow) as chain:
            from scipy.special import betainc

            return fast + (slow - fast) * float(betainc(n - k + 1, k, chain.p_slow))
    return order_statistic_mean_by_quadrature(law, k, n)


def order_statistic_mean_by_quadrature(law: Law, k: int, n: int) -> float:
    """Return what `order_statistic_mean` returns, for any law, to a relative error below 1e-9.

    E[X_(k)] = integral over u in (0, 1) of quantile(u) times the Beta(k, n-k+1) density: X_(k) is the
    quantile at the k-th smallest of n uniform draws (David & Nagaraja 2003). In y = log(u/(1-u)) the
    density is log-concave, and neither tail loses digits.
    """
    from scipy.special import betaln

    _need_order(k, n)
    law = _plain(law)
    if isinstance(law, Pareto) and law.alpha * (n - k + 1) <= 1:
        return math.inf

    def integrand(y: Floats) -> Floats:
        log_density = -k * np.logaddexp(0.0, -y) - (n - k + 1) * np.logaddexp(0.0, y) - betaln(k, n - k + 1)
        return np.asarray(np.exp(log_density + _log_quantile(law, y)))

    mode, width = math.log(k / (n - k + 1)), math.sqrt((n + 1) / k / (n - k + 1))
    edges = [mode + width * np.concatenate([-(2.0 ** np.arange(12, -2, -1)), [0], 2.0 ** np.arange(-1, 30)])]
    if isinstance(law, Normal):  # negative draws are cut to 0: a kink
        from scipy.special import log_ndtr

        z = law.mu_s / law.sigma_s
        edges.append(np.array([log_ndtr(-z) - log_ndtr(z)]))
    return _integral(integrand, np.unique(np.concatenate(edges)))


def _slowest_mean(law: Law, factors: Floats) -> float:
    """Return E[max_i f_i X_i] for independent X_i of `law` and factors f_i (P,).

    The integral of P(max > t) = 1 - prod_i F(t / f_i); past the last edge, where no two workers are
    still busy, the sum of the workers' mean excesses.
    """
    law, slowest = _plain(law), float(factors.max())
    if law.mean_s == math.inf:
        return math.inf
    match law:
        case Constant(seconds=c):
            return c * slowest
        case Markov(fast_s=fast, slow_s=slow) as chain:
            # In falling order of f_i slow: the first who is slow is the maximum, unless a fast one is later.
            late = np.sort(factors * slow)[::-1]
            late = late[late > slowest * fast]
            first = chain.p_slow * (1 - chain.p_slow) ** np.arange(len(late))
            return float(first @ late) + slowest * fast * (1 - chain.p_slow) ** len(late)
    distinct, counts = np.unique(factors, return_counts=True)
    if len(distinct) == 1 and not isinstance(law, _Erlang):
        return slowest * order_statistic_mean(law, len(factors), len(factors))

    def not_done(t: Floats) -> Floats:
        log_done = np.zeros_like(t)
        with np.errstate(divide="ignore"):
            for i in range(0, len(distinct), 64):  # blocks, to bound the memory
                tails = survival(law, t[..., None] / distinct[i : i + 64])
                log_done += np.log1p(-tails) @ counts[i : i + 64]
        return np.asarray(-np.expm1(log_done))

    y = np.linspace(-_NEGLIGIBLE, _NEGLIGIBLE + math.log(len(factors)), 48)
    some = distinct[np.unique(np.linspace(0, len(distinct) - 1, 4).round().astype(int))]
    edges = np.outer(some, np.exp(_log_quantile(law, y)))
    low_s, high_s = edges[-1, 0], edges[-1, -1]  # of the slowest worker
    middle = _integral(not_done, np.unique(np.maximum(edges, low_s)))
    return float(low_s + middle + counts @ (distinct * _mean_excess_s(law, high_s / distinct)))


def _integral(f: Callable[[Floats], Floats], edges: Floats) -> float:
    """Integrate `f` from the first edge to the last: Gauss-Legendre panels, halved until all agree."""
    nodes, weights = _gauss_legendre()

    def areas(a: Floats, b: Floats) -> Floats:
        half = (b - a) / 2
        return np.asarray((f((a + b)[:, None] / 2 + half[:, None] * nodes) @ weights) * half)

    a, b, total = edges[:-1], edges[1:], 0.0
    coarse = areas(a, b)
    while len(a):
        middle = (a + b) / 2
        left, right = areas(a, middle), areas(middle, b)
        fine = left + right
        tiny = (b - a) <= 1e-14 * np.abs(middle)
        rough = (np.abs(fine - coarse) > 1e-12 * (total + fine.sum())) & ~tiny
        total += float(fine[~rough].sum())
        a, b = np.concatenate([a[rough], middle[rough]]), np.concatenate([middle[rough], b[rough]])
        coarse = np.concatenate([left[rough], right[rough]])
    return total


@functools.cache
def _gauss_legendre() -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(16)
    return nodes, weights


# --- Time per update ----------------------------------------------------------------------------------


def ssgd_time(law: Law, num_workers: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return SSGD's seconds per update, E[max_i f_i X_i]; exponential: mean * H_P.

    Any law, independent workers. Source: Dutta et al. 2018 (arXiv 1803.01113), K-sync with K = P.

    >>> ssgd_time(Exponential(1.0), 2)
    1.5
    """
    return _slowest_mean(law, _factors(num_workers, slowdown))


def k_sync_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-sync SGD's seconds per update, E[X_(K)]; exponential: mean (H_P - H_{P-K}).

    The server waits for the first K = `k` of P gradients and the other workers start afresh.
    Any law, equal workers. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> k_sync_time(Exponential(1.0), 8, 1)
    0.125
    """
    return order_statistic_mean(law, k, num_workers)


def backup_workers_time(law: Law, num_workers: int, backups: int) -> float:
    """Return seconds per update with N = `num_workers` needed and b = `backups` more, E[X_(N)] of N + b.

    Exponential: mean (H_{N+b} - H_b). Any law, equal workers. Source: Chen et al. 2016 (arXiv 1604.00981).

    >>> round(backup_workers_time(Exponential(1.0), 96, 4), 4)
    3.104
    """
    _need_whole("backups", backups, at_least=0)
    return order_statistic_mean(law, num_workers, num_workers + backups)


def k_batch_sync_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-batch-sync SGD's seconds per update: mean K/P for exponential times, E[X_(1)] for K = 1.

    As K-sync, but a worker goes on at once with another mini-batch at the same weights, and all start
    afresh at the update; so other laws have no closed form. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> k_batch_sync_time(Exponential(1.0), 8, 4)
    0.5
    """
    _need_whole("num_workers", num_workers)
    _need_whole("k", k)
    if k == 1:
        return order_statistic_mean(law, 1, num_workers)
    return _exponential_mean_s(law, "K-batch-sync's time per update") * k / num_workers


def asgd_time(law: Law, num_workers: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return ASGD's seconds per update, 1 / sum_i r_i with rates r_i = 1/(f_i E[X]); equal: E[X]/P.

    Any law: each worker renews on its own (elementary renewal theorem); infinite where the law has no
    mean. Source: Dutta et al. 2018 (arXiv 1803.01113), K-async with K = 1.

    >>> asgd_time(Constant(1.0), 3, {0: 2.0})
    0.4
    """
    return _plain(law).mean_s / float((1 / _factors(num_workers, slowdown)).sum())


def k_batch_async_time(law: Law, num_workers: int, k: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return K-batch-async SGD's seconds per update, K / sum_i r_i (equal workers: K E[X]/P).

    The server updates with every K = `k` gradients, of whatever workers, and no worker waits. Any law.
    Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> k_batch_async_time(Uniform(0.0, 2.0), 8, 4)
    0.5
    """
    _need_whole("k", k)
    return k * asgd_time(law, num_workers, slowdown)


def k_async_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-async SGD's seconds per update; exponential: mean (H_P - H_{P-K}), as K-sync.

    The server updates with the first K = `k` gradients; their workers wait for it, the others go on.
    Exponential times have no memory, so after an update all P are as good as fresh. Else only K = 1
    (ASGD, E[X]/P) and K = P (SSGD) have a formula. Equal workers. Source: Dutta et al. 2018
    (arXiv 1803.01113).

    >>> k_async_time(Exponential(1.0), 8, 1)
    0.125
    """
    _need_order(k, num_workers)
    if k == 1:
        return asgd_time(law, num_workers)
    if k < num_workers:
        _exponential_mean_s(law, "K-async's time per update with 1 < K < P")
    return order_statistic_mean(law, k, num_workers)


def local_sgd_time_per_step(
    law: Law, num_workers: int, local_steps: int, slowdown: Mapping[int, float] = {}
) -> float:
    """Return LocalSGD's seconds per local step, E[max_i f_i (X_i1 + ... + X_iH)]/H, H = `local_steps`.

    Any law for H = 1 or P = 1, and constant times. Sums of (shifted) exponentials are Erlang laws,
    P(sum > t) = e^-t (1 + t + ... + t^(H-1)/(H-1)!) at mean 1; their maximum is integrated numerically.
    Source: Wang & Joshi 2018 (arXiv 1810.08313); the tail is the Erlang law's.

    >>> round(local_sgd_time_per_step(Exponential(1.0), 8, 16), 3)
    1.383
    """
    _need_whole("local_steps", local_steps)
    law, factors = _plain(law), _factors(num_workers, slowdown)
    if num_workers == 1:
        return law.mean_s * float(factors[0])
    if local_steps == 1 or isinstance(law, Constant) or law.mean_s == math.inf:
        return _slowest_mean(law, factors)
    if not isinstance(law, ShiftedExponential):
        raise NoClosedForm(f"the sum of {local_steps} times of {law} has no closed form; simulate it")
    total = _Erlang(local_steps * law.shift_s, law.exponential_mean_s, local_steps)
    return _slowest_mean(total, factors) / local_steps


def ssp_steps_per_s(law: Law, num_workers: int, slack: float, slowdown: Mapping[int, float] = {}) -> float:
    """Return the steps per second of each worker under SSP; an update takes 1/(P steps_per_s) seconds.

    The gap between clocks is bounded, so all workers have the same long-run rate. With s = `slack`:
    s = 0, any law: 1/E[max_i f_i X_i].  Constant times: 1/max_i f_i X, whatever the slack.
    s = inf, equal workers: 1/E[X].  Two exponential workers of rates r_1, r_2: their clocks differ by d,
    |d| <= s+1, d moves up at rate r_1 unless at s+1, down at rate r_2 unless at -(s+1), so P(d) is
    proportional to (r_1/r_2)^d and the rate is r_1 (1 - P(s+1)); equal: r (2s+2)/(2s+3).  P equal
    exponential workers: E[workers not blocked]/P of the Markov chain of the clocks' offsets, solved
    numerically up to 100,000 states.
    Source: Ho et al. 2013 (NIPS 26) for the rule; the rates follow from it.

    >>> ssp_steps_per_s(Constant(1.0), 8, 3, {0: 4.0})
    0.25
    """
    law, factors = _plain(law), _factors(num_workers, slowdown)
    _need_slack(slack)
    slowest, equal = float(factors.max()), bool(np.ptp(factors) == 0)
    if num_workers == 1 or (slack == math.inf and equal):
        return _per_s(law.mean_s * slowest)
    _need(slack < math.inf, "without a bound unequal workers have different rates: see asgd_time")
    if slack == 0 or isinstance(law, Constant):
        return _per_s(_slowest_mean(law, factors))
    mean_s = _exponential_mean_s(law, "SSP's rate with slack above 0")
    if num_workers == 2:
        d = np.arange(-slack - 1, slack + 2) * math.log(factors[1] / factors[0])  # log (r_1/r_2)^d
        weights = np.exp(d - d.max())
        return float(weights[:-1].sum() / weights.sum() / (mean_s * factors[0]))
    if not equal:
        raise NoClosedForm("SSP's rate with slack above 0 and more than two unequal workers; simulate it")
    return _ssp_workers_not_blocked(num_workers, int(slack))[0] / (num_workers * mean_s * slowest)


def server_updates_per_s(compute: Law, service: Law, num_workers: int, latency_s: float = 0.0) -> float:
    """Return ASGD's updates per second where the server takes a time of law `service` for each push.

    The closed machine-repair queue M/M/1//P: X = (1 - p0)/S with 1/p0 = sum_k P!/(P-k)! (S/Z)^k, S the
    mean service time, Z = E[compute] + 2 latency. p0 is Erlang's loss formula B(P, Z/S), which is
    computed by its recursion. The service must be exponential and first come, first served; the law of
    compute times matters by its mean only. For P = 1 any service law: 1/(Z + S).
    Source: Kleinrock 1975, "Queueing systems" I, section 3.8; Baskett, Chandy, Muntz & Palacios 1975.

    >>> round(server_updates_per_s(Exponential(1.0), Exponential(0.1), 8), 3)
    6.617
    """
    _need_whole("num_workers", num_workers)
    think_s, service_s = _think_s(compute, latency_s), _plain(service).mean_s
    _need(0 < service_s < math.inf, "the mean service time must be above 0 and finite")
    if num_workers == 1 or think_s == math.inf:
        return _per_s(think_s + service_s)
    _exponential_mean_s(service, "the rate of a server with more than one worker")
    busy = 0.0
    for n in range(1, num_workers + 1):
        busy = _server_busy_share(n, busy, think_s / service_s)
    return busy / service_s


def server_updates_per_s_bound(compute: Law, service: Law, num_workers: int, latency_s: float = 0.0) -> float:
    """Return an upper bound on ASGD's updates per second at a server, min(1/S, P/(Z + S)), any laws.

    Source: Denning & Buzen 1978, "The operational analysis of queueing network models". Symbols as in
    `server_updates_per_s`.

    >>> server_updates_per_s_bound(Constant(1.0), Constant(0.25), 8)
    4.0
    """
    _need_whole("num_workers", num_workers)
    think_s, service_s = _think_s(compute, latency_s), _plain(service).mean_s
    return min(_per_s(service_s), num_workers * _per_s(think_s + service_s))


def _server_busy_share(workers: int, busy_with_one_less: float, think_per_service: float) -> float:
    """Return 1 - B(n, a) from 1 - B(n-1, a), B Erlang's loss formula: n / (n + a B(n-1, a))."""
    return workers / (workers + think_per_service * (1 - busy_with_one_less))


# --- Staleness, in updates; the gradient's own update is not counted -----------------------------------


def asgd_mean_staleness(num_workers: int) -> float:
    """Return the mean staleness over all of ASGD's gradients, P - 1, whatever the speeds.

    Each update ages the P - 1 other gradients in flight by one. Source: Zhang et al. 2015
    (arXiv 1511.05950) observes it; Mitliagkas et al. 2016 (arXiv 1605.09774).

    >>> asgd_mean_staleness(8)
    7.0
    """
    return k_batch_async_mean_staleness(num_workers, 1)


def asgd_mean_staleness_by_worker(num_workers: int, slowdown: Mapping[int, float]) -> Floats:
    """Return each worker's own mean staleness under ASGD (P,): R/r_i - 1, R the sum of the rates r_i.

    Any law with a mean, which cancels: r_i is proportional to 1/f_i. R/r_i updates pass, on average,
    from one gradient of worker i to its next.

    >>> asgd_mean_staleness_by_worker(3, {0: 4.0}).tolist()
    [8.0, 1.25, 1.25]
    """
    factors = _factors(num_workers, slowdown)
    return np.asarray(factors * (1 / factors).sum() - 1)


def asgd_staleness_pmf(law: Law, num_workers: int, staleness: int) -> float:
    """Return P(tau = `staleness`) under ASGD with exponential times: (1/P)(1 - 1/P)^tau, geometric.

    Equal workers. Any law for P = 1. Source: Mitliagkas et al. 2016 (arXiv 1605.09774).

    >>> asgd_staleness_pmf(Exponential(1.0), 2, 1)
    0.25
    """
    return k_async_staleness_pmf(law, num_workers, 1, staleness)


def k_async_mean_staleness(num_workers: int, k: int) -> float:
    """Return K-async SGD's mean staleness, (P - K)/K, whatever the speeds.

    Each update of K = `k` gradients ages the P - K others in flight by one. Model as in `k_async_time`.

    >>> k_async_mean_staleness(8, 2)
    3.0
    """
    _need_order(k, num_workers)
    return (num_workers - k) / k


def k_async_staleness_pmf(law: Law, num_workers: int, k: int, staleness: int) -> float:
    """Return P(tau = `staleness`) under K-async with exponential times: p (1 - p)^tau, p = K/P.

    Exponential times have no memory, so each update takes a fresh random K of the P equal workers.
    Any law for K = P, where tau = 0. Source: Dutta et al. 2018 (arXiv 1803.01113) for p.

    >>> k_async_staleness_pmf(Exponential(1.0), 8, 4, 0)
    0.5
    """
    _need_order(k, num_workers)
    _need_whole("staleness", staleness, at_least=0)
    if k < num_workers:
        _exponential_mean_s(law, "the distribution of staleness")
    p = k / num_workers
    return float(p * (1 - p) ** staleness)


def k_batch_async_mean_staleness(num_workers: int, k: int) -> float:
    """Return K-batch-async SGD's mean staleness, (P - 1)/K, whatever the speeds.

    P - 1 other gradients arrive, on average, between the reading and the arrival of one, and each K of
    them make an update.

    >>> k_batch_async_mean_staleness(8, 2)
    3.5
    """
    _need_whole("num_workers", num_workers)
    _need_whole("k", k)
    return (num_workers - 1) / k


def ssp_staleness_bound(num_workers: int, slack: float) -> float:
    """Return the largest staleness SSP can have, (P - 1)(2s + 1), which is attained; s = `slack`.

    A task starts at most s ahead of the slowest and ends before another worker is s + 1 ahead of it.
    Source: Ho et al. 2013 (NIPS 26); the constant is that of a worker that always reads the newest weights.

    >>> ssp_staleness_bound(8, 3)
    49.0
    """
    _need_whole("num_workers", num_workers)
    _need_slack(slack)
    return (num_workers - 1) * (2 * slack + 1.0) if num_workers > 1 else 0.0


def ssp_clock_gap_bound(num_workers: int, slack: float) -> float:
    """Return the largest gap, fastest minus slowest clock, seen when a task completes under SSP: s + 1.

    Source: Ho et al. 2013 (NIPS 26): a worker starts at most s = `slack` ahead, so ends at most s + 1.

    >>> ssp_clock_gap_bound(8, 3)
    4.0
    """
    _need_whole("num_workers", num_workers)
    _need_slack(slack)
    return slack + 1.0 if num_workers > 1 else 0.0


def ssp_mean_staleness(law: Law, num_workers: int, slack: float) -> float:
    """Return SSP's mean staleness, P equal workers, s = `slack`.

    s = 0, any law: (P - 1)/2.  s = inf: P - 1, as ASGD.  Exponential times: an update ages the other tasks
    in flight, so the mean is E[m^2]/E[m] - 1, m the number of workers not blocked (the Markov chain of
    `ssp_steps_per_s`); for P = 2 it is (2s + 1)/(2s + 2).
    Source: Ho et al. 2013 (NIPS 26) for the rule; the mean follows from it.

    >>> ssp_mean_staleness(Constant(1.0), 8, 0)
    3.5
    """
    _need_whole("num_workers", num_workers)
    _need_slack(slack)
    if slack in (0, math.inf) or num_workers == 1:
        return (num_workers - 1) / (2 if slack == 0 else 1)
    _exponential_mean_s(law, "SSP's mean staleness with slack above 0")
    first, second = _ssp_workers_not_blocked(num_workers, int(slack))
    return second / first - 1


@functools.lru_cache(maxsize=64)
def _ssp_workers_not_blocked(num_workers: int, slack: int) -> tuple[float, float]:
    """Return E[m] and E[m^2] in the stationary law of SSP with equal exponential workers of rate 1.

    The state counts the workers at each offset 0..slack+1 above the slowest clock; those at the last are
    blocked, the others, m of them, step at rate 1 each.
    """
    if num_workers == 2:  # the clocks' difference is uniform on 2 slack + 3 values, both ends blocked
        return (4 * slack + 4) / (2 * slack + 3), (8 * slack + 6) / (2 * slack + 3)
    if math.comb(num_workers + slack, slack + 1) > _MAX_STATES:
        raise NoClosedForm(
            f"SSP's Markov chain for {num_workers} workers and slack {slack} has more than "
            f"{_MAX_STATES:,} states; simulate it"
        )
    from scipy.sparse import coo_array, dia_array, tril
    from scipy.sparse.linalg import LinearOperator, gmres, splu

    number = {(num_workers,) + (0,) * (slack + 1): 0}
    states = list(number)
    moves: list[tuple[int, int, int]] = []  # to, from, rate
    for state in states:
        for offset, workers in enumerate(state[:-1]):
            if workers:
                after = [*state[:offset], workers - 1, state[offset + 1] + 1, *state[offset + 2 :]]
                shifted = tuple(after if after[0] else [*after[1:], 0])
                if shifted not in number:
                    number[shifted] = len(states)
                    states.append(shifted)
                moves.append((number[shifted], number[state], workers))
    counts = np.array(states)
    # Ordered by total offset, all moves but those of the last slowest worker lead forward: the lower
    # triangle of the generator is nearly all of it, and a few steps of GMRES do the rest.
    place = np.argsort(np.argsort(counts @ np.arange(slack + 2), kind="stable"))
    active = np.empty(len(states))
    active[place] = num_workers - counts[:, -1]
    to, start, rate = np.array(moves).T
    shape = (len(states), len(states))
    generator = coo_array((rate.astype(float), (place[to], place[start])), shape=shape).tocsc()
    generator -= dia_array((active[None], [0]), shape=shape).tocsc()
    lower = splu(tril(generator, format="csc"), permc_spec="NATURAL", options={"DiagPivotThresh": 0.0})
    # generator pi = 0 and sum pi = 1 are one regular system: generator pi - e sum(pi) = -e.
    e = np.zeros(len(states))
    e[0] = num_workers
    system = LinearOperator(shape, lambda p: generator @ p - e * p.sum(), dtype=np.float64)
    pi, failed = gmres(
        system, -e, rtol=1e-11, restart=60, maxiter=10, M=LinearOperator(shape, lower.solve, dtype=np.float64)
    )
    assert not failed, "GMRES did not converge"
    pi /= pi.sum()
    return float(pi @ active), float(pi @ active**2)


# --- Optimization of a quadratic, f(w) = curvature (w - w*)^2 / 2 ---------------------------------------


def largest_stable_step(delay: int) -> float:
    """Return the lr * curvature below which w_{t+1} = w_t - lr curvature w_{t-tau} is stable, tau = `delay`.

    2 sin(pi / (2 (2 tau + 1))). The delay is constant; ASGD's random staleness of equal mean is another case.
    Source: Levin & May 1976, "A note on difference-delay equations".

    >>> round(largest_stable_step(1), 12)
    1.0
    """
    _need_whole("delay", delay, at_least=0)
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def noise_floor(
    lr: float, curvature: float, noise_variance: float, *, num_workers: int = 1, delay: int = 0
) -> float:
    """Return the stationary E[(w - w*)^2], per coordinate, of SGD with a constant step and delay.

    w_{t+1} = w_t - lr (curvature (w_{t-tau} - w*) + noise), the noise independent between steps, with mean 0
    and variance sigma^2/P: P = `num_workers` gradients of variance `noise_variance` are averaged. It is the
    second moment of the iterate itself, not of its time average; the expected excess loss is half the
    curvature times it. SSGD is delay 0:

        lr sigma^2 / (P curvature (2 - lr curvature))

    With a = lr curvature, phi = 2 arcsin(a/2), beta = (tau + 1/2) phi, the Yule-Walker equations
    g_k - g_{k-1} = -a g_{tau+1-k} are solved by g_k = C cos(phi k + pi/4 - beta/2), and so

        g_0 = lr^2 sigma^2/P (1 + sin beta) / (2 sin phi cos beta),

    infinite at `largest_stable_step(tau)`. It is the discrete counterpart of Kuechler & Mensch 1992,
    "Langevin's stochastic differential equation extended by a time-delayed term".

    >>> [round(noise_floor(0.1, 1.0, 1.0, delay=tau), 5) for tau in (0, 1, 3, 7)]
    [0.05263, 0.0582, 0.07158, 0.11511]
    """
    _need_whole("num_workers", num_workers)
    _need(noise_variance >= 0, "noise_variance must be at least 0")
    step = _positive_step(lr, curvature)
    _need(step < largest_stable_step(delay), f"lr * curvature = {step:g} is not stable with delay {delay}")
    phi = 2 * math.asin(step / 2)
    beta = (delay + 0.5) * phi
    return lr**2 * noise_variance / num_workers * (1 + math.sin(beta)) / (2 * math.sin(phi) * math.cos(beta))


def momentum_from_asynchrony(num_workers: int) -> float:
    """Return the implicit momentum of ASGD with M = `num_workers` memoryless (exponential) workers, 1 - 1/M.

    The mean iterate moves as under heavy-ball momentum 1 - 1/M, with a step of lr/M.
    Source: Mitliagkas et al. 2016 (arXiv 1605.09774).

    >>> momentum_from_asynchrony(4)
    0.75
    """
    _need_whole("num_workers", num_workers)
    return 1 - 1 / num_workers


def local_sgd_fixed_point(
    lr: float, curvatures: Sequence[float], optima: Sequence[float], local_steps: float
) -> float:
    """Return where LocalSGD without noise ends: sum_i q_i x_i / sum_i q_i, q_i = 1 - (1 - lr a_i)^H.

    Worker i has the loss a_i (w - x_i)^2 / 2, a_i in `curvatures`, x_i in `optima`; H = `local_steps`, inf for
    its limit. Plain SGD on the workers, weights averaged, 0 < lr a_i < 2. H = 1 gives the optimum of the mean loss.
    Source: algebra (w -> x_i + (1 - lr a_i)^H (w - x_i), averaged); Malinovsky et al. 2020 (arXiv 2004.01442).

    >>> round(local_sgd_fixed_point(0.1, [1.0, 5.0], [0.0, 1.0], 1), 4)
    0.8333
    """
    _need(
        len(curvatures) == len(optima) > 0, "curvatures and optima must name the same workers, at least one"
    )
    _need(
        local_steps >= 1 and (local_steps == math.inf or local_steps == int(local_steps)),
        f"local_steps must be a whole number of at least 1, or inf, not {local_steps}",
    )
    steps = np.array([_positive_step(lr, a) for a in curvatures])
    _need(bool(np.all(steps < 2)), "lr * curvature must be below 2 on each worker")
    q = 1 - (1 - steps) ** local_steps
    return float(q @ np.asarray(optima) / q.sum())


def easgd_largest_stable_alpha(lr_curvature: float) -> float:
    """Return the largest stable elasticity of round-robin EASGD, (4 - 2 eta)/(4 - eta), eta = `lr_curvature`.

    Stable iff 0 <= eta <= 2 and 0 <= alpha <= that, for any number of workers; on the boundary, iterates stay
    bounded but need not converge. Source: Zhang, Choromanska & LeCun 2015 (NIPS 28; arXiv 1412.6651).

    >>> easgd_largest_stable_alpha(1.0) == 2 / 3
    True
    """
    _need(0 <= lr_curvature <= 2, "no elasticity is stable unless lr * curvature lies in [0, 2]")
    return (4 - 2 * lr_curvature) / (4 - lr_curvature)


# --- Advice -------------------------------------------------------------------------------------------


def best_k_sync(law: Law, num_workers: int) -> int:
    """Return the K with most gradients per second under K-sync: argmax_K K / E[X_(K)], the largest if equal.

    Exponential: 1, since nothing is gained by waiting; constant: P. It counts gradients, not what they are
    worth: a larger K makes a less noisy update. Source: Dutta et al. 2018 (arXiv 1803.01113) for E[X_(K)].

    >>> best_k_sync(ShiftedExponential(1.0, 1.0), 8)
    6
    """
    _need_whole("num_workers", num_workers)
    _need(_plain(law).mean_s > 0, "compute times of 0 give infinitely many gradients with any K")

    @functools.cache
    def time_s(k: int) -> float:
        return order_statistic_mean(law, k, num_workers)

    best, best_k = 0.0, 1
    # E[X_(K)] rises with K, so no K in [low, high] has a rate above high / E[X_(low)]: branch and bound.
    blocks = [(-math.inf, 1, num_workers)]
    while blocks and -blocks[0][0] >= best * (1 - 1e-12):
        _, low, high = heapq.heappop(blocks)
        for k in {low, high}:
            rate = k * _per_s(time_s(k))
            if rate > best * (1 + 1e-12) or (rate >= best * (1 - 1e-12) and k > best_k):
                best, best_k = max(rate, best), k
        if high - low > 1:
            middle = (low + high) // 2
            for a, b in ((low, middle), (middle, high)):
                heapq.heappush(blocks, (-(b * _per_s(time_s(a))), a, b))
    return best_k


def workers_to_fill_server(compute: Law, service: Law, share: float, latency_s: float = 0.0) -> int:
    """Return the smallest P with which ASGD reaches `share` (in (0, 1)) of the server's top rate 1/S.

    The smallest P with 1 - p0 >= share in the machine-repair queue of `server_updates_per_s`, whose
    assumptions hold: exponential service, compute times by their mean.

    >>> workers_to_fill_server(Exponential(1.0), Exponential(0.1), 0.9)
    13
    """
    _need(0 < share < 1, f"share must lie strictly between 0 and 1, not {share}")
    service_s = _exponential_mean_s(service, "the number of workers that fill a server")
    think_s = _think_s(compute, latency_s)
    _need(think_s < math.inf, "compute times without a mean fill no server")
    workers, busy = 0, 0.0
    while busy < share:
        workers += 1
        busy = _server_busy_share(workers, busy, think_s / service_s)
    return workers


# --- Checks -------------------------------------------------------------------------------------------


def _need(condition: bool, rule: str) -> None:
    if not condition:
        raise ValueError(rule)


def _need_whole(name: str, value: float, at_least: int = 1) -> None:
    whole = isinstance(value, (int, np.integer)) and value >= at_least
    _need(whole, f"{name} must be a whole number of at least {at_least}, not {value}")


def _need_order(k: int, n: int) -> None:
    _need_whole("the number of workers", n)
    _need_whole("k", k)
    _need(k <= n, f"k must be at most the number of workers, {n}, not {k}")


def _need_slack(slack: float) -> None:
    whole = slack >= 0 and (slack == math.inf or slack == int(slack))
    _need(whole, f"slack must be a whole number of at least 0, or inf, not {slack}")


def _factors(num_workers: int, slowdown: Mapping[int, float]) -> Floats:
    _need_whole("num_workers", num_workers)
    factors = np.ones(num_workers)
    for worker, factor in slowdown.items():
        _need(
            0 <= worker < num_workers, f"slowdown names worker {worker}, but there are {num_workers}, from 0"
        )
        _need(
            0 < factor < math.inf, f"the slowdown of worker {worker} must be above 0 and finite, not {factor}"
        )
        factors[worker] = factor
    return factors


def _exponential_mean_s(law: Law, what: str) -> float:
    match _plain(law):
        case Exponential(exponential_mean_s=mean) | ShiftedExponential(0, mean):
            return mean
        case other:
            raise NoClosedForm(f"{what} has a closed form for exponential times only, not for {other}")


def _think_s(compute: Law, latency_s: float) -> float:
    _need(0 <= latency_s < math.inf, f"latency_s must be at least 0 and finite, not {latency_s}")
    return _plain(compute).mean_s + 2 * latency_s


def _positive_step(lr: float, curvature: float) -> float:
    _need(lr > 0 and curvature > 0, f"lr and curvature must be above 0, not {lr} and {curvature}")
    return lr * curvature


def _per_s(seconds: float) -> float:
    return 1 / seconds if seconds else math.inf
