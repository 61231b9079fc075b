"""Statistics of a few seeds: medians with exact intervals, and paired tests corrected for their number.

A run that never reached what was asked has the value infinity. Medians and order statistics accept it,
so no run is dropped. docs/experiments.md says why these methods and no others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
SIGNIFICANT = 0.05
_EXACT = 8  # values on each side: 12,870 ways to split 16


class Interval(NamedTuple):
    """A centre and the interval around it. `level` is its true confidence, 0 if none can be given."""

    centre: float
    low: float
    high: float
    level: float
    n: int


class Pair(NamedTuple):
    """Two variants compared on the seeds that both have."""

    a: str
    b: str
    seeds: int
    ratio: Interval | None
    """How many times larger b's values are: geometric mean over seeds, Student's interval; None where a value
    is infinite or not above 0."""
    p: float | None
    """Of no difference, two-sided, before the correction; None where there is no test."""
    corrected_p: float | None
    """After Holm's correction for all pairs that were tested."""
    test: str
    """t: Student's, paired, of the logarithms (of the values, where one is not above 0). rank: the rank test,
    where a value is infinite or all differences are alike. deterministic: none, for each of the two has one
    value, whatever the seed, and they differ: copies of an observation are not a sample. identical: the two
    have the same value with each seed; p is 1."""


def median_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the median and the narrowest interval between order statistics that covers it at `level`.

    Between the k-th smallest and the k-th largest of n values lies the true median with probability
    1 - 2 P(B < k), B binomial(n, 1/2), whatever the distribution. Fewer than six values cannot reach 95 %:
    then it is their whole range, and `level` says what it covers. Values may be infinite, not NaN; n must be
    at least 1.

    >>> median_interval([3.0, 1.0, 2.0])
    Interval(centre=2.0, low=1.0, high=3.0, level=0.75, n=3)
    """
    n = len(values)
    if not n or any(map(math.isnan, values)):
        raise ValueError("a median needs a value, and no NaN")
    ordered = sorted(map(float, values))
    k, covered = 1, 1 - 2 * _below(1, n)
    while k < n // 2 and 1 - 2 * _below(k + 1, n) >= level:
        k, covered = k + 1, 1 - 2 * _below(k + 1, n)
    return Interval(
        (ordered[(n - 1) // 2] + ordered[n // 2]) / 2, ordered[k - 1], ordered[n - k], max(0.0, covered), n
    )


def median_bands(
    values: NDArray[np.float64], level: float = LEVEL
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return median, low and high of each column, as `median_interval` has them; values: (n, columns)."""
    n = len(values)
    ordered = np.sort(values, axis=0)
    places = median_interval(list(range(n)), level)
    low, high = int(places.low), int(places.high)
    with np.errstate(invalid="ignore"):
        centre = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return centre, ordered[low], ordered[high]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the order given.

    The smallest is multiplied by their number m, the next by m - 1, ...; none falls below the one before it.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def compare(values: Mapping[str, Mapping[int, float]], baseline: str | None = None) -> list[Pair]:
    """Compare each two variants on their common seeds, or each with the baseline, and correct the p-values
    for the number of pairs.

    values: by variant and seed; infinite where a run never got there. Pairs with fewer than two common seeds
    are left out: one seed says nothing about chance.
    """
    pairs = []
    for a, b in combinations(values, 2):
        if baseline is not None and baseline not in (a, b):
            continue
        seeds = sorted(values[a].keys() & values[b].keys())
        if len(seeds) >= 2:
            pairs.append(_pair(a, b, [values[a][s] for s in seeds], [values[b][s] for s in seeds]))
    corrected = iter(holm([pair.p for pair in pairs if pair.p is not None]))
    return [pair if pair.p is None else pair._replace(corrected_p=next(corrected)) for pair in pairs]


def _pair(a: str, b: str, x: Sequence[float], y: Sequence[float]) -> Pair:
    n, ratio = len(x), None
    p: float | None
    if not all(map(math.isfinite, (*x, *y))):
        p, test = rank_test(x, y), "rank"
    elif min(*x, *y) <= 0:
        found = paired_t(np.subtract(y, x))
        p, test = (found[0], "t") if found else (rank_test(x, y), "rank")
    else:
        differences = np.log(y) - np.log(x)
        found = paired_t(differences)
        p, test = (found[0], "t") if found else (rank_test(x, y), "rank")
        middle, half = (found[1], found[2]) if found else (float(differences[0]), 0.0)
        ratio = Interval(_exp(middle), _exp(middle - half), _exp(middle + half), LEVEL if found else 0.0, n)
    if _alike(x) and _alike(y) and not _alike((*x, *y)):
        p, test = None, "deterministic"
    if list(x) == list(y):
        test = "identical"
    return Pair(a, b, n, ratio, p, p, test)


def _alike(values: Sequence[float]) -> bool:
    """Whether all are one value, up to rounding."""
    return math.isclose(min(values), max(values), rel_tol=1e-12)


def paired_t(differences: NDArray[np.float64]) -> tuple[float, float, float] | None:
    """Return Student's two-sided p of mean 0, the mean, and half the width of its interval at LEVEL.

    None for differences that are all alike, where it is no test.
    """
    from scipy.stats import t

    n = len(differences)
    mean = float(np.mean(differences))
    error = float(np.std(differences, ddof=1)) / math.sqrt(n)
    if error <= 1e-12 * max(1.0, float(np.max(np.abs(differences)))):
        return None
    p = 2 * float(t.sf(abs(mean) / error, n - 1))
    return p, mean, float(t.ppf((1 + LEVEL) / 2, n - 1)) * error


def rank_test(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the two-sided p of Wilcoxon's rank-sum test, exact with ties for up to 8 values each.

    The pairing is not used. That makes the test conservative where pairs are correlated, but it can separate
    five seeds that got there from five that did not, which no test of five signs can.

    >>> round(rank_test([1, 2, 3, 4, 5], [6, 7, 8, math.inf, math.inf]), 4)
    0.0079
    """
    from scipy.stats import mannwhitneyu, rankdata

    ranks = rankdata([*x, *y])
    if len(x) > _EXACT or len(y) > _EXACT:
        return float(mannwhitneyu(ranks[: len(x)], ranks[len(x) :], method="asymptotic").pvalue)
    centre = len(x) * (len(ranks) + 1) / 2
    sums = ranks[_choices(len(ranks), len(x))].sum(axis=1)
    return float(np.mean(np.abs(sums - centre) >= abs(ranks[: len(x)].sum() - centre) - 1e-9))


@functools.lru_cache(maxsize=8)
def _choices(n: int, k: int) -> NDArray[np.intp]:
    """Return all ways to choose k of n places, shape (ways, k)."""
    return np.array(list(combinations(range(n), k)), dtype=np.intp)


def _exp(x: float) -> float:
    """Far beyond any double's exponent a ratio says no more than that it is large."""
    return math.exp(min(700.0, max(-700.0, x)))


def _below(k: int, n: int) -> float:
    """Return P(B < k) for B binomial(n, 1/2)."""
    return float(sum(math.comb(n, i) for i in range(k)) / 2**n)
