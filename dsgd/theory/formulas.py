"""What theory says a run must measure: times per update, staleness, noise floors, stability.

Closed forms and quadrature; nothing is sampled. Notation: P = `num_workers` workers; X a compute time in
seconds per mini-batch, drawn for each mini-batch from a law of `cluster.laws` and multiplied by the worker's
factor f_i in `slowdown` (1 where it is not named); X_(K) the K-th smallest of P draws; H_n = 1 + ... + 1/n.
An update is a new version of the weights. Workers push and fetch at once, and messages take no time, unless
said. Values are long-run means. The synchronous modes (SSGD, K-sync, backup workers, K-batch-sync, LocalSGD)
have staleness 0, and so no function for it.

A function raises ValueError for arguments outside its assumptions, and NoClosedForm, which is one, where the
quantity exists but no formula for it is known. Law `none` counts as in the simulator, 1 s a mini-batch.
A replayed trace is no law of independent draws: whatever needs a law raises NoClosedForm for it.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsgd.cluster.laws import (
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


class NoClosedForm(ValueError):
    """The quantity exists, but no formula for it is known."""


# --- Laws ---------------------------------------------------------------------------------------------------


class _Erlang(NamedTuple):
    """shift + the sum of `terms` independent exponentials of mean `scale_s`."""

    shift_s: float
    scale_s: float
    terms: int

    @property
    def mean_s(self) -> float:
        return self.shift_s + self.terms * self.scale_s


def survival(law: Law | _Erlang, t_s: ArrayLike) -> Floats:
    """Return P(X > t) for each time t of `t_s` (seconds, any shape); 1 less it is the distribution function.

    Markov: a chain starts stationary, so at any one step a worker's law is the two-point law.

    >>> float(survival(Uniform(1.0, 3.0), 2.5))
    0.25
    """
    from scipy.special import gammaincc, ndtr

    t = np.asarray(t_s, dtype=np.float64)
    with np.errstate(divide="ignore"):
        match _plain(law):
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
            case _Erlang(shift, scale, terms):
                tail = gammaincc(terms, np.maximum(t - shift, 0) / scale)
            case other:
                raise NoClosedForm(f"no distribution function is known for {other}")
    return np.asarray(tail, dtype=np.float64)


def quantile(law: Law | _Erlang, u: ArrayLike) -> Floats:
    """Return the smallest time (seconds) with P(X <= time) >= u, for each u in [0, 1] (any shape).

    >>> float(quantile(Uniform(1.0, 3.0), 0.25).round(12))
    1.5
    """
    p = np.asarray(u, dtype=np.float64)
    _need(bool(np.all((p >= 0) & (p <= 1))), "u must lie in [0, 1]")
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(_log_quantile(law, np.log(p) - np.log1p(-p))))


def _log_quantile(law: Law | _Erlang, y: Floats) -> Floats:
    """Return the logarithm of the quantile at u = 1/(1 + e^-y): neither tail loses digits or overflows."""
    from scipy.special import gammainccinv, gammaincinv

    log_u, log_1_u = -np.logaddexp(0.0, -y), -np.logaddexp(0.0, y)
    with np.errstate(divide="ignore"):
        match _plain(law):
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
            case _Erlang(shift, scale, terms):
                below, above = gammaincinv(terms, np.exp(log_u)), gammainccinv(terms, np.exp(log_1_u))
                log_t = np.log(shift + scale * np.where(y < 0, below, above))
            case other:
                raise NoClosedForm(f"no quantile function is known for {other}")
    return np.asarray(log_t, dtype=np.float64)


def _normal_quantile(log_u: Floats, log_1_u: Floats) -> Floats:
    from scipy.special import ndtri_exp

    return np.asarray(np.where(log_u < log_1_u, ndtri_exp(log_u), -ndtri_exp(log_1_u)))


def _mean_excess_s(law: Law | _Erlang, t: Floats) -> Floats:
    """Return E[(X - t)^+] for times t so late that only the heavy tails have anything left."""
    from scipy.special import ndtr

    match law:
        case Pareto(alpha):
            return np.asarray(t * survival(law, t) / (alpha - 1))
        case Lognormal(median, sigma):
            z = np.log(t / median) / sigma
            return np.asarray(law.mean_s * ndtr(sigma - z) - t * ndtr(-z))
    return np.zeros_like(t)


def _plain(law: Law | _Erlang) -> Law | _Erlang:
    """Return the law with its special cases written as the laws they are."""
    match law:
        case NoDelay():
            return Constant(1.0)
        case Uniform(low, high) | Markov(low, high) if low == high:
            return Constant(low)
        case Trace():
            raise NoClosedForm("a replayed trace is not a law of independent draws; simulate it")
    return law


# --- Order statistics ---------------------------------------------------------------------------------------


def harmonic(n: int) -> float:
    """Return H_n = 1 + 1/2 + ... + 1/n; H_0 = 0.

    >>> harmonic(2)
    1.5
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
    scale prod_{j=n-k+1..n} 1/(1 - 1/(alpha j)); infinite where alpha (n - k + 1) <= 1.
    Markov: fast + (slow - fast) P(n - k + 1 or more of n are slow).  Normal, lognormal: by quadrature.
    Source: Renyi 1953, "On the theory of order statistics"; David & Nagaraja 2003, "Order statistics".

    >>> order_statistic_mean(Uniform(0.0, 1.0), 3, 3)
    0.75
    """
    _need_k(k, n)
    match _plain(law):
        case Constant(seconds):
            return seconds
        case ShiftedExponential(shift, mean):
            return shift + mean * _harmonic_between(n - k, n)
        case Uniform(low, high):
            return low + (high - low) * k / (n + 1)
        case Pareto(alpha, scale):
            if alpha * (n - k + 1) <= 1:
                return math.inf
            return scale * math.exp(-float(np.log1p(-1 / (alpha * np.arange(n - k + 1, n + 1))).sum()))
        case Markov(fast, slow) as chain:
            from scipy.special import betainc

            return fast + (slow - fast) * float(betainc(n - k + 1, k, chain.p_slow))
    return order_statistic_mean_by_quadrature(law, k, n)


def order_statistic_mean_by_quadrature(law: Law, k: int, n: int) -> float:
    """Return what `order_statistic_mean` returns, for any law, with a relative error below 1e-9.

    X_(k) is the quantile at the k-th smallest of n uniform draws, so E[X_(k)] is the integral over (0, 1) of
    quantile(u) times the density of Beta(k, n-k+1). In y = log(u/(1-u)) that density is log-concave.
    Source: David & Nagaraja 2003, "Order statistics".
    """
    from scipy.special import betaln, log_ndtr

    _need_k(k, n)
    if isinstance(law, Pareto) and law.alpha * (n - k + 1) <= 1:
        return math.inf

    def integrand(y: Floats) -> Floats:
        log_density = -k * np.logaddexp(0.0, -y) - (n - k + 1) * np.logaddexp(0.0, y) - betaln(k, n - k + 1)
        return np.asarray(np.exp(log_density + _log_quantile(law, y)))

    mode, width = math.log(k / (n - k + 1)), math.sqrt((n + 1) / k / (n - k + 1))
    edges = [mode + width * np.concatenate([-(2.0 ** np.arange(12, -2, -1)), [0], 2.0 ** np.arange(-1, 30)])]
    if isinstance(law, Normal):  # negative draws are cut to 0: a kink
        z = law.mu_s / law.sigma_s
        edges.append(np.array([log_ndtr(-z) - log_ndtr(z)]))
    return _integral(integrand, np.unique(np.concatenate(edges)))


def _slowest_mean(law: Law | _Erlang, factors: Floats) -> float:
    """Return E[max_i f_i X_i] for independent X_i of `law` and factors f_i (P,).

    It is the integral of P(max > t) = 1 - prod_i F(t/f_i); past the last edge, where no two workers are still
    busy, that is the sum of the workers' mean excesses.
    """
    law, slowest = _plain(law), float(factors.max())
    if law.mean_s == math.inf:
        return math.inf
    match law:
        case Constant(seconds):
            return seconds * slowest
        case Markov(fast, slow) as chain:
            # In falling order of f_i slow, the first worker who is slow is the last of all to be done.
            late = np.sort(factors * slow)[::-1]
            late = late[late > slowest * fast]
            none_before = (1 - chain.p_slow) ** np.arange(len(late) + 1)
            return float(chain.p_slow * none_before[:-1] @ late + none_before[-1] * slowest * fast)
    distinct, counts = np.unique(factors, return_counts=True)
    if len(distinct) == 1 and not isinstance(law, _Erlang):
        return slowest * order_statistic_mean(law, len(factors), len(factors))

    def not_done(t: Floats, f: Floats, n: NDArray[np.int64]) -> Floats:
        log_done = np.zeros_like(t)
        with np.errstate(divide="ignore"):
            for i in range(0, len(f), 64):  # in blocks, to bound the memory
                log_done += np.log1p(-survival(law, t[..., None] / f[i : i + 64])) @ n[i : i + 64]
        return np.asarray(-np.expm1(log_done))

    y = np.linspace(-40, 40 + math.log(len(factors)), 32)  # e^-40 of a probability is less than rounding
    some = distinct[np.unique(np.linspace(0, len(distinct) - 1, 4).round().astype(int))]
    edges = np.unique(np.outer(some, np.exp(_log_quantile(law, y))))
    edges = edges[max(0, np.count_nonzero(not_done(edges, distinct, counts) == 1) - 1) :]
    low_s, high_s = edges[0], edges[-1]
    busy = survival(law, low_s / distinct) > 1e-20
    middle = _integral(lambda t: not_done(t, distinct[busy], counts[busy]), edges)
    return float(low_s + middle + counts @ (distinct * _mean_excess_s(law, high_s / distinct)))


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


# --- Time per update ----------------------------------------------------------------------------------------


def ssgd_time(law: Law, num_workers: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return SSGD's seconds per update, E[max_i f_i X_i]; equal exponential workers: mean H_P.

    Any law, independent workers. Source: Dutta et al. 2018 (arXiv 1803.01113), K-sync with K = P.

    >>> ssgd_time(Exponential(1.0), 2)
    1.5
    """
    return _slowest_mean(law, _factors(num_workers, slowdown))


def k_sync_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-sync SGD's seconds per update, E[X_(K)]; exponential: mean (H_P - H_{P-K}).

    The server waits for the first K = `k` gradients; the other workers drop theirs and start afresh.
    Any law, equal workers. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> k_sync_time(Exponential(1.0), 8, 1)
    0.125
    """
    return order_statistic_mean(law, k, num_workers)


def backup_workers_time(law: Law, num_workers: int, backups: int) -> float:
    """Return seconds per update when N = `num_workers` of N + b are waited for: E[X_(N)] of N + b draws.

    b = `backups`; exponential: mean (H_{N+b} - H_b). Any law, equal workers.
    Source: Chen et al. 2016 (arXiv 1604.00981).

    >>> round(backup_workers_time(Exponential(1.0), 96, 4), 4)
    3.104
    """
    _need_whole("backups", backups, at_least=0)
    return order_statistic_mean(law, num_workers, num_workers + backups)


def k_batch_sync_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-batch-sync SGD's seconds per update: mean K/P for exponential times, E[X_(1)] for K = 1.

    As K-sync, but until the update a worker goes on with more mini-batches at the same weights. Equal
    workers; other laws with K = `k` > 1 have no closed form. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> k_batch_sync_time(Exponential(1.0), 8, 4)
    0.5
    """
    _need_whole("num_workers", num_workers)
    _need_whole("k", k)
    if k == 1:
        return order_statistic_mean(law, 1, num_workers)
    return _exponential_mean_s(law, "K-batch-sync's time per update") * k / num_workers


def asgd_time(law: Law, num_workers: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return ASGD's seconds per update, 1 / sum_i r_i with rates r_i = 1/(f_i E[X]); equal workers: E[X]/P.

    Any law: each worker renews on its own (the elementary renewal theorem); infinite where the law has no
    mean. Source: Dutta et al. 2018 (arXiv 1803.01113), K-async with K = 1.

    >>> asgd_time(Constant(1.0), 3, {0: 2.0})
    0.4
    """
    return _plain(law).mean_s / float((1 / _factors(num_workers, slowdown)).sum())


def k_batch_async_time(law: Law, num_workers: int, k: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return K-batch-async SGD's seconds per update, K / sum_i r_i; equal workers: K E[X]/P.

    Every K = `k` gradients, of whatever workers, make an update, and no worker waits. Any law, as in
    `asgd_time`. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> k_batch_async_time(Uniform(0.0, 2.0), 8, 4)
    0.5
    """
    _need_whole("k", k)
    return k * asgd_time(law, num_workers, slowdown)


def k_async_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-async SGD's seconds per update; exponential: mean (H_P - H_{P-K}), as K-sync.

    The first K = `k` gradients make an update; their workers wait for it, the others go on. Exponential times
    have no memory, so after an update all P are as good as fresh. Else only K = 1 (ASGD: E[X]/P) and K = P
    (SSGD) have a formula. Equal workers. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> k_async_time(Exponential(1.0), 8, 1)
    0.125
    """
    _need_k(k, num_workers)
    if k == 1:
        return asgd_time(law, num_workers)
    if k < num_workers:
        _exponential_mean_s(law, "K-async's time per update with 1 < K < P")
    return order_statistic_mean(law, k, num_workers)


def local_sgd_time_per_step(
    law: Law, num_workers: int, local_steps: int, slowdown: Mapping[int, float] = {}
) -> float:
    """Return LocalSGD's seconds per local step, E[max_i f_i (X_i1 + ... + X_iH)]/H, H = `local_steps`.

    Any law for H = 1 or P = 1; constant times. A sum of exponentials is an Erlang law, at mean 1 P(sum > t) =
    e^-t (1 + t + ... + t^(H-1)/(H-1)!), and H shifts add up: the maximum is integrated numerically.
    Source: Wang & Joshi 2018 (arXiv 1810.08313).

    >>> round(local_sgd_time_per_step(Exponential(1.0), 8, 16), 3)
    1.383
    """
    _need_whole("local_steps", local_steps)
    plain, factors = _plain(law), _factors(num_workers, slowdown)
    if num_workers == 1:
        return plain.mean_s * float(factors[0])
    if local_steps == 1 or isinstance(plain, Constant) or plain.mean_s == math.inf:
        return _slowest_mean(plain, factors)
    if not isinstance(plain, ShiftedExponential):
        raise NoClosedForm(f"the sum of {local_steps} times has no closed form for {plain}; simulate it")
    total = _Erlang(local_steps * plain.shift_s, plain.exponential_mean_s, local_steps)
    return _slowest_mean(total, factors) / local_steps


def ssp_steps_per_s(law: Law, num_workers: int, slack: float, slowdown: Mapping[int, float] = {}) -> float:
    """Return the steps per second of each worker under SSP; an update takes 1/(P steps_per_s) seconds.

    The gap between clocks is bounded, so all workers have the same long-run rate. With s = `slack`:
    s = 0, any law: 1/E[max_i f_i X_i].  Constant times: 1/max_i f_i X, whatever the slack.  s = inf, equal
    workers: 1/E[X].  Two exponential workers of rates r_1, r_2: the clocks' difference d moves up at rate r_1
    unless it is s+1, down at rate r_2 unless it is -(s+1), so P(d) is proportional to (r_1/r_2)^d, and the
    rate is r_1 (1 - P(s+1)); equal: r (2s+2)/(2s+3).  P equal exponential workers: E[workers not blocked]/P
    per mean time, by a Markov chain that is solved numerically (up to 40,000 states and s = 60).
    Source: Ho et al. 2013 (NIPS 26) for the rule, from which the rates follow.

    >>> ssp_steps_per_s(Constant(1.0), 8, 3, {0: 4.0})
    0.25
    """
    plain, factors = _plain(law), _factors(num_workers, slowdown)
    _need_slack(slack)
    slowest, equal = float(factors.max()), bool(np.ptp(factors) == 0)
    if num_workers == 1 or (slack == math.inf and equal):
        return _per_s(plain.mean_s * slowest)
    _need(slack < math.inf, "without a bound, unequal workers have unequal rates: see asgd_time")
    if slack == 0 or isinstance(plain, Constant):
        return _per_s(_slowest_mean(plain, factors))
    mean_s = _exponential_mean_s(law, "SSP's rate with slack above 0")
    if num_workers == 2:
        log_p = np.arange(-slack - 1, slack + 2) * math.log(factors[1] / factors[0])
        p = np.exp(log_p - log_p.max())
        return float(p[:-1].sum() / p.sum() / (mean_s * factors[0]))
    if not equal:
        raise NoClosedForm("SSP with slack above 0 and more than two unequal workers; simulate it")
    return _ssp_not_blocked(num_workers, int(slack))[0] / (num_workers * mean_s * slowest)


def server_updates_per_s(compute: Law, service: Law, num_workers: int, latency_s: float = 0.0) -> float:
    """Return ASGD's updates per second where the server takes a time of law `service` for each push.

    The closed machine-repair queue M/M/1//P: (1 - p0)/S with 1/p0 = sum_k P!/(P-k)! (S/Z)^k, S the mean
    service time, Z = E[compute] + 2 latency. As p0 is Erlang's loss formula B(P, Z/S), its recursion is used.
    Equal workers, first come, first served, exponential service (any for P = 1); the law of compute times
    matters by its mean only. Source: Kleinrock 1975, "Queueing systems" I, section 3.8; for the insensitivity
    Baskett, Chandy, Muntz & Palacios 1975, "Open, closed, and mixed networks of queues".

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
        busy = _busy_share(n, busy, think_s / service_s)
    return busy / service_s


def server_updates_per_s_bound(compute: Law, service: Law, num_workers: int, latency_s: float = 0.0) -> float:
    """Return a bound that ASGD's updates per second at a server never pass: min(1/S, P/(Z + S)), any laws.

    Symbols as in `server_updates_per_s`. Source: Denning & Buzen 1978, "The operational analysis of queueing
    network models".

    >>> server_updates_per_s_bound(Constant(1.0), Constant(0.25), 8)
    4.0
    """
    _need_whole("num_workers", num_workers)
    think_s, service_s = _think_s(compute, latency_s), _plain(service).mean_s
    return min(_per_s(service_s), num_workers * _per_s(think_s + service_s))


def _busy_share(workers: int, with_one_less: float, think_per_service: float) -> float:
    """Return 1 - B(n, a) from 1 - B(n-1, a), B Erlang's loss formula: n / (n + a B(n-1, a))."""
    return workers / (workers + think_per_service * (1 - with_one_less))


# --- Staleness, in updates; a gradient's own update is not counted -----------------------------------------


def asgd_mean_staleness(num_workers: int) -> float:
    """Return the mean staleness over all gradients of ASGD, P - 1, whatever the laws and speeds.

    Each update ages the P - 1 other gradients in flight by one. Source: Zhang et al. 2015 (arXiv 1511.05950).

    >>> asgd_mean_staleness(8)
    7.0
    """
    return k_batch_async_mean_staleness(num_workers, 1)


def asgd_mean_staleness_by_worker(num_workers: int, slowdown: Mapping[int, float]) -> Floats:
    """Return each worker's own mean staleness under ASGD (P,): R/r_i - 1, R the sum of the rates r_i.

    R/r_i updates pass from one gradient of worker i to its next, on average. Any law with a mean, which
    cancels: r_i is proportional to 1/f_i. Source: algebra; it averages to P - 1 over all gradients.

    >>> asgd_mean_staleness_by_worker(3, {0: 4.0}).tolist()
    [8.0, 1.25, 1.25]
    """
    factors = _factors(num_workers, slowdown)
    return np.asarray(factors * (1 / factors).sum() - 1)


def asgd_staleness_pmf(law: Law, num_workers: int, staleness: int) -> float:
    """Return P(tau = `staleness`) under ASGD with exponential times: (1/P)(1 - 1/P)^tau, geometric.

    Equal workers. Source: Mitliagkas et al. 2016 (arXiv 1605.09774); `k_async_staleness_pmf` with K = 1.

    >>> asgd_staleness_pmf(Exponential(1.0), 2, 1)
    0.25
    """
    return k_async_staleness_pmf(law, num_workers, 1, staleness)


def k_async_mean_staleness(num_workers: int, k: int) -> float:
    """Return K-async SGD's mean staleness, (P - K)/K, whatever the laws and speeds; model: `k_async_time`.

    Each update of K = `k` gradients ages the P - K others in flight by one. Source: algebra.

    >>> k_async_mean_staleness(8, 2)
    3.0
    """
    _need_k(k, num_workers)
    return (num_workers - k) / k


def k_async_staleness_pmf(law: Law, num_workers: int, k: int, staleness: int) -> float:
    """Return P(tau = `staleness`) under K-async with exponential times: p (1 - p)^tau, p = K/P.

    Exponential times have no memory: each update takes a fresh random K of the P equal workers. Any law for
    K = P, where tau = 0. Source: Dutta et al. 2018 (arXiv 1803.01113) for p = P(tau = 0).

    >>> k_async_staleness_pmf(Exponential(1.0), 8, 4, 0)
    0.5
    """
    _need_k(k, num_workers)
    _need_whole("staleness", staleness, at_least=0)
    if k < num_workers:
        _exponential_mean_s(law, "the distribution of staleness")
    p = k / num_workers
    return float(p * (1 - p) ** staleness)


def k_batch_async_mean_staleness(num_workers: int, k: int) -> float:
    """Return K-batch-async SGD's mean staleness, (P - 1)/K, whatever the laws and speeds.

    P - 1 other gradients arrive between the reading of one and its arrival, on average, and each K of them
    make an update. Source: algebra.

    >>> k_batch_async_mean_staleness(8, 2)
    3.5
    """
    _need_whole("num_workers", num_workers)
    _need_whole("k", k)
    return (num_workers - 1) / k


def ssp_staleness_bound(num_workers: int, slack: float) -> float:
    """Return the largest staleness under SSP, (P - 1)(2s + 1), s = `slack`; it is attained.

    While a task that started at clock c is in flight, each other clock rises from c - s at least to c + s + 1
    at most. Source: Ho et al. 2013 (NIPS 26) for the rule; workers read the newest weights there are.

    >>> ssp_staleness_bound(8, 3)
    49.0
    """
    _need_whole("num_workers", num_workers)
    _need_slack(slack)
    return (num_workers - 1) * (2.0 * slack + 1) if num_workers > 1 else 0.0


def ssp_clock_gap_bound(num_workers: int, slack: float) -> float:
    """Return the largest gap, fastest less slowest clock, when a task completes under SSP: s + 1.

    A task starts at most s = `slack` ahead. Source: Ho et al. 2013 (NIPS 26).

    >>> ssp_clock_gap_bound(8, 3)
    4.0
    """
    _need_whole("num_workers", num_workers)
    _need_slack(slack)
    return slack + 1.0 if num_workers > 1 else 0.0


def ssp_mean_staleness(law: Law, num_workers: int, slack: float) -> float:
    """Return SSP's mean staleness for equal workers, s = `slack`.

    s = 0, any law: (P - 1)/2.  s = inf: P - 1, as ASGD.  Exponential times: an update ages the other tasks in
    flight by one, so it is E[m^2]/E[m] - 1, m the workers not blocked in the chain of `ssp_steps_per_s`; for
    P = 2 (2s + 1)/(2s + 2). Source: Ho et al. 2013 (NIPS 26) for the rule, from which the mean follows.

    >>> ssp_mean_staleness(Constant(1.0), 8, 0)
    3.5
    """
    _need_whole("num_workers", num_workers)
    _need_slack(slack)
    if slack in (0, math.inf) or num_workers == 1:
        return (num_workers - 1) / (2 if slack == 0 else 1)
    _exponential_mean_s(law, "SSP's mean staleness with slack above 0")
    first, second = _ssp_not_blocked(num_workers, int(slack))
    return second / first - 1


@functools.lru_cache(maxsize=64)
def _ssp_not_blocked(num_workers: int, slack: int) -> tuple[float, float]:
    """Return E[m] and E[m^2], m the workers not blocked, under SSP with equal exponential workers of rate 1.

    A state counts the workers at each offset 0..slack+1 above the slowest clock. Those at the last offset are
    blocked, the others step at rate 1 each.
    """
    if num_workers == 2:  # the clocks' difference is uniform on 2 slack + 3 values
        return (4 * slack + 4) / (2 * slack + 3), (8 * slack + 6) / (2 * slack + 3)
    if slack > 60 or math.comb(num_workers + slack, slack + 1) > 40_000:
        raise NoClosedForm(f"SSP's chain is too large for {num_workers} workers, slack {slack}; simulate it")
    from scipy.sparse import coo_array, diags_array, tril
    from scipy.sparse.linalg import LinearOperator, gmres, splu

    number = {(num_workers,) + (0,) * (slack + 1): 0}
    states = list(number)
    moves: list[tuple[int, int, int]] = []  # to, from, rate
    for state in states:
        for i, workers in enumerate(state[:-1]):
            if workers:
                to = (*state[:i], workers - 1, state[i + 1] + 1, *state[i + 2 :])
                to = to if to[0] else (*to[1:], 0)
                if to not in number:
                    number[to] = len(states)
                    states.append(to)
                moves.append((number[to], number[state], workers))
    counts = np.array(states)
    # By the sum of offsets, all moves lead forward but those of the last worker at offset 0: the generator's
    # lower triangle is nearly all of it, and as preconditioner leaves little to do.
    order = np.argsort(counts @ np.arange(slack + 2), kind="stable")
    place, m = np.argsort(order), num_workers - counts[order, -1].astype(float)
    target, source, rate = np.array(moves).T
    shape = (len(m), len(m))
    jumps = coo_array((rate.astype(float), (place[target], place[source])), shape=shape)
    generator = (jumps - diags_array(m)).tocsc()
    lower = splu(tril(generator, format="csc"), permc_spec="NATURAL", options={"DiagPivotThresh": 0.0})
    # generator p = 0 and sum p = 1 are one regular system: generator p - e sum p = -e.
    e = np.zeros(len(m))
    e[0] = num_workers
    system = LinearOperator(shape, lambda p: generator @ p - e * p.sum(), dtype=float)
    inverse = LinearOperator(shape, lower.solve, dtype=float)
    p, failed = gmres(system, -e, rtol=1e-11, restart=60, maxiter=20, M=inverse)
    assert not failed, "GMRES did not converge"
    p /= p.sum()
    return float(p @ m), float(p @ m**2)


# --- Optimization of a quadratic, curvature (w - w*)^2 / 2 --------------------------------------------------


def largest_stable_step(delay: int) -> float:
    """Return the lr * curvature below which w_{t+1} = w_t - lr curvature w_{t-tau} is stable, tau = `delay`.

    2 sin(pi / (2 (2 tau + 1))), tau constant, in updates; a random staleness of that mean is another case.
    Source: Levin & May 1976, "A note on difference-delay equations".

    >>> round(largest_stable_step(1), 12)
    1.0
    """
    _need_whole("delay", delay, at_least=0)
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


def noise_floor(
    lr: float, curvature: float, noise_variance: float, *, num_workers: int = 1, delay: int = 0
) -> float:
    """Return the stationary E[(w - w*)^2] per coordinate of SGD with a constant step and a constant delay.

    w_{t+1} = w_t - lr (curvature (w_{t-tau} - w*) + noise), tau = `delay`; the noise is independent between
    steps, with mean 0 and variance sigma^2/P: P gradients of variance sigma^2 = `noise_variance` averaged.
    It is the second moment of the iterate itself, not of its average over time; the mean excess loss is
    curvature/2 times it. SSGD is tau = 0: lr sigma^2 / (P curvature (2 - lr curvature)).
    In general, with a = lr curvature, phi = 2 arcsin(a/2), beta = (tau + 1/2) phi: the autocovariances obey
    g_k - g_{k-1} = -a g_{tau+1-k} (Yule-Walker), so g_k = C cos(phi k + pi/4 - beta/2), and

        g_0 = lr^2 sigma^2 / P * (1 + sin beta) / (2 sin phi cos beta),    infinite at `largest_stable_step`.

    Source: algebra; in continuous time Kuechler & Mensch 1992, "Langevins stochastic differential equation
    extended by a time-delayed term".

    >>> [round(noise_floor(0.1, 1.0, 1.0, delay=tau), 5) for tau in (0, 1, 3, 7)]
    [0.05263, 0.0582, 0.07158, 0.11511]
    """
    _need_whole("num_workers", num_workers)
    _need(noise_variance >= 0, f"noise_variance must be at least 0, not {noise_variance}")
    step = _step(lr, curvature)
    _need(step < largest_stable_step(delay), f"lr * curvature = {step:g} is not stable with delay {delay}")
    phi = 2 * math.asin(step / 2)
    beta = (delay + 0.5) * phi
    return lr**2 * noise_variance / num_workers * (1 + math.sin(beta)) / (2 * math.sin(phi) * math.cos(beta))


def momentum_from_asynchrony(num_workers: int) -> float:
    """Return the implicit momentum of ASGD with M = `num_workers` equal exponential workers, 1 - 1/M.

    The mean iterate moves as under heavy-ball momentum 1 - 1/M with step lr/M, since staleness is geometric.
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

    Worker i has the loss a_i (w - x_i)^2 / 2, a_i in `curvatures`, x_i in `optima`, and takes H =
    `local_steps` (inf: the limit) plain steps, 0 < lr a_i < 2; H = 1 gives the optimum of the mean loss.
    Source: algebra, the mean of x_i + (1 - lr a_i)^H (w - x_i); Malinovsky et al. 2020 (arXiv 2004.01442).

    >>> round(local_sgd_fixed_point(0.1, [1.0, 5.0], [0.0, 1.0], 1), 4)
    0.8333
    """
    _need(len(curvatures) == len(optima) > 0, "give one curvature and one optimum for each worker")
    whole = local_steps >= 1 and (local_steps == math.inf or local_steps == int(local_steps))
    _need(whole, f"local_steps must be a whole number of at least 1, or inf, not {local_steps}")
    steps = np.array([_step(lr, a) for a in curvatures])
    _need(bool(np.all(steps < 2)), "lr * curvature must be below 2 on each worker")
    q = 1 - (1 - steps) ** local_steps
    return float(q @ np.asarray(optima) / q.sum())


def easgd_largest_stable_alpha(lr_curvature: float) -> float:
    """Return the largest stable alpha of round-robin EASGD, (4 - 2 eta)/(4 - eta), eta = `lr_curvature`.

    0 <= eta <= 2 and 0 <= alpha <= it keep iterates bounded for any number of workers. For one worker the
    condition is also necessary; a round of several may be stable a little beyond it (eta = 1, P = 2: the
    spectral radius is .97 at 1.03 times this alpha).
    Source: Zhang, Choromanska & LeCun 2015 (NIPS 28; arXiv 1412.6651).

    >>> easgd_largest_stable_alpha(1.0) == 2 / 3
    True
    """
    _need(0 <= lr_curvature <= 2, "no alpha is stable unless lr * curvature lies in [0, 2]")
    return (4 - 2 * lr_curvature) / (4 - lr_curvature)


def easgd_decay(lr_curvature: float, alpha: float, num_workers: int) -> float:
    """Return the factor by which synchronous EASGD's centre nears the optimum in an update, with H = 1.

    Of equal quadratics without noise, in the long run: the spectral radius of the map of the workers' mean
    and the centre, ((1 - eta - alpha, alpha), (P alpha, 1 - P alpha)), eta = `lr_curvature`. For small eta
    it is 1 - eta P/(P + 1): the centre has the mass of a worker, but feels no gradient.
    Source: the recursion of Zhang, Choromanska & LeCun 2015 (arXiv 1412.6651), equations 2.3 and 2.4.

    >>> round(easgd_decay(0.001, 0.225, 4), 4)
    0.9992
    """
    _need_whole("num_workers", num_workers)
    _need(lr_curvature >= 0, "lr * curvature must be at least 0")
    _need(0 < alpha <= 1, "alpha must lie in (0, 1]")
    pulled = num_workers * alpha
    return float(np.abs(np.linalg.eigvals([[1 - lr_curvature - alpha, alpha], [pulled, 1 - pulled]])).max())


# --- Advice -------------------------------------------------------------------------------------------------


def best_k_sync(law: Law, num_workers: int) -> int:
    """Return the K with most gradients per second under K-sync: argmax_K K/E[X_(K)], the largest of equals.

    Exponential: 1; constant: P. It counts gradients, not their worth: a larger K makes a less noisy update.
    Any law, equal workers. Source: Dutta et al. 2018 (arXiv 1803.01113) for E[X_(K)].

    >>> best_k_sync(ShiftedExponential(1.0, 1.0), 8)
    6
    """
    _need_whole("num_workers", num_workers)
    _need(_plain(law).mean_s > 0, "where computing takes no time, every K gives infinitely many gradients")

    @functools.cache
    def per_s(k: int) -> float:  # 1 / E[X_(k)]
        return _per_s(order_statistic_mean(law, k, num_workers))

    best, best_k = 0.0, 1
    # E[X_(K)] rises with K, so no K from low to high gives more than high/E[X_(low)]: branch and bound.
    blocks = [(-math.inf, 1, num_workers)]
    while blocks and -blocks[0][0] >= best * (1 - 1e-12):
        _, low, high = heapq.heappop(blocks)
        for k in (low, high):
            rate = k * per_s(k)
            if rate > best * (1 + 1e-12) or (rate >= best * (1 - 1e-12) and k > best_k):
                best, best_k = rate, k
        middle = (low + high) // 2
        if low < middle:
            heapq.heappush(blocks, (-middle * per_s(low), low, middle))
            heapq.heappush(blocks, (-high * per_s(middle), middle, high))
    return best_k


def workers_to_fill_server(compute: Law, service: Law, share: float, latency_s: float = 0.0) -> int:
    """Return the smallest P with which ASGD reaches `share`, in (0, 1), of its server's top rate 1/S.

    The smallest P with 1 - p0 >= share in the machine-repair queue of `server_updates_per_s`, and under its
    assumptions: exponential service; the law of compute times matters by its mean only.

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
        busy = _busy_share(workers, busy, think_s / service_s)
    return workers


# --- Checks -------------------------------------------------------------------------------------------------


def _need(condition: bool, rule: str) -> None:
    if not condition:
        raise ValueError(rule)


def _need_whole(name: str, value: float, at_least: int = 1) -> None:
    whole = isinstance(value, (int, np.integer)) and value >= at_least
    _need(whole, f"{name} must be a whole number of at least {at_least}, not {value}")


def _need_k(k: int, n: int) -> None:
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
        _need(0 <= worker < num_workers, f"slowdown names worker {worker} of {num_workers}, counted from 0")
        _need(0 < factor < math.inf, f"a slowdown must be above 0 and finite, not {factor}")
        factors[worker] = factor
    return factors


def _exponential_mean_s(law: Law, what: str) -> float:
    match _plain(law):
        case Exponential(_, mean) | ShiftedExponential(0, mean):
            return mean
        case other:
            raise NoClosedForm(f"{what} has a closed form for exponential times only, not for {other}")


def _think_s(compute: Law, latency_s: float) -> float:
    _need(0 <= latency_s < math.inf, f"latency_s must be at least 0 and finite, not {latency_s}")
    return _plain(compute).mean_s + 2 * latency_s


def _step(lr: float, curvature: float) -> float:
    _need(lr > 0 and curvature > 0, f"lr and curvature must be above 0, not {lr} and {curvature}")
    return lr * curvature


def _per_s(seconds: float) -> float:
    return 1 / seconds if seconds else math.inf
