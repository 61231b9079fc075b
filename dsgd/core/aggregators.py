"""Aggregators: what several values become when some of them may be lies.

An aggregator is a frozen value and works in two steps. From the Gram matrix of the values, their inner
products, follows a mixing matrix M (m, P); what it returns is then a function of the rows of M X, coordinate
by coordinate, where X (P, D) has the values as its rows:

    Gram matrix (P, P)  ->  M (m, P)  ->  rows of M X (m, D)  ->  aggregate (D,)

The Gram matrix is a sum over coordinates: those of slices add up to that of the whole. All the rest is
elementwise. So the aggregate of slices is, bit for bit, the slice of the aggregate, given the Gram matrix.

n values, f of them lies. Bounds on what f lies can do, and which to choose: docs/faults.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsgd.core.option_forms import Form, number, parsed, whole
from dsgd.core.rng import Purpose, generator
from dsgd.core.weights import CHUNK, Vector, mean

Matrix: TypeAlias = NDArray[np.float64]

_PIECE = 1 << 14  # coordinates: so many of a dozen values stay in the cache


class Aggregator(Protocol):
    """Makes one value of n."""

    slots: ClassVar[tuple[str, ...]]
    """What it remembers, as the names of slots: vectors (D,) that count among the values, after them."""

    @property
    def least(self) -> int:
        """How many values it needs."""

    def mixing(self, gram: Matrix) -> Matrix | None:
        """Return M (m, n) from the Gram matrix (n, n); None: the values as they are."""

    def reduce(self, rows: Sequence[Vector]) -> Vector:
        """Return the aggregate of rows (D,), coordinate by coordinate."""


class PreAggregation(Protocol):
    """Replaces values by averages of them, before they are aggregated."""

    def least(self, rows: int) -> int:
        """Return how many values it needs to make so many."""

    def matrix(self, gram: Matrix, version: int) -> Matrix:
        """Return the mixing matrix (m, n) from the Gram matrix (n, n) and the weights' version."""


# --- coordinate by coordinate -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Median:
    """The median of each coordinate. Yin et al. 2018 (arXiv 1803.01498), definition 1."""

    slots: ClassVar[tuple[str, ...]] = ()
    least: ClassVar[int] = 1

    def mixing(self, gram: Matrix) -> Matrix | None:
        return None

    def reduce(self, rows: Sequence[Vector]) -> Vector:
        return _median(_sorted(rows))


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each coordinate without its f largest and f smallest values; f = 0 is the mean.

    Yin et al. 2018 (arXiv 1803.01498), definition 2.
    """

    f: int
    slots: ClassVar[tuple[str, ...]] = ()

    @property
    def least(self) -> int:
        return 2 * self.f + 1

    def mixing(self, gram: Matrix) -> Matrix | None:
        return None

    def reduce(self, rows: Sequence[Vector]) -> Vector:
        return mean(_sorted(rows)[self.f : len(rows) - self.f] if self.f else rows)


# --- by distances -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Krum:
    """The mean of the m values whose n - f - 2 nearest others are nearest.

    Blanchard et al. 2017 (arXiv 1703.02757), sections 3 and 5: Krum is m = 1, Multi-Krum is m > 1. Later work
    of the same group, and LPD-EPFL/byzfl, count n - f - 1 others.
    """

    f: int
    m: int = 1
    slots: ClassVar[tuple[str, ...]] = ()

    @property
    def least(self) -> int:
        return max(2 * self.f + 3, self.m + self.f)

    def mixing(self, gram: Matrix) -> Matrix | None:
        return _equal_shares(len(gram), krum_order(distances(gram), self.f)[: self.m])

    def reduce(self, rows: Sequence[Vector]) -> Vector:
        return mean(rows)


def krum_order(squares: Matrix, f: int) -> NDArray[np.int64]:
    """Return the values' numbers by the sum of the squared distances to their n - f - 2 nearest others.

    Two that are nearest to each other have the same sum where it has one term: the sum of all distances then
    decides.
    """
    ascending = np.sort(squares, axis=1)
    scores = ascending[:, 1 : max(2, len(squares) - f - 1)].sum(1)
    return np.lexsort((ascending.sum(1), scores))


@dataclass(frozen=True)
class GeometricMedian:
    """The point whose distances to the values have the smallest sum.

    Weiszfeld's iteration on the Gram matrix, smoothed as in Pillutla et al. 2022 (arXiv 1912.13445),
    algorithm 2: weights 1/max(nu, distance), with nu 1e-9 of the median distance between values.
    """

    slots: ClassVar[tuple[str, ...]] = ()
    least: ClassVar[int] = 1

    def mixing(self, gram: Matrix) -> Matrix | None:
        squares = distances(gram)
        others = squares[~np.eye(len(gram), dtype=bool)]
        smallest = max(1e-18 * float(np.median(others)), 1e-200) if len(others) else 1.0
        shares = np.full(len(gram), 1 / len(gram))
        for _ in range(1000):
            weights = 1 / np.sqrt(np.maximum(_to_point(squares, shares), smallest))
            before, shares = shares, weights / weights.sum()
            if np.abs(shares - before).max() < 1e-13:
                break
        return shares[None]

    def reduce(self, rows: Sequence[Vector]) -> Vector:
        return mean(rows)


@dataclass(frozen=True)
class CenteredClipping:
    """The last aggregate v, moved by the mean of the values' distances from it, each shortened to `radius`.

        three times   v <- v + mean_i (x_i - v) min(1, radius/|x_i - v|)

    Karimireddy, He and Jaggi 2021 (arXiv 2012.10333), algorithm 2; the first v is 0.
    """

    radius: float
    slots: ClassVar[tuple[str, ...]] = ("aggregate",)
    least: ClassVar[int] = 1

    def mixing(self, gram: Matrix) -> Matrix | None:
        n = len(gram) - 1  # the last row is the aggregate before
        squares = distances(gram)
        shares: NDArray[np.float64] = np.eye(n + 1)[n]
        for _ in range(3):
            far = np.sqrt(_to_point(squares, shares))
            kept = np.minimum(1.0, self.radius / np.maximum(far, 1e-200))[:n] / n
            shares = shares * (1 - kept.sum())
            shares[:n] += kept
        return shares.reshape(1, -1)

    def reduce(self, rows: Sequence[Vector]) -> Vector:
        return mean(rows)


@dataclass(frozen=True)
class Bulyan:
    """Krum chooses n - 2f values, one after another; of each coordinate's, the n - 4f nearest to their median
    are averaged.

    El Mhamdi, Guerraoui and Rouault 2018 (arXiv 1802.07927), section 4. Their code (LPD-EPFL) needs as many
    values, 4f + 3, but has means of Multi-Krum, n - 2f - 2 of them, in place of the values that Krum chooses.
    """

    f: int
    slots: ClassVar[tuple[str, ...]] = ()

    @property
    def least(self) -> int:
        return 4 * self.f + 3

    def mixing(self, gram: Matrix) -> Matrix | None:
        squares, left = distances(gram), list(range(len(gram)))
        chosen: list[int] = []
        while len(chosen) < len(gram) - 2 * self.f:
            chosen.append(left.pop(int(krum_order(squares[np.ix_(left, left)], self.f)[0])))
        return np.eye(len(gram))[sorted(chosen)]

    def reduce(self, rows: Sequence[Vector]) -> Vector:
        count = len(rows) - 2 * self.f
        if count == len(rows):
            return mean(rows)
        ascending = _sorted(rows)
        middle = _median(ascending)
        best = total = None
        for first in range(len(rows) - count + 1):
            window = ascending[first : first + count]
            reach = np.maximum(middle - window[0], window[-1] - middle)
            if best is None or total is None:
                best, total = reach, mean(window)
            else:
                total = np.where(reach < best, mean(window), total)
                best = np.minimum(reach, best)
        assert total is not None
        return total


# --- before the aggregator ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NearestNeighbours:
    """Each value becomes the mean of the n - f values nearest to it, itself among them.

    Allouah et al. 2023, "Fixing by mixing" (arXiv 2302.01772): NNM, as in the authors' LPD-EPFL/byzfl.
    """

    f: int

    def least(self, rows: int) -> int:
        return max(rows, 2 * self.f + 1)

    def matrix(self, gram: Matrix, version: int) -> Matrix:
        squares, n = distances(gram), len(gram)
        np.fill_diagonal(squares, -1.0)
        nearest = np.argsort(squares, axis=1, kind="stable")[:, : n - self.f]
        return np.concatenate([_equal_shares(n, np.sort(some)) for some in nearest])


@dataclass(frozen=True)
class Bucketing:
    """The values are put into buckets of `size`, drawn anew for each update, and each bucket's mean is taken.

    Karimireddy, He and Jaggi 2022 (arXiv 2006.09365), algorithm 1; where the size does not divide n, the last
    bucket has fewer. The lies of f workers reach at most f buckets.
    """

    size: int
    seed: int = 0

    def least(self, rows: int) -> int:
        return (rows - 1) * self.size + 1

    def matrix(self, gram: Matrix, version: int) -> Matrix:
        n = len(gram)
        order = generator(self.seed, Purpose.BUCKETS, index=version).permutation(n)
        cuts = range(0, n, self.size)
        return np.concatenate([_equal_shares(n, np.sort(order[a : a + self.size])) for a in cuts])


# --- all of it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Aggregation:
    """How a rule combines several results: by an aggregator, after mixing, or by their mean.

    samples: by worker, how many each has, or how fast it is; the mean is then weighted by them (McMahan et
    al. 2017, arXiv 1602.05629, algorithm 1). None: all count the same.
    """

    by: Aggregator | None = None
    mix: PreAggregation | None = None
    samples: tuple[float, ...] | None = None

    @property
    def slots(self) -> tuple[str, ...]:
        return self.by.slots if self.by else ()

    @property
    def least(self) -> int:
        """How many results it needs."""
        rows = self.by.least if self.by else 1
        return self.mix.least(rows) if self.mix else rows

    def shares(self, workers: Sequence[int]) -> Sequence[float] | None:
        """Return how much each of these workers' results counts, 1 on average; None: all the same."""
        if self.samples is None:
            return None
        counts = [self.samples[worker] for worker in workers]
        return [count * len(counts) / sum(counts) for count in counts]

    def matrix(self, gram: Matrix, version: int) -> Matrix | None:
        """Return M (m, n) for values, and what is remembered, of this Gram matrix (n, n)."""
        assert self.by
        if not self.mix:
            return self.by.mixing(gram)
        remembered = len(self.by.slots)
        n = len(gram) - remembered
        mixed = _with_identity(self.mix.matrix(gram[:n, :n], version), remembered)
        further = self.by.mixing(mixed @ gram @ mixed.T)
        return mixed if further is None else further @ mixed

    def __call__(self, candidates: Candidates, version: int, gram: Matrix | None = None) -> Vector:
        """Return the aggregate (D,).

        gram: of the whole vectors, where only slices of them are here.
        A value that is not finite counts as 0: it is a lie like any other.
        """
        assert self.by
        gram = candidates.gram() if gram is None else gram
        unusable = ~np.isfinite(np.diag(gram))
        gram = np.where(unusable[:, None] | unusable, 0.0, gram)
        matrix = self.matrix(gram, version)
        aggregate = np.empty_like(candidates.values[0])
        for piece in _pieces(len(aggregate), _PIECE):
            rows = candidates.rows(piece)
            for n in np.flatnonzero(unusable):
                rows[n] = np.zeros_like(rows[n])
            mixed = rows if matrix is None else [_combination(shares, rows) for shares in matrix]
            aggregate[piece] = self.by.reduce(mixed)
        return aggregate


class Candidates(NamedTuple):
    """The vectors (D,) that an aggregator compares."""

    values: Sequence[Vector]
    remembered: Sequence[Vector] = ()
    """What the aggregator's slots hold."""
    reference: Vector | None = None
    """Is subtracted from each value."""

    def rows(self, piece: slice) -> list[Vector]:
        """Return a slice of each: values, less the reference, then what is remembered."""
        origin = None if self.reference is None else self.reference[piece]
        values = [value[piece] if origin is None else value[piece] - origin for value in self.values]
        return [*values, *(vector[piece] for vector in self.remembered)]

    def gram(self) -> Matrix:
        """Return the inner products (n, n); those of slices add up to those of the whole, to the last bit if
        they are chunks of `CHUNK` weights.
        """
        n = len(self.values) + len(self.remembered)
        gram = np.zeros((n, n))
        with np.errstate(invalid="ignore", over="ignore"):
            for piece in _pieces(len(self.values[0]), CHUNK):
                rows = np.array(self.rows(piece), np.float64)
                gram += rows @ rows.T
        return gram


def distances(gram: Matrix) -> Matrix:
    """Return the squared distances (n, n) between values of this Gram matrix; what is only rounding is 0."""
    sums = np.diag(gram)[:, None] + np.diag(gram)
    squares = sums - 2 * gram
    return np.where(squares > 1e-14 * sums, squares, 0.0)


def _to_point(squares: Matrix, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the squared distances (n,) to the point that has these shares, of sum 1, of the values."""
    mixed = squares @ shares
    return np.maximum(mixed - shares @ mixed / 2, 0.0)


def _equal_shares(n: int, chosen: NDArray[np.int64]) -> Matrix:
    shares = np.zeros((1, n))
    shares[0, chosen] = 1 / len(chosen)
    return shares


def _with_identity(matrix: Matrix, more: int) -> Matrix:
    """Return a mixing matrix that passes `more` further values on as they are."""
    m, n = matrix.shape
    larger = np.zeros((m + more, n + more))
    larger[:m, :n] = matrix
    larger[m:, n:] = np.eye(more)
    return larger


def _pieces(size: int, most: int) -> list[slice]:
    return [slice(a, a + most) for a in range(0, size, most)]


def _combination(shares: NDArray[np.float64], rows: Sequence[Vector]) -> Vector:
    """Return the sum of rows (D,), each times its share, in their order; elementwise, unlike a matrix
    product.
    """
    terms = [(np.float32(share), row) for share, row in zip(shares, rows, strict=True) if share]
    if len(terms) == 1 and terms[0][0] == 1:
        return terms[0][1]
    total: Vector = np.zeros_like(rows[0])
    for share, row in terms:
        total += share * row
    return total


def _sorted(rows: Sequence[Vector]) -> list[Vector]:
    """Return rows (D,) sorted in each coordinate, the smallest first: by Batcher's network of minima and
    maxima, a tenth of the time of a sort for each coordinate.

    >>> [row.tolist() for row in _sorted([np.float32([3, 1]), np.float32([2, 5]), np.float32([1, 3])])]
    [[1.0, 1.0], [2.0, 3.0], [3.0, 5.0]]
    """
    ordered, n = list(rows), len(rows)
    p = 1
    while p < n:
        k = p
        while k:
            for j in range(k % p, n - k, 2 * k):
                for i in range(j, min(j + k, n - k)):
                    if i // (2 * p) == (i + k) // (2 * p):
                        low, high = ordered[i], ordered[i + k]
                        ordered[i], ordered[i + k] = np.minimum(low, high), np.maximum(low, high)
            k //= 2
        p *= 2
    return ordered


def _median(ascending: Sequence[Vector]) -> Vector:
    n = len(ascending)
    return mean(ascending[(n - 1) // 2 : n // 2 + 1])


# --- options ------------------------------------------------------------------------------------------------

_F = whole("F", 0)
_AGGREGATORS: dict[str, Form[Aggregator]] = {
    "median": Form(Median),
    "trimmed": Form(TrimmedMean, (_F,), "trimmed:2"),
    "krum": Form(Krum, (_F,), "krum:2"),
    "multikrum": Form(Krum, (_F, whole("M", 1)), "multikrum:2,4"),
    "geometric": Form(GeometricMedian),
    "clip": Form(CenteredClipping, (number("RADIUS", "above 0", lambda r: 0 < r < math.inf),), "clip:10"),
    "bulyan": Form(Bulyan, (_F,), "bulyan:2"),
}
_MIXINGS: dict[str, Form[PreAggregation]] = {
    "nnm": Form(NearestNeighbours, (_F,), "nnm:2"),
    "bucketing": Form(Bucketing, (whole("SIZE", 2),), "bucketing:2"),
}


def parse_aggregator(text: str) -> Aggregator | None:
    """Return the aggregator that an option's text names; None for the mean. Raises ValueError with the rule.

    >>> parse_aggregator("mean"), parse_aggregator("multikrum:2,4")
    (None, Krum(f=2, m=4))
    """
    return parsed(text, _AGGREGATORS, "mean")


def parse_mixing(text: str) -> PreAggregation | None:
    """Return the mixing that an option's text names. Raises ValueError with the rule.

    >>> parse_mixing("nnm:2")
    NearestNeighbours(f=2)
    """
    return parsed(text, _MIXINGS, "")
