"""Staleness under the asynchronous strategies, in updates; a gradient's own update is not counted.

P = `num_workers` workers. Long-run means and distributions. Synchronous modes (SSGD, K-sync, backup
workers, LocalSGD) have staleness 0 and so need no function; SSP's are in `dsgd.theory.bounded_staleness`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dsgd.core.time_laws import Floats, Law
from dsgd.theory.assumptions import factors_of, need_k, need_whole
from dsgd.theory.laws_of_times import exponential_mean_s


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
    factors = factors_of(num_workers, slowdown)
    return np.asarray(factors * (1 / factors).sum() - 1)


def asgd_staleness_pmf(law: Law, num_workers: int, staleness: int) -> float:
    """Return P(tau = `staleness`) under ASGD with exponential times: (1/P)(1 - 1/P)^tau, geometric.

    Equal workers. Source: Mitliagkas et al. 2016 (arXiv 1605.09774); `k_async_staleness_pmf` with K = 1.

    >>> from dsgd.core.time_laws import Exponential
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
    need_k(k, num_workers)
    return (num_workers - k) / k


def k_async_staleness_pmf(law: Law, num_workers: int, k: int, staleness: int) -> float:
    """Return P(tau = `staleness`) under K-async with exponential times: p (1 - p)^tau, p = K/P.

    Exponential times have no memory: each update takes a fresh random K of the P equal workers. Any law for
    K = P, where tau = 0. Source: Dutta et al. 2018 (arXiv 1803.01113) for p = P(tau = 0).

    >>> from dsgd.core.time_laws import Exponential
    >>> k_async_staleness_pmf(Exponential(1.0), 8, 4, 0)
    0.5
    """
    need_k(k, num_workers)
    need_whole("staleness", staleness, at_least=0)
    if k < num_workers:
        exponential_mean_s(law, "the distribution of staleness")
    p = k / num_workers
    return float(p * (1 - p) ** staleness)


def k_batch_async_mean_staleness(num_workers: int, k: int) -> float:
    """Return K-batch-async SGD's mean staleness, (P - 1)/K, whatever the laws and speeds.

    P - 1 other gradients arrive between the reading of one and its arrival, on average, and each K of them
    make an update. Source: algebra.

    >>> k_batch_async_mean_staleness(8, 2)
    3.5
    """
    need_whole("num_workers", num_workers)
    need_whole("k", k)
    return (num_workers - 1) / k
