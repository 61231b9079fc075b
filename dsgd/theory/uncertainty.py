"""The standard error of a run's averages: batch means of its steady part.

What a run measures are time averages: seconds per update, mean staleness. Consecutive values depend on each
other, so their variance divided by their number is no standard error. Batch means are: the run is cut into
some 8 to 32 batches, each so long that one hardly depends on the one before, and the spread of their means
gives the error of the whole, with Student's t for so few.

- Batches: Schmeiser 1982, "Batch size effects in the analysis of simulation output" (Operations Research 30):
  10 to 30 of them; more add little, and shorter ones are correlated.
- Memory: the number of batches stays bounded by joining neighbours in pairs, each time doubling the length:
  Steiger and Wilson 2002, "An improved batch means procedure" (Management Science 48), section 3.
- Warm-up: all workers start together, so the first updates differ from the later ones. As much is left out as
  the run's law needs to forget its start, and one such length at the end, where local modes run dry: Law
  2015, "Simulation modeling and analysis", section 9.5.1.
- The run's ends: a steady part that is cut at any moment counts each worker's tasks to within one. An error
  between -e and e, evenly, has the standard error e/sqrt(3): "Guide to the expression of uncertainty in
  measurement" (JCGM 100:2008), section 4.3.7.
- Skewness: for intervals of 95 % the normal approximation needs 25 times the squared skewness in independent
  values (Cochran 1977, "Sampling techniques", section 2.15), and for those used here four times as many. A
  law whose skewness is infinite never has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

from dsgd.core.update_counts import Totals

LEVEL = 0.999
"""Of an interval: a correct formula lies outside it once in 1,000 comparisons."""

_FEWEST_BATCHES = 6
_MEMORIES_PER_BATCH = 2
_NEEDED_BATCHES = 20
_COCHRAN = 100
_ROUNDING = 1e-9


class Estimate(NamedTuple):
    """A mean over the steady part of a run."""

    mean: float
    standard_error: float
    batches: int


def updates_needed(memory: float, skewness: float, apart: float = 1.0) -> float:
    """Return how many updates a run needs before its averages have a standard error; inf: it never has.

    memory: updates in which it forgets how it began. skewness: of the averaged values, of which those are as
    good as independent that are `apart` updates from each other.

    >>> updates_needed(8, 2.0), updates_needed(1, math.inf)
    (400, inf)
    """
    needed = max(_NEEDED_BATCHES * _MEMORIES_PER_BATCH * memory, _COCHRAN * skewness**2 * apart)
    return math.ceil(needed) if math.isfinite(needed) else math.inf


def steady(rows: Sequence[Totals], memory: float) -> list[Totals]:
    """Return the marks between the batches of a run's steady part; fewer than two where it has none.

    rows: its marks, then its totals at the end. memory: as in `updates_needed`.
    """
    first, last = _MEMORIES_PER_BATCH * memory, rows[-1].updates - memory
    inside = [row for row in rows[:-1] if first <= row.updates <= last]
    if len(inside) < 2:
        return []
    each = (inside[-1].updates - inside[0].updates) / (len(inside) - 1)
    # The batches end where the marks do, so that the last one is whole.
    return inside[:: -max(1, math.ceil(_MEMORIES_PER_BATCH * memory / each))][::-1]


def ratio_of_means(sums: Sequence[tuple[float, float]]) -> Estimate | None:
    """Return (last y - first y)/(last x - first x) and its standard error; None with fewer than 6 batches.

    sums: running totals (y, x) at the ends of the batches, like seconds and updates. Batches may differ a
    little in length: the error is that of a ratio estimator (Cochran 1977, section 6.4).

    >>> estimate = ratio_of_means([(0, 0), (9, 10), (20, 20), (30, 30), (41, 40), (50, 50), (60, 60)])
    >>> estimate.mean, round(estimate.standard_error, 3), estimate.batches
    (1.0, 0.037, 6)
    """
    batches = len(sums) - 1
    if batches < _FEWEST_BATCHES:
        return None
    (y_first, x_first), (y_last, x_last) = sums[0], sums[-1]
    width = x_last - x_first
    mean = (y_last - y_first) / width
    squares = sum(
        (after[0] - before[0] - mean * (after[1] - before[1])) ** 2 for before, after in pairwise(sums)
    )
    return Estimate(mean, math.sqrt(squares * batches / (batches - 1)) / width, batches)


def with_ends(estimate: Estimate, theory: float, memory: float, updates: int, ends: int = 2) -> Estimate:
    """Return the estimate with what its two ends may add, where a mark is not a moment at which all workers
    have just delivered.

    updates: in the steady part. ends: more than two where members came or went. Where all batches are alike
    and equal to `theory`, nothing is uncertain.

    >>> with_ends(Estimate(0.5, 0.0, 20), 0.5, 2, 100).standard_error
    0.0
    >>> round(with_ends(Estimate(0.501, 0.0, 20), 0.5, 2, 100).standard_error, 4)
    0.0058
    """
    tiny = _ROUNDING * abs(theory)
    if estimate.standard_error <= tiny and abs(estimate.mean - theory) <= tiny:
        return estimate._replace(standard_error=0.0)
    cut = ends * (memory - 1) / updates * abs(theory) / math.sqrt(3) if memory > 1 else 0.0
    return estimate._replace(standard_error=math.hypot(estimate.standard_error, cut))


def pooled(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of independent runs, its standard error from those of the runs.

    The spread between five runs would leave Student's t four degrees of freedom, and an interval twice as
    wide. Runs that are all alike, as with constant times, are one run.

    >>> pooled([Estimate(1.0, 0.3, 20), Estimate(2.0, 0.4, 20)])
    Estimate(mean=1.5, standard_error=0.25, batches=39)
    >>> pooled([Estimate(1.0, 0.3, 20), Estimate(1.0, 0.3, 20)])
    Estimate(mean=1.0, standard_error=0.3, batches=20)
    """
    n, first = len(estimates), estimates[0]
    if all(math.isclose(one.mean, first.mean, rel_tol=_ROUNDING) for one in estimates):
        return first
    return Estimate(
        sum(one.mean for one in estimates) / n,
        math.sqrt(sum(one.standard_error**2 for one in estimates)) / n,
        sum(one.batches - 1 for one in estimates) + 1,
    )


def standard_errors_allowed(batches: int, level: float = LEVEL) -> float:
    """Return how many standard errors chance explains: Student's two-sided quantile, `batches` - 1 degrees of
    freedom.

    Its expansion around the normal quantile is within 1 % for 5 of them and more; every run asks for it, and
    loading SciPy would cost more than many a run. Source: Abramowitz and Stegun 1964, formula 26.7.5.

    >>> round(standard_errors_allowed(20), 2)
    3.88
    """
    z, n = NormalDist().inv_cdf((1 + level) / 2), batches - 1
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
