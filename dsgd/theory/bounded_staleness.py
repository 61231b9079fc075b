"""SSP in the long run: the rate of its workers, the staleness of its gradients, and the bounds of both.

A worker may start while it is at most s = `slack` mini-batches ahead of the slowest. P = `num_workers`
workers; other notation as in `dsgd.theory.times`. The chain behind the means is in `dsgd.theory.ssp_chain`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dsgd.core.time_laws import Constant, Law
from dsgd.theory.assumptions import NoClosedForm, factors_of, need, need_slack, need_whole
from dsgd.theory.laws_of_times import exponential_mean_s, memory_steps, per_s, plain_law
from dsgd.theory.order_statistics import slowest_mean
from dsgd.theory.ssp_chain import workers_not_blocked


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
    plain, factors = plain_law(law), factors_of(num_workers, slowdown)
    need_slack(slack)
    slowest, equal = float(factors.max()), bool(np.ptp(factors) == 0)
    if num_workers == 1 or (slack == math.inf and equal):
        return per_s(plain.mean_s * slowest)
    need(slack < math.inf, "without a bound, unequal workers have unequal rates: see asgd_time")
    if slack == 0 or isinstance(plain, Constant):
        return per_s(slowest_mean(plain, factors))
    mean_s = exponential_mean_s(law, "SSP's rate with slack above 0")
    if num_workers == 2:
        log_p = np.arange(-slack - 1, slack + 2) * math.log(factors[1] / factors[0])
        p = np.exp(log_p - log_p.max())
        return float(p[:-1].sum() / p.sum() / (mean_s * factors[0]))
    if not equal:
        raise NoClosedForm("SSP with slack above 0 and more than two unequal workers; simulate it")
    return workers_not_blocked(num_workers, int(slack))[0] / (num_workers * mean_s * slowest)


def ssp_staleness_bound(num_workers: int, slack: float) -> float:
    """Return the largest staleness under SSP, (P - 1)(2s + 1), s = `slack`; it is attained.

    While a task that started at clock c is in flight, each other clock rises from c - s at least to c + s + 1
    at most. Source: Ho et al. 2013 (NIPS 26) for the rule; workers read the newest weights there are.

    >>> ssp_staleness_bound(8, 3)
    49.0
    """
    need_whole("num_workers", num_workers)
    need_slack(slack)
    return (num_workers - 1) * (2.0 * slack + 1) if num_workers > 1 else 0.0


def ssp_clock_gap_bound(num_workers: int, slack: float) -> float:
    """Return the largest gap, fastest less slowest clock, when a task completes under SSP: s + 1.

    A task starts at most s = `slack` ahead. Source: Ho et al. 2013 (NIPS 26).

    >>> ssp_clock_gap_bound(8, 3)
    4.0
    """
    need_whole("num_workers", num_workers)
    need_slack(slack)
    return slack + 1.0 if num_workers > 1 else 0.0


def ssp_mean_staleness(law: Law, num_workers: int, slack: float) -> float:
    """Return SSP's mean staleness for equal workers, s = `slack`.

    s = 0, any law: (P - 1)/2.  s = inf: P - 1, as ASGD.  Exponential times: an update ages the other tasks in
    flight by one, so it is E[m^2]/E[m] - 1, m the workers not blocked in the chain of `ssp_steps_per_s`; for
    P = 2 (2s + 1)/(2s + 2). Source: Ho et al. 2013 (NIPS 26) for the rule, from which the mean follows.

    >>> ssp_mean_staleness(Constant(1.0), 8, 0)
    3.5
    """
    need_whole("num_workers", num_workers)
    need_slack(slack)
    if slack in (0, math.inf) or num_workers == 1:
        return (num_workers - 1) / (2 if slack == 0 else 1)
    exponential_mean_s(law, "SSP's mean staleness with slack above 0")
    first, second = workers_not_blocked(num_workers, int(slack))
    return second / first - 1


def ssp_memory(law: Law, num_workers: int, slowdown: Mapping[int, float], slack: float) -> float:
    """Return the updates in which SSP forgets that all clocks were equal at the start, s = `slack`.

    s = 0: a round of P. Constant times: until the fastest worker has run s + 1 ahead of the slowest, which it
    does at a rate of 1 - f_fast/f_slow a step. Else the clocks' differences are random walks between -(s+1)
    and s+1, and the slowest mode of such a walk fades by 1/e in (2s+3)^2/pi^2 steps of each worker (Feller
    1968, "An introduction to probability theory" I, section XVI.3).

    >>> ssp_memory(Constant(1.0), 2, {0: 2.0}, 3), round(ssp_memory(Constant(1.0), 2, {}, 3), 1)
    (16.0, 2.0)
    """
    factors = factors_of(num_workers, slowdown)
    need_slack(slack)
    if slack == math.inf:
        return float(factors.max() * (1 / factors).sum()) * memory_steps(law)
    steps = 1.0
    if slack > 0 and law.variance_s2 == 0:
        behind = 1 - np.unique(factors) / factors.max()
        steps = (slack + 1) / float(behind[-2]) if len(behind) > 1 else 1.0
    elif slack > 0:
        steps = 1 + (2 * slack + 3) ** 2 / math.pi**2
    return num_workers * steps * memory_steps(law)
