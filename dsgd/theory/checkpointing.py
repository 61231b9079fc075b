"""Checkpoints against failures: how long a run takes in all, and which interval is best.

C = `cost_s` seconds to write a checkpoint, during which nothing is computed; T = `interval_s` seconds of
computing from the end of one checkpoint to the start of the next; M = `mtbf_s` mean seconds between failures
of the whole run, a Poisson process; R = `restart_s` seconds from a failure until the run computes again, if
no other failure interrupts the restart. A failure loses what was computed since the last checkpoint.

Young 1974: "A first order approximation to the optimum checkpoint interval" (Communications of the ACM 17).
Daly 2006: "A higher order estimate of the optimum checkpoint interval for restart dumps" (Future Generation
Computer Systems 22).
"""

from __future__ import annotations

import math

from dsgd.theory.assumptions import need


def young_interval(cost_s: float, mtbf_s: float) -> float:
    """Return Young's interval, sqrt(2 C M) seconds: the first order, for C much smaller than M.

    >>> young_interval(2.0, 400.0)
    40.0
    """
    _need_times(cost_s, mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s)


def checkpoint_interval(cost_s: float, mtbf_s: float) -> float:
    """Return the best seconds of computing between two checkpoints; 0 where checkpoints cost nothing.

    sqrt(2 C M) (1 + sqrt(C/(2 M))/3 + (C/(2 M))/9) - C for C < 2 M, else M. The time of a restart does not
    change it. Source: Daly 2006, equation 37. His figures 3 to 5, for C = 5 minutes, have 117 minutes at
    M = 24 hours, 57 at 6 hours and 9.1 at 15 minutes:

    >>> [round(checkpoint_interval(5, 60 * hours), 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.1]
    """
    _need_times(cost_s, mtbf_s)
    half = cost_s / (2 * mtbf_s)
    if half >= 1:
        return mtbf_s
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - cost_s


def best_checkpoint_interval(cost_s: float, mtbf_s: float) -> float:
    """Return the interval at which `completion_time` is least, exactly: M (1 + W(-exp(-1 - C/M))) seconds.

    W is Lambert's function: the root of (1 - T/M) exp((T + C)/M) = 1. Source: Daly 2006, section 4, whose
    `checkpoint_interval` is a series for it.

    >>> round(best_checkpoint_interval(5, 60 * 24), 1)
    116.7
    """
    from scipy.special import lambertw

    _need_times(cost_s, mtbf_s)
    return mtbf_s * max(0.0, 1 + float(lambertw(-math.exp(-1 - cost_s / mtbf_s)).real))


def completion_time(
    work_s: float, interval_s: float, cost_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Return the expected seconds of a run that computes for W = `work_s`, failures and checkpoints included.

    M exp(R/M) (exp((T + C)/M) - 1) W/T. Exact where W is a multiple of T and the last checkpoint is written
    too. Source: Daly 2006, the complete model.

    >>> round(completion_time(20_000, 49, cost_s=2, mtbf_s=600, restart_s=10) / 20_000, 4)
    1.1046
    """
    _need_times(cost_s, mtbf_s)
    need(0 < interval_s < math.inf, f"interval_s must be above 0 and finite, not {interval_s}")
    need(0 <= restart_s < math.inf, f"restart_s must be at least 0 and finite, not {restart_s}")
    need(0 <= work_s < math.inf, f"work_s must be at least 0 and finite, not {work_s}")
    segment_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + cost_s) / mtbf_s)
    return segment_s * work_s / interval_s


def completion_deviation(
    work_s: float, interval_s: float, cost_s: float, mtbf_s: float, restart_s: float = 0.0
) -> float:
    """Return the standard deviation (s) of the time whose mean is `completion_time`.

    Each of W/T intervals is tried until no failure interrupts it, and so is each restart: geometrically many
    failed attempts, each shorter than what it attempted. Source: the second moment of Daly's model.

    >>> round(completion_deviation(20_000, 49, cost_s=2, mtbf_s=600, restart_s=10) / 20_000, 4)
    0.0119
    """
    restart = _until_it_succeeds(restart_s, mtbf_s, (0.0, 0.0))
    _, variance = _until_it_succeeds(interval_s + cost_s, mtbf_s, restart)
    return math.sqrt(work_s / interval_s * variance)


def _until_it_succeeds(needed_s: float, mtbf_s: float, away: tuple[float, float]) -> tuple[float, float]:
    """Return mean and variance of the time until `needed_s` seconds pass without a failure.

    away: mean and variance of the time that follows each failure.
    """
    if not needed_s:
        return 0.0, 0.0
    x = needed_s / mtbf_s
    fails, survives = -math.expm1(-x), math.exp(-x)
    mean = mtbf_s * (1 - x * survives / fails)  # of an attempt that failed
    square = mtbf_s**2 * (2 - survives * (x**2 + 2 * x + 2)) / fails
    attempts, lost_s = fails / survives, mean + away[0]
    variance = attempts * (square - mean**2 + away[1]) + attempts / survives * lost_s**2
    return needed_s + attempts * lost_s, variance


def time_without_checkpoints(work_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Return the expected seconds of a run that begins again at each failure: M exp(R/M) (exp(W/M) - 1).

    `completion_time` with a single interval and no cost.

    >>> round(time_without_checkpoints(3600, 600) / 3600, 1)
    67.1
    """
    return completion_time(work_s, work_s, 0.0, mtbf_s, restart_s)


def _need_times(cost_s: float, mtbf_s: float) -> None:
    need(0 <= cost_s < math.inf, f"cost_s must be at least 0 and finite, not {cost_s}")
    need(0 < mtbf_s < math.inf, f"mtbf_s must be above 0 and finite, not {mtbf_s}")
