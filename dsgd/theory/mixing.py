"""Workers that average with each other on a graph: how fast they agree, and how far apart they stay.

N workers with weights x_i, their mean x; the spread is the sum of |x_i - x|^2, the consensus distance 1/N of
it. A mixing matrix W is doubly stochastic: x_i <- sum_j W_ij x_j leaves the mean alone. Its eigenvalues mu_k
say how much of each pattern of differences is left; mu_1 = 1 is that of the mean.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dsgd.scenario.graphs import Mixing
from dsgd.theory.assumptions import need, need_whole

Complex = NDArray[np.complex128]


def spread_after_pairs(num_workers: int, pairs: int) -> float:
    """Return the share of the spread that is left, in the mean, after `pairs` random pairs have averaged.

    The pairs are drawn without replacement, so that nobody is in two: 1 - pairs/(N - 1). A random perfect
    matching, N/2 pairs, leaves (N - 2)/(2(N - 1)). Source: algebra; a random pair's mean squared distance is
    2/(N - 1) times the spread, and averaging takes half of it away.

    >>> round(spread_after_pairs(16, 1), 5), round(spread_after_pairs(16, 8), 5)
    (0.93333, 0.46667)
    """
    need_whole("num_workers", num_workers, at_least=2)
    need(0 <= pairs <= num_workers // 2, f"there are at most {num_workers // 2} pairs, not {pairs}")
    return 1 - pairs / (num_workers - 1)


def ring_gap(num_workers: int) -> float:
    """Return 1 - mu_2 of the ring with weights 1/3: 2/3 (1 - cos(2 pi/N)), for N >= 3.

    >>> round(ring_gap(3), 12)
    1.0
    """
    need_whole("num_workers", num_workers, at_least=3)
    return 2 / 3 * (1 - math.cos(2 * math.pi / num_workers))


def eigenvalues(mixing: Mixing) -> Complex:
    """Return the eigenvalues (N,) of a mixing, in falling order of their size; the first is 1."""
    values: Complex = np.linalg.eigvals(matrix(mixing)).astype(np.complex128)
    return values[np.argsort(-np.abs(values), kind="stable")]


def matrix(mixing: Mixing) -> NDArray[np.float64]:
    """Return a mixing as a matrix (N, N), each worker's own weight on the diagonal."""
    place = {worker: number for number, worker in enumerate(mixing)}
    found = np.zeros((len(mixing), len(mixing)))
    for i, row in mixing.items():
        for j, weight in row.items():
            found[place[i], place[j]] = weight
        if i not in row:
            found[place[i], place[i]] = 1 - sum(row.values())
    return found


def consensus_distance(
    mu: Complex, lr: float, curvature: float, noise_variance: float, *, after: bool = False
) -> float:
    """Return the stationary E[1/N sum |x_i - x|^2] per coordinate of D-PSGD on one quadratic.

    With a = lr curvature and gradient noise of variance sigma^2, independent between workers and steps, the
    differences of pattern k obey d <- (mu_k - a) d - lr noise; with mixing after the step,
    d <- mu_k ((1 - a) d - lr noise). So

        1/N sum over k >= 2 of  lr^2 sigma^2 / (1 - |mu_k - a|^2),
        after the step:         lr^2 sigma^2 |mu_k|^2 / (1 - |mu_k (1 - a)|^2)

    mu: the eigenvalues of a normal mixing matrix (symmetric, or of a graph that looks the same from every
    worker). The mean moves as in SSGD: `noise_floor`. Source: algebra.

    >>> complete = np.array([1, 0, 0, 0], complex)
    >>> round(consensus_distance(complete, 0.5, 1.0, 1.0), 12)  # 3/4 of .25 / (1 - .25)
    0.25
    >>> consensus_distance(complete, 0.5, 1.0, 1.0, after=True)
    0.0
    """
    step, rest = lr * curvature, mu[1:]
    left = np.abs(rest * (1 - step) if after else rest - step)
    need(bool(np.all(left < 1)), f"lr * curvature = {step:g} is not stable on this graph")
    share = np.abs(rest) ** 2 if after else np.ones(len(rest))
    return float(lr**2 * noise_variance * np.sum(share / (1 - left**2)) / len(mu))


def one_peer_consensus_distance(
    num_workers: int, lr: float, curvature: float, noise_variance: float
) -> float:
    """Return the stationary E[1/N sum |x_i - x|^2] per coordinate of SGP on one quadratic, N = 2^k workers,
    one-peer exponential graph.

    After m rounds of mixing 2^m workers share what was one worker's noise, so with a = lr curvature

        lr^2 sigma^2  sum over m = 1 .. k - 1 of  (1 - a)^(2(m - 1)) (2^-m - 1/N)

    Source: algebra.

    >>> one_peer_consensus_distance(2, 0.1, 1.0, 1.0), one_peer_consensus_distance(4, 1.0, 1.0, 1.0)
    (0.0, 0.25)
    """
    need(num_workers & (num_workers - 1) == 0, f"for powers of two, not {num_workers} workers")
    rounds = range(1, one_peer_rounds(range(num_workers)))
    left = (1 - lr * curvature) ** 2
    return lr**2 * noise_variance * sum(left ** (m - 1) * (2.0**-m - 1 / num_workers) for m in rounds)


def longest_way(mixing: Mixing, starts: Iterable[int]) -> int:
    """Return the most rounds that something takes from one of `starts` to any worker, where the graph stays
    as it is.
    """
    targets: dict[int, list[int]] = {i: [] for i in mixing}
    for i, row in mixing.items():
        for j in row:
            targets[j].append(i)
    return max(_farthest(targets, start) for start in starts)


def _farthest(targets: dict[int, list[int]], start: int) -> int:
    found, reached = {start: 0}, deque([start])
    while reached:
        i = reached.popleft()
        for j in targets[i]:
            if j not in found:
                found[j] = found[i] + 1
                reached.append(j)
    need(len(found) == len(targets), "the graph is not connected")
    return max(found.values())


def one_peer_rounds(members: Sequence[int]) -> int:
    """Return after how many rounds of the one-peer exponential graph each worker depends on every other.

    With N = 2^k that is k, and then all have the mean exactly: Assran et al. 2019; Ying et al. 2021, lemma 1.

    >>> one_peer_rounds(range(8)), one_peer_rounds(range(9))
    (3, 4)
    """
    return (len(members) - 1).bit_length()
