"""Hosts and members that are away: rates, staleness, and the cost of a wrong suspicion. Long-run values.

A host is lost after an exponential time of mean M = `mtbf_s`, and away for D seconds before it computes
again. P = `num_workers`, H = `hosts`; X is a compute time; other notation as in `dsgd.theory.times`. A lost
task is repeated from its beginning, and takes the same time X again: its draw belongs to the worker's step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dsgd.core.time_laws import Constant, Law, Markov, Normal, ShiftedExponential, Uniform
from dsgd.theory.assumptions import NoClosedForm, factors_of, need, need_whole
from dsgd.theory.bounded_staleness import ssp_mean_staleness, ssp_steps_per_s
from dsgd.theory.laws_of_times import Erlang, plain_law, survival
from dsgd.theory.order_statistics import slowest_mean
from dsgd.theory.times import asgd_time


def up_share(mtbf_s: float, away_s: float) -> float:
    """Return the share of its time in which a host lives: M/(M + D).

    An alternating renewal process; D by its mean only. Source: Ross 2014, "Introduction to probability
    models", section 7.5.1.

    >>> up_share(600, 60)
    0.9090909090909091
    """
    _need_failures(mtbf_s, away_s)
    return mtbf_s / (mtbf_s + away_s)


def time_away(mtbf_s: float, back_s: float, restart_s: float) -> float:
    """Return the mean seconds D from a host's loss until its new process computes: (M + b) exp(r/M) - M.

    b = `back_s` until a new process can be started; it starts in r = `restart_s`, and may be lost meanwhile.

    >>> time_away(600, 60, 0)
    60.0
    """
    _need_failures(mtbf_s, back_s)
    need(0 <= restart_s < math.inf, f"restart_s must be at least 0 and finite, not {restart_s}")
    return (mtbf_s + back_s) * math.exp(restart_s / mtbf_s) - mtbf_s


def task_time(law: Law, mtbf_s: float, away_s: float = 0.0, factor: float = 1.0) -> float:
    """Return the mean seconds of a task whose host is lost now and then: (M + D) E[exp(f X/M) - 1].

    f = `factor` on the worker's compute time. Infinite for exponential parts of a mean of M or more, and
    for every heavy tail: a task that is too long for its host is too long for the next one too.
    Source: Kulkarni, Nicola & Trivedi 1987, "The completion time of a job on multimode systems" (Advances in
    Applied Probability 19), preempt-repeat identical; Asmussen et al. 2008, "Asymptotic behavior of total
    times for jobs that must start over if a failure occurs" (Mathematics of Operations Research 33).

    >>> from dsgd.core.time_laws import Exponential
    >>> round(task_time(Exponential(1.0), 600, 60), 4), task_time(Exponential(1.0), 1.0)
    (1.1018, inf)
    """
    _need_failures(mtbf_s, away_s)
    return (mtbf_s + away_s) * _exponential_moment_less_1(law, factor / mtbf_s)


def _exponential_moment_less_1(law: Law, per_s: float) -> float:
    """Return E[exp(a X)] - 1 for a = `per_s` above 0."""
    match plain_law(law):
        case Constant(seconds):
            return math.expm1(per_s * seconds)
        case ShiftedExponential(shift, mean):
            if mean * per_s >= 1:
                return math.inf
            return (math.expm1(per_s * shift) + mean * per_s) / (1 - mean * per_s)
        case Uniform(low, high):
            width = per_s * (high - low)
            return math.exp(per_s * low) * math.expm1(width) / width - 1
        case Markov(fast, slow) as chain:
            p = chain.p_slow
            return (1 - p) * math.expm1(per_s * fast) + p * math.expm1(per_s * slow)
        case Normal(mu, sigma):
            from scipy.special import ndtr

            tilted = math.exp(per_s * mu + (per_s * sigma) ** 2 / 2)
            return float(ndtr(-mu / sigma) + tilted * ndtr(mu / sigma + per_s * sigma)) - 1
    return math.inf  # Pareto, lognormal: no exponential moment


def asgd_time_with_losses(
    law: Law, num_workers: int, mtbf_s: float, away_s: float = 0.0, slowdown: Mapping[int, float] = {}
) -> float:
    """Return ASGD's seconds per update where every worker waits for its own host: 1 / sum_i 1/t_i.

    t_i the worker's `task_time`: each renews on its own. The mean staleness stays P - 1, as each worker's
    task stays in flight. Sources: see `task_time` and `dsgd.theory.times.asgd_time`.

    >>> round(asgd_time_with_losses(Constant(1.0), 8, 600, 60) / asgd_time(Constant(1.0), 8), 4)
    1.1009
    """
    factors = factors_of(num_workers, slowdown)
    return 1 / sum(1 / task_time(law, mtbf_s, away_s, float(factor)) for factor in factors)


# --- Hosts that carry several workers -----------------------------------------------------------------------


def loads(num_workers: int, hosts: int) -> list[int]:
    """Return how many workers each living host carries, as even as can be.

    >>> loads(8, 3)
    [3, 3, 2]
    """
    need_whole("num_workers", num_workers)
    need_whole("hosts", hosts)
    each, more = divmod(num_workers, hosts)
    return [each + (host < more) for host in range(hosts)]


def asgd_time_on_hosts(law: Law, num_workers: int, hosts: int) -> float:
    """Return ASGD's seconds per update on H <= P living hosts: E[X]/H.

    A host computes its workers' tasks one after the other, and always has one. So a host that is away for
    good leaves (H - 1)/H of the throughput under `--on-loss rehost`, for any law. The mean staleness stays
    P - 1.

    >>> asgd_time_on_hosts(Constant(1.0), 8, 4)
    0.25
    """
    need_whole("hosts", hosts)
    need(hosts <= num_workers, f"{hosts} hosts for {num_workers} workers: some would have nothing to do")
    return asgd_time(law, hosts)


def ssgd_time_on_hosts(law: Law, num_workers: int, hosts: int) -> float:
    """Return SSGD's seconds per update on H living hosts: E[max_h (X_1 + ... + X_n_h)], n_h as in `loads`.

    Constant times: ceil(P/H) X, so H - 1 hosts give (H - 1)/H of the throughput of H if P is a multiple of
    both, and less if not: half of it for P = H. A sum of exponentials is an Erlang law.

    >>> [ssgd_time_on_hosts(Constant(1.0), 12, hosts) for hosts in (4, 3)]
    [3.0, 4.0]
    """
    carried = [n for n in loads(num_workers, hosts) if n]
    plain = plain_law(law)
    if isinstance(plain, Constant):
        return plain.seconds * max(carried)
    if max(carried) == 1:
        return slowest_mean(plain, np.ones(len(carried)))
    if not isinstance(plain, ShiftedExponential):
        raise NoClosedForm(f"the sum of {max(carried)} times has no closed form for {plain}; simulate it")
    return _slowest_sum(plain, carried)


def _slowest_sum(law: ShiftedExponential, terms: Sequence[int]) -> float:
    """Return E[max_h S_h] for independent sums S_h of so many times."""
    from scipy.integrate import quad

    sums = [Erlang(n * law.shift_s, law.exponential_mean_s, n) for n in terms]

    def not_done(t: float) -> float:
        return 1 - math.prod(1 - float(survival(one, t)) for one in sums)

    deviations = 40 + 10 * math.sqrt(max(terms)) + math.log(len(terms))  # past these: less than rounding
    end_s = max(one.mean_s for one in sums) + law.exponential_mean_s * deviations
    marks = sorted({x for one in sums for x in (one.shift_s, one.mean_s)} - {0.0})
    return float(quad(not_done, 0, end_s, points=marks, limit=400)[0])


def hosts_at_work(hosts: int, up: float, spares: int = 0) -> float:
    """Return the mean number of H hosts' places that are filled: E[min(H, N)], N binomial (H + s, a).

    a = `up` share of each of H + s processes, of which s = `spares` wait to take over; all are lost
    independently. The machine repair problem with a repairman for each: the law of the time away matters by
    its mean only.
    Source: Barlow & Proschan 1965, "Mathematical theory of reliability", section 5.2.

    >>> hosts_at_work(8, 0.9), round(hosts_at_work(8, 0.9, spares=1), 3)
    (7.2, 7.713)
    """
    need_whole("hosts", hosts)
    need_whole("spares", spares, at_least=0)
    need(0 <= up <= 1, f"up must lie in [0, 1], not {up}")
    if not spares:
        return hosts * up
    there = hosts + spares
    return sum(
        min(hosts, n) * math.comb(there, n) * up**n * (1 - up) ** (there - n) for n in range(there + 1)
    )


# --- Members that are away ----------------------------------------------------------------------------------


def asgd_time_with_one_away(law: Law, num_workers: int, share: float) -> float:
    """Return ASGD's seconds per update with one of P equal members away: E[X]/(P - q), q its share of the
    time.

    >>> asgd_time_with_one_away(Constant(1.0), 4, 0.5)
    0.2857142857142857
    """
    _need_share(num_workers, share)
    return plain_law(law).mean_s / (num_workers - share)


def asgd_mean_staleness_with_one_away(num_workers: int, share: float) -> float:
    """Return ASGD's mean staleness with one of P equal members away for a share q of the time.

    Members - 1, weighted by the gradients of either time: (P (P-1) (1-q) + (P-1) (P-2) q) / (P - q).
    An update ages the tasks in flight by one each, so that members - 1 is exact whatever the times are.

    >>> asgd_mean_staleness_with_one_away(4, 0.5)
    2.5714285714285716
    """
    _need_share(num_workers, share)
    p, q = num_workers, share
    return (p * (p - 1) * (1 - q) + (p - 1) * (p - 2) * q) / (p - q)


def ssp_updates_per_s_with_one_away(law: Law, num_workers: int, slack: float, share: float) -> float:
    """Return SSP's updates a second with one of P equal members away for a share q of the time.

    (1 - q) P r_P + q (P - 1) r_{P-1}, r_n the steps a second of each of n members (`ssp_steps_per_s`), where
    the times with and without it are long against those in which SSP forgets its clocks.

    >>> ssp_updates_per_s_with_one_away(Constant(1.0), 4, 3, 0.5)
    3.5
    """
    _need_share(num_workers, share)
    p = num_workers
    present = p * ssp_steps_per_s(law, p, slack)
    away = (p - 1) * ssp_steps_per_s(law, p - 1, slack)
    return (1 - share) * present + share * away


def ssp_mean_staleness_with_one_away(law: Law, num_workers: int, slack: float, share: float) -> float:
    """Return SSP's mean staleness with one of P equal members away for a share q of the time.

    That of P and of P - 1 members (`ssp_mean_staleness`), weighted by the gradients of either time.

    >>> ssp_mean_staleness_with_one_away(Constant(1.0), 4, 0, 1.0)
    1.0
    """
    _need_share(num_workers, share)
    p = num_workers
    present = (1 - share) * p * ssp_steps_per_s(law, p, slack)
    away = share * (p - 1) * ssp_steps_per_s(law, p - 1, slack)
    stale = present * ssp_mean_staleness(law, p, slack) + away * ssp_mean_staleness(law, p - 1, slack)
    return stale / (present + away)


# --- Suspicion ----------------------------------------------------------------------------------------------


def suspected_share(law: Law, suspect_after_s: float) -> float:
    """Return the share of tasks that are sent to a second host although nothing is wrong: P(X > S).

    >>> from dsgd.core.time_laws import Exponential
    >>> round(suspected_share(Exponential(1.0), 3.0), 4)
    0.0498
    """
    need(suspect_after_s > 0, f"suspect_after_s must be above 0, not {suspect_after_s}")
    return float(survival(plain_law(law), suspect_after_s))


def wasted_by_suspicion(law: Law, suspect_after_s: float) -> float:
    """Return the mean seconds that second copies compute per task, where nothing is wrong: E[(X - S)^+].

    A second copy has the same time X and begins S later, so it never comes first; it is stopped when the
    first answer is there. Each second host is idle, as a free spare is.

    >>> from dsgd.core.time_laws import Exponential
    >>> round(wasted_by_suspicion(Exponential(1.0), 3.0), 4)
    0.0498
    """
    need(suspect_after_s > 0, f"suspect_after_s must be above 0, not {suspect_after_s}")
    return plain_law(law).mean_s - _mean_up_to(law, suspect_after_s)


def first_of_two_answers(law: Law, suspect_after_s: float, factor: float) -> float:
    """Return the mean seconds of a task on a host that is f = `factor` > 1 times slower: E[min(f X, S + X)].

    = E[X] + (f - 1) E[min(X, S/(f - 1))]. The second host is idle and computes at full speed; where it comes
    first, it gets the next task at once.

    >>> from dsgd.core.time_laws import Exponential
    >>> [first_of_two_answers(Constant(1.0), 2.0, factor) for factor in (10, 2)]
    [3.0, 2.0]
    >>> round(first_of_two_answers(Exponential(1.0), 2.0, factor=5), 4)
    2.5739
    """
    need(suspect_after_s > 0, f"suspect_after_s must be above 0, not {suspect_after_s}")
    need(factor > 1, f"factor must be above 1, not {factor}")
    slower = factor - 1
    return plain_law(law).mean_s + slower * _mean_up_to(law, suspect_after_s / slower)


def tries_of_a_slow_host(time_s: float, task_s: float, suspect_after_s: float) -> int:
    """Return how often a host that is always too slow gets a task in T seconds, at most:
    2 + floor(log2(T / (2 S + 3 X))), for constant times X and T of 2 S + 3 X or more.

    Each try ends after S + X, when the second host has done the task. The second try begins one task later;
    from then on the next one comes after as long a time as has gone by since the first: the times double.

    >>> [tries_of_a_slow_host(time_s, 1, 2) for time_s in (7, 100, 1000)]
    [2, 5, 9]
    """
    need(suspect_after_s > 0, f"suspect_after_s must be above 0, not {suspect_after_s}")
    need(task_s > 0, f"task_s must be above 0, not {task_s}")
    second_s = 2 * suspect_after_s + 3 * task_s
    need(second_s <= time_s < math.inf, f"time_s must be at least {second_s:g} and finite, not {time_s}")
    return 2 + math.floor(math.log2(time_s / second_s))


def _mean_up_to(law: Law, t_s: float) -> float:
    """Return E[min(X, t)], the integral of P(X > x) from 0 to t."""
    from scipy.integrate import quad

    match plain_law(law):
        case Constant(seconds):
            return min(seconds, t_s)
        case ShiftedExponential(shift, mean):
            return min(shift, t_s) - mean * math.expm1(-max(0.0, t_s - shift) / mean)
        case Markov(fast, slow) as chain:
            return min(fast, t_s) * (1 - chain.p_slow) + min(slow, t_s) * chain.p_slow
        case Uniform(low, high):
            marks = [x for x in (low, high) if 0 < x < t_s]
        case _:
            marks = []
    plain = plain_law(law)
    return float(quad(lambda x: float(survival(plain, x)), 0, t_s, points=marks or None, limit=200)[0])


def _need_failures(mtbf_s: float, away_s: float) -> None:
    need(0 < mtbf_s < math.inf, f"mtbf_s must be above 0 and finite, not {mtbf_s}")
    need(0 <= away_s < math.inf, f"away_s must be at least 0 and finite, not {away_s}")


def _need_share(num_workers: int, share: float) -> None:
    need_whole("num_workers", num_workers, at_least=2)
    need(0 <= share <= 1, f"share must lie in [0, 1], not {share}")
