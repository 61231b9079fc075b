"""Seconds per update of the strategies, in the long run.

P = `num_workers` workers; X a compute time from a law of `dsgd.core.time_laws`, multiplied by the worker's
factor f_i in `slowdown` (1 where it is not named); X_(K) the K-th smallest of P draws; H_n = 1 + ... + 1/n.
An update is a new version of the weights. Messages take no time unless said. A function raises ValueError
outside its assumptions, and NoClosedForm, which is one, where no formula is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from itertools import chain, pairwise

from dsgd.core.time_laws import Constant, Law, ShiftedExponential
from dsgd.theory.assumptions import NoClosedForm, factors_of, need, need_k, need_whole
from dsgd.theory.laws_of_times import Erlang, exponential_mean_s, per_s, plain_law
from dsgd.theory.order_statistics import order_statistic_mean, slowest_mean


def ssgd_time(law: Law, num_workers: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return SSGD's seconds per update, E[max_i f_i X_i]; equal exponential workers: mean H_P.

    Any law, independent workers. Source: Dutta et al. 2018 (arXiv 1803.01113), K-sync with K = P.

    >>> from dsgd.core.time_laws import Exponential
    >>> ssgd_time(Exponential(1.0), 2)
    1.5
    """
    return slowest_mean(law, factors_of(num_workers, slowdown))


def k_sync_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-sync SGD's seconds per update, E[X_(K)]; exponential: mean (H_P - H_{P-K}).

    The server waits for the first K = `k` gradients; the other workers drop theirs and start again.
    Any law, equal workers. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> from dsgd.core.time_laws import Exponential
    >>> k_sync_time(Exponential(1.0), 8, 1)
    0.125
    """
    return order_statistic_mean(law, k, num_workers)


def best_k_sync(law: Law, num_workers: int) -> int:
    """Return the K with most gradients per second under K-sync: argmax_K K/E[X_(K)], the largest of equals.

    Exponential: 1; constant: P. It counts gradients, not their worth: a larger K makes a less noisy update.
    Any law, equal workers. Source: Dutta et al. 2018 (arXiv 1803.01113) for E[X_(K)].

    >>> best_k_sync(ShiftedExponential(1.0, 1.0), 8)
    6
    """
    need_whole("num_workers", num_workers)
    need(plain_law(law).mean_s > 0, "where computing takes no time, every K gives infinitely many gradients")

    @functools.cache
    def updates_per_s(k: int) -> float:
        return per_s(order_statistic_mean(law, k, num_workers))

    # E[X_(K)] rises with K, so no K from low to high gives more than high/E[X_(low)]: few blocks are left.
    marks = [*range(1, num_workers, math.isqrt(num_workers)), num_workers]
    most = max(k * updates_per_s(k) for k in marks)
    blocks = [range(low, high) for low, high in pairwise(marks) if high * updates_per_s(low) >= most]
    rates: dict[int, float] = {k: k * updates_per_s(k) for k in (*chain.from_iterable(blocks), *marks)}
    most = max(rates.values()) * (1 - 1e-12)
    return max(k for k, rate in rates.items() if rate >= most)


def backup_workers_time(law: Law, num_workers: int, backups: int) -> float:
    """Return seconds per update when N = `num_workers` of N + b are waited for: E[X_(N)] of N + b draws.

    b = `backups`; exponential: mean (H_{N+b} - H_b). Any law, equal workers.
    Source: Chen et al. 2016 (arXiv 1604.00981).

    >>> from dsgd.core.time_laws import Exponential
    >>> round(backup_workers_time(Exponential(1.0), 96, 4), 4)
    3.104
    """
    need_whole("backups", backups, at_least=0)
    return order_statistic_mean(law, num_workers, num_workers + backups)


def k_batch_sync_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-batch-sync SGD's seconds per update: mean K/P for exponential times, E[X_(1)] for K = 1.

    As K-sync, but until the update a worker goes on with more mini-batches at the same weights. Equal
    workers; other laws with K = `k` > 1 have no closed form. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> from dsgd.core.time_laws import Exponential
    >>> k_batch_sync_time(Exponential(1.0), 8, 4)
    0.5
    """
    need_whole("num_workers", num_workers)
    need_whole("k", k)
    if k == 1:
        return order_statistic_mean(law, 1, num_workers)
    return exponential_mean_s(law, "K-batch-sync's time per update") * k / num_workers


def asgd_time(law: Law, num_workers: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return ASGD's seconds per update, 1 / sum_i r_i with rates r_i = 1/(f_i E[X]); equal workers: E[X]/P.

    Any law: each worker renews on its own (the elementary renewal theorem); infinite where the law has no
    mean. Source: Dutta et al. 2018 (arXiv 1803.01113), K-async with K = 1.

    >>> asgd_time(Constant(1.0), 3, {0: 2.0})
    0.4
    """
    return plain_law(law).mean_s / float((1 / factors_of(num_workers, slowdown)).sum())


def k_batch_async_time(law: Law, num_workers: int, k: int, slowdown: Mapping[int, float] = {}) -> float:
    """Return K-batch-async SGD's seconds per update, K / sum_i r_i; equal workers: K E[X]/P.

    Every K = `k` gradients, of whatever workers, make an update, and no worker waits. Any law, as in
    `asgd_time`. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> from dsgd.core.time_laws import Uniform
    >>> k_batch_async_time(Uniform(0.0, 2.0), 8, 4)
    0.5
    """
    need_whole("k", k)
    return k * asgd_time(law, num_workers, slowdown)


def k_async_time(law: Law, num_workers: int, k: int) -> float:
    """Return K-async SGD's seconds per update; exponential: mean (H_P - H_{P-K}), as K-sync.

    The first K = `k` gradients make an update; their workers wait for it, the others go on. Exponential times
    have no memory, so after an update all P are as good as fresh. Else only K = 1 (ASGD: E[X]/P) and K = P
    (SSGD) have a formula. Equal workers. Source: Dutta et al. 2018 (arXiv 1803.01113).

    >>> from dsgd.core.time_laws import Exponential
    >>> k_async_time(Exponential(1.0), 8, 1)
    0.125
    """
    need_k(k, num_workers)
    if k == 1:
        return asgd_time(law, num_workers)
    if k < num_workers:
        exponential_mean_s(law, "K-async's time per update with 1 < K < P")
    return order_statistic_mean(law, k, num_workers)


def local_sgd_time_per_step(
    law: Law, num_workers: int, local_steps: int, slowdown: Mapping[int, float] = {}
) -> float:
    """Return LocalSGD's seconds per local step, E[max_i f_i (X_i1 + ... + X_iH)]/H, H = `local_steps`.

    Any law for H = 1 or P = 1; constant times. A sum of exponentials is an Erlang law, at mean 1 P(sum > t) =
    e^-t (1 + t + ... + t^(H-1)/(H-1)!), and H shifts add up: the maximum is integrated numerically.
    Source: Wang & Joshi 2018 (arXiv 1810.08313).

    >>> from dsgd.core.time_laws import Exponential
    >>> round(local_sgd_time_per_step(Exponential(1.0), 8, 16), 3)
    1.383
    """
    need_whole("local_steps", local_steps)
    plain, factors = plain_law(law), factors_of(num_workers, slowdown)
    if num_workers == 1:
        return plain.mean_s * float(factors[0])
    if local_steps == 1 or isinstance(plain, Constant) or plain.mean_s == math.inf:
        return slowest_mean(plain, factors)
    if not isinstance(plain, ShiftedExponential):
        raise NoClosedForm(f"the sum of {local_steps} times has no closed form for {plain}; simulate it")
    total = Erlang(local_steps * plain.shift_s, plain.exponential_mean_s, local_steps)
    return slowest_mean(total, factors) / local_steps


def local_sgd_run_time(law: Law, steps: int, local_steps: int, latency_s: float = 0.0) -> float:
    """Return the seconds of a whole run of LocalSGD: T X + ceil(T/H) 2 latency, T = `steps` of each worker.

    Constant times X, equal workers; each round of H = `local_steps` waits for one message each way.

    >>> local_sgd_run_time(Constant(1.0), 10, 4, latency_s=0.5)
    13.0
    """
    plain = plain_law(law)
    if not isinstance(plain, Constant):
        raise NoClosedForm(f"the time of a whole run is known for constant times only, not for {plain}")
    return steps * plain.seconds + math.ceil(steps / local_steps) * 2 * latency_s
