"""What liars can do: bounds on an aggregate, and where descent among liars ends.

n values, f of them lies. An aggregator is (f, kappa)-robust if, whichever n - f of the values are the honest
ones and whatever the others are, its squared distance to the honest ones' mean is at most kappa times their
mean squared distance to it, V below (Allouah et al. 2023, "Fixing by mixing", arXiv 2302.01772).

The kappas here are proved where they stand, because the paper's are for rules that differ a little: its Krum
counts one neighbour more. Those of the median and the trimmed mean are exact. H is the set of the honest
values, h = n - f their number, x their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dsgd.core.aggregators import (
    Aggregation,
    Aggregator,
    Candidates,
    GeometricMedian,
    Krum,
    Median,
    PreAggregation,
    TrimmedMean,
)
from dsgd.core.weights import Vector

Rows = NDArray[np.float32]  # (n, D)


def lower_bound(n: int, f: int) -> float:
    """Return the smallest kappa that any aggregator can have.

    Let f values be 1 and n - f be 0. If the ones are lies, V = 0, so the aggregate must be 0. If f of the
    zeros are, x = f/h and V = x (1 - x): the aggregate is off by x^2 = V f/(h - f).

    >>> lower_bound(5, 1)
    0.3333333333333333
    """
    return f / (n - 2 * f)


def kappa_trimmed(n: int, f: int) -> float:
    """Return kappa of the trimmed mean: exactly the lower bound.

    Lies move each coordinate farthest when all are on one side, say above. What is left is then the mean of
    all honest values but the f smallest, sum c_i x_(i) with c = 0 for these and else 1/(h - f). As c does not
    fall, Cauchy and Schwarz's inequality for (c_i - 1/h) and (x_(i) - x) is attained: the squared distance is
    at most h sum (c_i - 1/h)^2 V = (h/(h - f) - 1) V.
    """
    return lower_bound(n, f)


def kappa_median(n: int, f: int) -> float:
    """Return kappa of the median of each coordinate, exactly: (k - 1)/(h - k + 1) with k = n/2, rounded up.

    With all lies above, it is the k-th smallest honest value or, where n is even, between that and the next.
    As x_(i) does not fall, it is at most the mean of those from the k-th on, which is the sum c_i x_(i) above
    with k - 1 for f. Values 0, and 1 from the k-th on, attain it.

    >>> kappa_median(5, 1), kappa_median(12, 3)
    (1.0, 1.25)
    """
    k = -(-n // 2)
    return (k - 1) / (n - f - k + 1)


def kappa_geometric(n: int, f: int) -> float:
    """Return a kappa of the geometric median, 4 (1 + f/(n - 2f))^2.

    The sum of distances is no larger from it, y, than from x. The triangle inequality leaves
    (h - f) |y - x| <= 2 sum over H of |x_i - x| <= 2 h sqrt(V).
    """
    return 4 * (1 + lower_bound(n, f)) ** 2


def kappa_krum(n: int, f: int) -> float:
    """Return a kappa of Krum: h/m (1 + sqrt(2 q/(h - 1)))^2, with q = n - f - 2 and m = q - f + 1.

    q is the number of neighbours that count. The score of an honest value is at most q/(h - 1) of the sum
    over all other honest ones, which is 2 h V on average; so the score s of the chosen value y is at most
    2 q h/(h - 1) V. Of y and its q neighbours at least m are honest. Their mean squared distances to y and to
    x are at most s/m and h V/m, and |y - x| at most the sum of the roots of these two (Minkowski).

    With q = h - 1, one neighbour more than Blanchard et al. 2017 have, it is less than 6 (1 + f/(n - 2f)).
    """
    q, h = n - f - 2, n - f
    return h / (q - f + 1) * (1 + math.sqrt(2 * q / (h - 1))) ** 2


def kappa_mixed(kappa: float, n: int, f: int) -> float:
    """Return a kappa of an aggregator after mixing by nearest neighbours: 8 f/(n - f) (kappa + 1).

    The mean y_i of the h values N_i nearest to x_i differs from x by 1/h of the sum over N_i outside H less
    that over H outside N_i, at most f terms each, the former nearer to x_i than the latter. So |y_i - x|^2 is
    at most 4 f/h^2 times the sum over H of |x_j - x_i|^2, on average over H 8 f/h V. That is the variance of
    the y_i and the squared distance of their mean y from x; and (a + b)^2 <= (1 + 1/kappa) a^2 +
    (1 + kappa) b^2 for a^2 <= kappa times the variance, b = |y - x|.
    """
    return 8 * f / (n - f) * (kappa + 1)


BOUNDS: dict[str, tuple[Callable[[int], Aggregator], Callable[[int, int], float]]] = {
    "median": (lambda f: Median(), kappa_median),
    "trimmed": (TrimmedMean, kappa_trimmed),
    "krum": (Krum, kappa_krum),
    "geometric": (lambda f: GeometricMedian(), kappa_geometric),
}
"""By name: the aggregator for f liars, and its kappa."""


# --- a search for the worst lies ----------------------------------------------------------------------------


def aggregated(by: Aggregator, rows: Rows, mix: PreAggregation | None = None, version: int = 0) -> Vector:
    """Return what an aggregator makes of rows (n, D); of one that remembers, the first time."""
    remembered = [np.zeros_like(rows[0]) for _ in by.slots]
    return Aggregation(by, mix)(Candidates(list(rows), remembered), version)


def spreads_away(aggregate: Vector, honest: Rows) -> float:
    """Return the squared distance of an aggregate (D,) from the mean of honest rows (n - f, D), over their
    mean squared distance from it: what kappa bounds.
    """
    exact = honest.astype(np.float64)
    centre = exact.mean(0)
    spread = ((exact - centre) ** 2).sum(1).mean()
    return float(((aggregate - centre) ** 2).sum() / spread)


def worst_found(n: int, f: int, by: Aggregator, mix: PreAggregation | None = None, tries: int = 40) -> float:
    """Return the largest `spreads_away` that a seeded search finds."""
    rng = np.random.default_rng(n * 100 + f)
    found = 0.0
    for _ in range(tries):
        for honest, everyone in _attacked(rng, n, f):
            found = max(found, spreads_away(aggregated(by, everyone, mix), honest))
    return found


def _attacked(rng: np.random.Generator, n: int, f: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield honest values (n - f, D), and all values (n, D) with lies that an adversary may try."""
    dims = int(rng.integers(1, 5))
    drawn = rng.standard_normal((n - f, dims)) * rng.choice([0.1, 1, 10], dims)
    if rng.random() < 0.3:  # a few far out: the liars side with them, or against them
        drawn[: int(rng.integers(1, f + 1))] += 10 * rng.standard_normal(dims)
    if rng.random() < 0.2:  # two values: the worst case of the median and the trimmed mean
        drawn = (drawn > np.sort(drawn, axis=0)[rng.integers(n - f - 1)]).astype(np.float64)
    honest = drawn.astype(np.float32)
    centre, deviation = honest.mean(0), honest.std(0)
    farthest = honest[np.argmax(((honest - centre) ** 2).sum(1))]
    for lie in (
        centre - rng.uniform(0, 4) * deviation,
        farthest + rng.uniform(0, 1) * (farthest - centre),
        honest[int(rng.integers(n - f))],
        centre + 10 ** rng.uniform(-1, 6) * rng.standard_normal(dims),
        honest.min(0),
    ):
        lies = np.tile(lie, (f, 1)) + (rng.random() < 0.5) * 0.01 * rng.standard_normal((f, dims))
        yield honest, rng.permutation(np.vstack([honest, lies]).astype(np.float32))


# --- where descent among liars ends, on quadratics of curvature 1 and optima x_i ----------------------------


def signflip_fixed_point(honest: Sequence[float], liars: Sequence[float], size: float = 1.0) -> float:
    """Return where the mean of honest gradients, and of the liars' times -size, is 0.

    >>> signflip_fixed_point([0.0, 1.0, 2.0], [4.0])
    -0.5
    """
    return (sum(honest) - size * sum(liars)) / (len(honest) - size * len(liars))


def mimic_fixed_point(honest: Sequence[float], liars: int) -> float:
    """Return where the mean is 0 if each of so many liars sends what the first honest worker does.

    >>> mimic_fixed_point([0.0, 3.0], 1)
    1.0
    """
    return (sum(honest) + liars * honest[0]) / (len(honest) + liars)


def ipm_decay(lr: float, honest: int, liars: int, size: float) -> float:
    """Return the factor on the distance from the honest optimum in an update by the mean, where each liar
    sends -size times the mean of the honest gradients: above 1 once size exceeds honest/liars.
    """
    return 1 - lr * (honest - size * liars) / (honest + liars)


def table(sizes: Sequence[tuple[int, int]]) -> str:
    """Return, as Markdown, the kappas beside the worst that the search finds."""
    lines = [
        "| n, f | no aggregator below | " + " | ".join(BOUNDS) + " |",
        "|---" * (2 + len(BOUNDS)) + "|",
    ]
    for n, f in sizes:
        cells = [f"{worst_found(n, f, make(f)):.2f} of {k(n, f):.2f}" for make, k in BOUNDS.values()]
        lines.append(f"| {n}, {f} | {lower_bound(n, f):.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([(5, 1), (7, 2), (11, 2), (12, 2), (12, 3)]))
