"""The closed forms have the values they must have, agree with their naive versions, and know their limits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import run_python
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.core.time_laws import (
    Constant,
    Exponential,
    Floats,
    Law,
    Lognormal,
    Markov,
    NoDelay,
    Normal,
    Pareto,
    ShiftedExponential,
    Trace,
    Uniform,
)
from dsgd.theory import balancing
from dsgd.theory.assumptions import NoClosedForm
from dsgd.theory.bounded_staleness import (
    ssp_clock_gap_bound,
    ssp_mean_staleness,
    ssp_staleness_bound,
    ssp_steps_per_s,
)
from dsgd.theory.laws_of_times import quantile, survival
from dsgd.theory.order_statistics import harmonic, order_statistic_mean, order_statistic_mean_by_quadrature
from dsgd.theory.quadratics import (
    easgd_largest_stable_alpha,
    largest_stable_step,
    local_sgd_fixed_point,
    momentum_from_asynchrony,
    noise_floor,
)
from dsgd.theory.queueing import server_updates_per_s, server_updates_per_s_bound, workers_to_fill_server
from dsgd.theory.stale_gradients import (
    asgd_mean_staleness,
    asgd_mean_staleness_by_worker,
    asgd_staleness_pmf,
    k_async_mean_staleness,
    k_async_staleness_pmf,
    k_batch_async_mean_staleness,
)
from dsgd.theory.times import (
    asgd_time,
    backup_workers_time,
    best_k_sync,
    k_async_time,
    k_batch_async_time,
    k_batch_sync_time,
    k_sync_time,
    local_sgd_time_per_step,
    ssgd_time,
)

EXPONENTIAL = Exponential(1.0)
TRACE = Trace("times.csv", ((1.0, 2.0),), per_worker=False)
LAWS: list[Law] = [
    NoDelay(),
    Constant(1.5),
    Exponential(2.0),
    ShiftedExponential(1.0, 0.5),
    Uniform(0.0, 1.0),
    Uniform(0.5, 1.5),
    Normal(1.0, 0.1),
    Normal(0.5, 1.0),
    Lognormal(1.0, 0.5),
    Lognormal(2.0, 3.0),
    Pareto(3.0, 1.0),
    Pareto(1.1, 2.0),
    Markov(1.0, 5.0, 0.3, 0.4),
]

seconds = st.floats(0.01, 100)
chance = st.floats(0.05, 1)
laws = st.one_of(
    st.builds(Constant, seconds),
    st.builds(Exponential, seconds),
    st.builds(ShiftedExponential, seconds, seconds),
    st.builds(lambda low, width: Uniform(low, low + width), seconds, seconds),
    st.builds(Normal, st.floats(0, 3), st.floats(0.05, 3)),
    st.builds(Lognormal, seconds, st.floats(0.05, 3)),
    st.builds(Pareto, st.floats(0.3, 5), seconds),
    st.builds(lambda fast, more, p, q: Markov(fast, fast + more, p, q), seconds, seconds, chance, chance),
)
workers = st.integers(1, 12)
factors = st.lists(st.floats(0.2, 5), min_size=1, max_size=5)
in_time = settings(deadline=None, max_examples=60)


def rounds_to(value: float, text: str) -> bool:
    """Whether `value` is the number `text` to the digits given."""
    digits = len(text.partition(".")[2])
    return abs(value - float(text)) <= 0.5 * 10.0**-digits * (1 + 1e-9)


# --- The published numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "exponential", "shifted"), [(8, "2.7179", "3.7179"), (4, ".6345", "1.6345"), (1, ".125", "1.125")]
)
def test_the_time_of_k_sync(k: int, exponential: str, shifted: str) -> None:
    """P = 8: an update waits H_8 - H_{8-K} means of the exponential part, and the shift."""
    assert rounds_to(k_sync_time(EXPONENTIAL, 8, k), exponential)
    assert rounds_to(k_sync_time(ShiftedExponential(1.0, 1.0), 8, k), shifted)
    assert k_async_time(EXPONENTIAL, 8, k) == pytest.approx(k_sync_time(EXPONENTIAL, 8, k), rel=1e-12)


def test_the_time_of_ssgd_is_that_of_8_sync() -> None:
    """SSGD is K-sync with K = P, for any law."""
    assert rounds_to(ssgd_time(EXPONENTIAL, 8), "2.7179")
    for law in LAWS:
        assert ssgd_time(law, 8) == pytest.approx(k_sync_time(law, 8, 8), rel=1e-12)


def test_the_time_of_batch_modes() -> None:
    """K-batch-sync takes K/P means of exponential times; ASGD and K-batch-async K/P means of any law's."""
    assert [k_batch_sync_time(EXPONENTIAL, 8, k) for k in (4, 8)] == [0.5, 1.0]
    assert asgd_time(EXPONENTIAL, 8) == 0.125
    for law in LAWS:
        assert asgd_time(law, 8) == pytest.approx(law.mean_s / 8, rel=1e-14)
        assert k_batch_async_time(law, 8, 5) == pytest.approx(5 * law.mean_s / 8, rel=1e-14)


def test_the_time_with_backup_workers() -> None:
    """96 of 100 take H_100 - H_4, against H_100 for all."""
    assert rounds_to(backup_workers_time(EXPONENTIAL, 96, 4), "3.1040")
    assert rounds_to(backup_workers_time(EXPONENTIAL, 100, 0), "5.1874")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, "2.718"), (2, "2.180"), (4, "1.808"), (8, "1.555"), (16, "1.383"), (100, "1.147")],
)
def test_the_time_of_a_local_step(steps: int, expected: str) -> None:
    """P = 8, exponential times: E[max of 8 Erlang(H)]/H; a shift adds itself."""
    value = local_sgd_time_per_step(EXPONENTIAL, 8, steps)
    assert rounds_to(value, expected)
    shifted = local_sgd_time_per_step(ShiftedExponential(0.5, 1.0), 8, steps)
    assert shifted == pytest.approx(value + 0.5, rel=1e-9)


@pytest.mark.parametrize("slack", [0, 3, 10, 100])
def test_a_permanently_slow_worker_sets_the_pace_of_ssp(slack: int) -> None:
    """One worker 4 times slower: one step per 4 s for every worker, whatever the slack."""
    assert ssp_steps_per_s(Constant(1.0), 8, slack, {0: 4.0}) == 0.25


@pytest.mark.parametrize(
    ("slack", "steps_per_s", "staleness"),
    [
        (0, 0.368, 3.50),
        (1, 0.559, 4.60),
        (2, 0.663, 5.16),
        (3, 0.729, 5.51),
        (5, 0.804, 5.90),
        (10, 0.884, 6.33),
    ],
)
def test_ssp_with_exponential_times(slack: int, steps_per_s: float, staleness: float) -> None:
    """P = 8: rate and mean staleness are what was simulated (within 0.003 and 0.01)."""
    assert ssp_steps_per_s(EXPONENTIAL, 8, slack) == pytest.approx(steps_per_s, abs=0.003)
    assert ssp_mean_staleness(EXPONENTIAL, 8, slack) == pytest.approx(staleness, abs=0.01)


def test_a_server_is_a_machine_repair_queue() -> None:
    """S = .1, Z = 1: .909 updates per second with one worker, 6.617 with 8, never 10."""
    service = Exponential(0.1)
    assert rounds_to(server_updates_per_s(EXPONENTIAL, service, 1), ".909")
    assert rounds_to(server_updates_per_s(EXPONENTIAL, service, 8), "6.617")
    assert 9.99 < server_updates_per_s(EXPONENTIAL, service, 10_000) <= 10
    assert server_updates_per_s_bound(EXPONENTIAL, service, 10_000) == pytest.approx(10)


def test_the_mean_staleness_of_asynchronous_modes() -> None:
    """P - 1 under ASGD, (P - K)/K under K-async, (P - 1)/K under K-batch-async, (P - 1)/2 under SSP(0)."""
    assert asgd_mean_staleness(8) == 7
    assert [k_async_mean_staleness(8, k) for k in (1, 2, 8)] == [7, 3, 0]
    assert [k_batch_async_mean_staleness(8, k) for k in (1, 2, 7)] == [7, 3.5, 1]
    for law in [*LAWS, TRACE]:
        assert ssp_mean_staleness(law, 8, 0) == 3.5
        assert ssp_mean_staleness(law, 8, math.inf) == 7
        assert ssp_mean_staleness(law, 1, 3) == 0


def test_the_bounds_of_ssp() -> None:
    """Staleness never passes (P - 1)(2s + 1), nor the clock gap s + 1; one worker has neither."""
    assert [ssp_staleness_bound(8, s) for s in (0, 3, math.inf)] == [7, 49, math.inf]
    assert [ssp_clock_gap_bound(8, s) for s in (0, 3, math.inf)] == [1, 4, math.inf]
    assert ssp_staleness_bound(1, math.inf) == ssp_clock_gap_bound(1, 3) == 0


@pytest.mark.parametrize(
    ("delay", "expected"), [(0, "2.0000"), (1, "1.0000"), (3, ".4450"), (7, ".2091"), (15, ".1013")]
)
def test_the_largest_stable_step(delay: int, expected: str) -> None:
    """2 sin(pi/(2(2 tau + 1)))."""
    assert rounds_to(largest_stable_step(delay), expected)


def test_the_noise_floor_of_ssgd() -> None:
    """It is lr sigma^2/(P curvature (2 - lr curvature)): at lr = .1 .05263 for P = 1, .00329 for P = 16."""
    assert rounds_to(noise_floor(0.1, 1.0, 1.0), ".05263")
    assert rounds_to(noise_floor(0.1, 1.0, 1.0, num_workers=16), ".00329")


@pytest.mark.parametrize(("delay", "expected"), [(1, ".05820"), (3, ".07158"), (7, ".11511")])
def test_the_noise_floor_under_constant_delay(delay: int, expected: str) -> None:
    """At lr = .1, P = 1, unit curvature and noise."""
    assert rounds_to(noise_floor(0.1, 1.0, 1.0, delay=delay), expected)


@pytest.mark.parametrize(("steps", "expected"), [(1, ".8333"), (math.inf, ".5000"), (4, ".7316")])
def test_the_fixed_point_of_local_sgd(steps: float, expected: str) -> None:
    """Curvatures 1, 5 and optima 0, 1 at lr = .1: 5/6 for H = 1, 1/2 for H = inf, q_2/(q_1 + q_2) between."""
    assert rounds_to(local_sgd_fixed_point(0.1, [1.0, 5.0], [0.0, 1.0], steps), expected)


# --- Laws of times and their order statistics ---------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_distribution_function_is_that_of_the_draws(law: Law) -> None:
    """Over 20,000 draws, the empirical and the true survival function differ by less than 2/sqrt(n)."""
    # One draw a generator: the draws of one Markov chain are not independent.
    draws = np.sort([law.sample(np.random.default_rng(s), 1)[0] for s in range(20_000)])
    empirical = 1 - np.searchsorted(draws, draws, side="right") / len(draws)
    assert np.abs(empirical - survival(law, draws)).max() < 2 / math.sqrt(len(draws))


@in_time
@given(law=laws, u=st.floats(1e-9, 1 - 1e-9))
def test_the_quantile_is_the_earliest_time_that_reaches_its_probability(law: Law, u: float) -> None:
    """P(X <= q(u)) >= u, and P(X <= t) < u for all t before q(u), up to rounding."""
    q = float(quantile(law, u))
    assert 1 - float(survival(law, q * (1 + 1e-9))) >= u * (1 - 1e-6) - 1e-12
    assert q == 0 or 1 - float(survival(law, q * (1 - 1e-9))) <= u * (1 + 1e-6) + 1e-12


def test_the_quantiles_at_0_and_1_are_the_ends_of_the_support() -> None:
    """The quantile function is defined on all of [0, 1]."""
    assert quantile(Uniform(1.0, 3.0), [0, 1]) == pytest.approx([1, 3])
    assert quantile(EXPONENTIAL, [0, 1]).tolist() == [0, math.inf]
    assert quantile(Markov(1.0, 5.0, 0.5, 0.5), [0, 0.4, 0.6, 1]) == pytest.approx([1, 1, 5, 5])
    assert quantile(Normal(0.0, 1.0), [0, 0.4]).tolist() == [0, 0]


@pytest.mark.parametrize("n", [1, 2, 8, 100, 10_000])
@pytest.mark.parametrize("law", [law for law in LAWS if not isinstance(law, (Normal, Lognormal))], ids=str)
def test_quadrature_equals_the_closed_forms(law: Law, n: int) -> None:
    """The mean of an order statistic is the same by quadrature as by formula, to 1e-8."""
    for k in sorted({1, (n + 1) // 2, max(1, n - 1), n}):
        expected = order_statistic_mean(law, k, n)
        assert order_statistic_mean_by_quadrature(law, k, n) == pytest.approx(expected, rel=1e-8)


@in_time
@given(law=laws, n=workers)
def test_order_statistics_rise_and_sum_to_all_draws(law: Law, n: int) -> None:
    """E[X_(1)] <= ... <= E[X_(n)], and their sum is n E[X]."""
    means = [order_statistic_mean(law, k, n) for k in range(1, n + 1)]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(means))
    assert sum(means) == pytest.approx(n * law.mean_s, rel=1e-8)


@in_time
@given(law=laws, n=workers, k=workers)
def test_one_more_draw_mixes_two_order_statistics(law: Law, n: int, k: int) -> None:
    """(n+1-k) E[X_(k:n+1)] + k E[X_(k+1:n+1)] = (n+1) E[X_(k:n)]."""
    k = min(k, n)
    mixed = (n + 1 - k) * order_statistic_mean(law, k, n + 1)
    mixed += k * order_statistic_mean(law, k + 1, n + 1)
    assert mixed == pytest.approx((n + 1) * order_statistic_mean(law, k, n), rel=1e-8)


def test_a_heavy_tail_has_no_mean_for_its_last_order_statistics() -> None:
    """Pareto: E[X_(k)] is infinite iff alpha (n - k + 1) <= 1, and so are the times that wait for it."""
    law = Pareto(0.5, 1.0)
    finite = [math.isfinite(order_statistic_mean(law, k, 4)) for k in (1, 2, 3, 4)]
    assert finite == [True, True, False, False]
    assert order_statistic_mean_by_quadrature(law, 3, 4) == math.inf
    assert ssgd_time(law, 4) == ssgd_time(law, 4, {0: 2.0}) == asgd_time(law, 4) == math.inf
    assert local_sgd_time_per_step(law, 4, 3) == math.inf
    assert ssp_steps_per_s(law, 4, 0) == server_updates_per_s(law, EXPONENTIAL, 4) == 0


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_ten_thousand_workers_are_not_too_many(law: Law) -> None:
    """Times of 10,000 workers are finite and in order."""
    n = 10_000
    one, half, all_but_one, last = (k_sync_time(law, n, k) for k in (1, n // 2, n - 1, n))
    assert 0 <= one <= half <= all_but_one <= last < math.inf
    assert last <= ssgd_time(law, n, {0: 2.0, 1: 3.0}) < math.inf
    assert 1 <= best_k_sync(law, n) <= n


# --- Waiting for unequal workers ----------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_nearly_equal_workers_take_as_long_as_equal_ones(law: Law) -> None:
    """The integral for independent, unequal workers has the closed form for equal ones as its limit."""
    nearly = ssgd_time(law, 8, {0: 1 + 1e-11})
    assert nearly == pytest.approx(k_sync_time(law, 8, 8), rel=1e-9)


@in_time
@given(f=factors, mean=seconds)
def test_the_slowest_of_unequal_exponentials(f: list[float], mean: float) -> None:
    """E[max] is the sum over non-empty sets A of workers of -(-1)^|A| / (the rate of A)."""
    rates = [1 / (mean * x) for x in f]
    subsets = (a for size in range(1, len(f) + 1) for a in itertools.combinations(rates, size))
    expected = sum(-((-1) ** len(a)) / sum(a) for a in subsets)
    assert ssgd_time(Exponential(mean), len(f), dict(enumerate(f))) == pytest.approx(expected, rel=1e-8)


@in_time
@given(f=factors, p=chance, q=chance, slow=st.floats(1, 20))
def test_the_slowest_of_unequal_markov_workers(f: list[float], p: float, q: float, slow: float) -> None:
    """E[max] is the sum over all fast/slow patterns of their probability times their maximum."""
    law = Markov(1.0, slow, p, q)
    expected = 0.0
    for pattern in itertools.product([False, True], repeat=len(f)):
        probability = math.prod(law.p_slow if is_slow else 1 - law.p_slow for is_slow in pattern)
        expected += probability * max(x * (slow if s else 1) for x, s in zip(f, pattern, strict=True))
    assert ssgd_time(law, len(f), dict(enumerate(f))) == pytest.approx(expected, rel=1e-10)


@in_time
@given(law=laws, f=factors, scale=st.floats(0.1, 10))
def test_waiting_for_all_takes_longer_than_for_any_and_scales_with_time(
    law: Law, f: list[float], scale: float
) -> None:
    """max_i f_i E[X] <= E[max] <= sum_i f_i E[X], and c times slower workers take c times as long."""
    time_s = ssgd_time(law, len(f), dict(enumerate(f)))
    assert max(f) * law.mean_s * (1 - 1e-9) <= time_s <= sum(f) * law.mean_s * (1 + 1e-9)
    scaled = ssgd_time(law, len(f), {i: scale * x for i, x in enumerate(f)})
    assert scaled == pytest.approx(scale * time_s, rel=1e-8)


@in_time
@given(law=laws, f=factors)
def test_rates_of_asynchronous_workers_add_up(law: Law, f: list[float]) -> None:
    """ASGD's updates per second are the sum of the workers' 1/(f_i E[X])."""
    rate = sum(1 / (x * law.mean_s) for x in f)
    assert 1 / asgd_time(law, len(f), dict(enumerate(f))) == pytest.approx(rate, rel=1e-12)


# --- LocalSGD -----------------------------------------------------------------------------------------------


@given(steps=st.integers(1, 30))
@in_time
def test_the_slower_of_two_local_workers(steps: int) -> None:
    """E[max of 2 Erlang(H)] = 2H - E[min], E[min] = sum over i, j < H of C(i+j, i) / 2^(i+j+1)."""
    pairs = itertools.product(range(steps), repeat=2)
    minimum = sum(math.comb(i + j, i) / 2 ** (i + j + 1) for i, j in pairs)
    expected = (2 * steps - minimum) / steps
    assert local_sgd_time_per_step(EXPONENTIAL, 2, steps) == pytest.approx(expected, rel=1e-9)


def test_averaging_less_often_waits_less() -> None:
    """The time per local step falls with H, from SSGD's to the mean; unequal workers end at the slowest's."""
    for slowdown, limit in (({}, 1.0), ({0: 3.0}, 3.0)):
        steps = (1, 2, 5, 20, 100, 1000, 100_000)
        times = [local_sgd_time_per_step(EXPONENTIAL, 8, h, slowdown) for h in steps]
        assert times[0] == pytest.approx(ssgd_time(EXPONENTIAL, 8, slowdown))
        assert times == sorted(times, reverse=True)
        assert times[-1] == pytest.approx(limit, rel=0.01)
    assert local_sgd_time_per_step(Constant(2.0), 8, 5, {0: 3.0}) == 6
    assert local_sgd_time_per_step(Uniform(0.0, 2.0), 1, 5, {0: 3.0}) == 3


# --- SSP ----------------------------------------------------------------------------------------------------


def ssp_by_labelled_chain(rates: Sequence[float], slack: int) -> tuple[float, float]:
    """Return steps per second of a worker and mean staleness, from the chain of all clocks, one by one."""
    n = len(rates)
    number: dict[tuple[int, ...], int] = {(0,) * n: 0}
    moves: list[tuple[int, int, float]] = []
    states = [(0,) * n]
    for state in states:  # clocks above the slowest
        for i in range(n):
            if state[i] <= slack:
                clocks = [c + (j == i) for j, c in enumerate(state)]
                after = tuple(c - min(clocks) for c in clocks)
                if after not in number:
                    number[after] = len(states)
                    states.append(after)
                moves.append((number[state], number[after], rates[i]))
    balance = np.zeros((len(states), len(states)))
    for start, end, rate in moves:
        balance[end, start] += rate
        balance[start, start] -= rate
    balance[0] = 1
    p = np.linalg.solve(balance, np.eye(len(states))[0])
    others = [sum(c <= slack for c in state) - 1 for state in states]
    flow = [p[start] * rate for start, _, rate in moves]
    stale = sum(x * others[start] for x, (start, _, _) in zip(flow, moves, strict=True))
    return sum(flow) / n, stale / sum(flow)


@pytest.mark.parametrize("slack", [0, 1, 2, 4])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_ssp_of_equal_workers_is_its_chain_of_clocks(n: int, slack: int) -> None:
    """Counting workers by offset gives what following each worker gives; two workers: (2s+2)/(2s+3)."""
    rate, staleness = ssp_by_labelled_chain([0.5] * n, slack)
    assert ssp_steps_per_s(Exponential(2.0), n, slack) == pytest.approx(rate, rel=1e-8)
    assert ssp_mean_staleness(Exponential(2.0), n, slack) == pytest.approx(staleness, rel=1e-8)
    if n == 2:
        assert rate == pytest.approx(0.5 * (2 * slack + 2) / (2 * slack + 3))
        assert staleness == pytest.approx((2 * slack + 1) / (2 * slack + 2))


@in_time
@given(f=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), slack=st.integers(0, 6))
def test_ssp_of_two_unequal_workers_is_its_chain_of_clocks(f: tuple[float, float], slack: int) -> None:
    """The clocks' difference is a birth-death chain, and both workers have one rate, in any order."""
    expected, _ = ssp_by_labelled_chain([1 / f[0], 1 / f[1]], slack)
    for pair in (f, f[::-1]):
        assert ssp_steps_per_s(EXPONENTIAL, 2, slack, dict(enumerate(pair))) == pytest.approx(expected)


def test_ssp_lies_between_ssgd_and_asgd() -> None:
    """Rate and staleness rise with the slack, from those of a barrier to those of no bound."""
    slacks = [0, 1, 2, 3, 5, 8, math.inf]
    rates = [ssp_steps_per_s(EXPONENTIAL, 6, s) for s in slacks]
    stale = [ssp_mean_staleness(EXPONENTIAL, 6, s) for s in slacks]
    assert rates == sorted(rates)
    assert stale == sorted(stale)
    assert rates[0] == pytest.approx(1 / ssgd_time(EXPONENTIAL, 6))
    assert rates[-1] == pytest.approx(1 / (6 * asgd_time(EXPONENTIAL, 6)))
    assert stale[-1] == asgd_mean_staleness(6)


@in_time
@given(law=laws, f=factors)
def test_ssp_without_slack_is_a_barrier(law: Law, f: list[float]) -> None:
    """At slack 0 a step takes as long as the slowest worker's, for any law and speeds."""
    rate = ssp_steps_per_s(law, len(f), 0, dict(enumerate(f)))
    assert rate == pytest.approx(1 / ssgd_time(law, len(f), dict(enumerate(f))), rel=1e-12)


# --- A server -----------------------------------------------------------------------------------------------


@in_time
@given(n=st.integers(1, 60), service_s=st.floats(0.001, 10), latency_s=st.floats(0, 2))
def test_the_servers_rate_is_its_sum_of_states(n: int, service_s: float, latency_s: float) -> None:
    """(1 - p0)/S with 1/p0 the sum of P!/(P-k)! (S/Z)^k, below 1/S and P/(Z + S), for any compute law."""
    ratio = service_s / (1 + 2 * latency_s)
    p0 = 1 / sum(math.perm(n, k) * ratio**k for k in range(n + 1))
    for law in (EXPONENTIAL, Constant(1.0), Uniform(0.0, 2.0)):
        rate = server_updates_per_s(law, Exponential(service_s), n, latency_s)
        assert rate == pytest.approx((1 - p0) / service_s, rel=1e-9)
        assert rate <= server_updates_per_s_bound(law, Exponential(service_s), n, latency_s) * (1 + 1e-12)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, 0.999])
def test_the_fewest_workers_that_fill_a_server(share: float) -> None:
    """With that many workers the server reaches the share of 1/S, with one less it does not."""
    service = Exponential(0.1)
    n = workers_to_fill_server(EXPONENTIAL, service, share)
    assert server_updates_per_s(EXPONENTIAL, service, n) * 0.1 >= share
    assert n == 1 or server_updates_per_s(EXPONENTIAL, service, n - 1) * 0.1 < share


# --- Staleness ----------------------------------------------------------------------------------------------


@in_time
@given(n=st.integers(1, 20), k=workers)
def test_the_distribution_of_staleness_has_the_mean_it_must(n: int, k: int) -> None:
    """K-async, exponential: probabilities add up to 1, their mean is (P - K)/K, and P(0) is K/P."""
    k = min(k, n)
    pmf = [k_async_staleness_pmf(EXPONENTIAL, n, k, tau) for tau in range(1000)]
    assert sum(pmf) == pytest.approx(1)
    assert sum(tau * p for tau, p in enumerate(pmf)) == pytest.approx(k_async_mean_staleness(n, k))
    assert pmf[0] == pytest.approx(k / n)
    if k == 1:
        assert asgd_staleness_pmf(EXPONENTIAL, n, 3) == pytest.approx((1 - 1 / n) ** 3 / n)


@in_time
@given(f=factors)
def test_staleness_by_worker_averages_to_p_minus_1(f: list[float]) -> None:
    """Weighted by the workers' shares of all gradients, their mean staleness is P - 1 at any speeds."""
    shares = 1 / np.array(f)
    own = asgd_mean_staleness_by_worker(len(f), dict(enumerate(f)))
    assert np.average(own, weights=shares) == pytest.approx(asgd_mean_staleness(len(f)), abs=1e-9)


# --- Quadratics ---------------------------------------------------------------------------------------------


def responses(step: float, delay: int) -> Iterator[float]:
    """Yield w_1, w_2, ... of w_{t+1} = w_t - step w_{t-delay} after an impulse of 1 at t = 1."""
    past = [0.0] * delay + [1.0]
    while True:
        yield past[-1]
        past = [*past[1:], past[-1] - step * past[0]]


@in_time
@given(delay=st.integers(0, 8), share=st.floats(0.1, 0.9), curvature=st.floats(0.1, 10), n=st.integers(1, 9))
def test_the_noise_floor_sums_all_past_noise(delay: int, share: float, curvature: float, n: int) -> None:
    """The stationary second moment is (lr sigma)^2 / P times the sum of the squared impulse response."""
    step = share * largest_stable_step(delay)
    lr = step / curvature
    energy = sum(w * w for w in itertools.islice(responses(step, delay), 4000))
    floor = noise_floor(lr, curvature, 3.0, num_workers=n, delay=delay)
    assert floor == pytest.approx(lr**2 * 3.0 / n * energy, rel=1e-6)
    if delay == 0:
        assert floor == pytest.approx(lr * 3.0 / (n * curvature * (2 - step)), rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("delay", [0, 1, 2, 3, 7, 15, 40])
def test_a_step_is_stable_below_the_limit_and_not_above(delay: int, momentum: float) -> None:
    """The largest root of z^(tau+1) = (1 + m) z^tau - m z^(tau-1) - step passes 1 exactly at the limit."""

    def radius(step: float) -> float:
        polynomial = np.zeros(max(delay, 1) + 2)
        polynomial[:3] = [1, -1 - momentum, momentum]
        polynomial[delay + 1] += step
        return float(np.abs(np.roots(polynomial)).max())

    limit = largest_stable_step(delay, momentum)
    assert radius(0.999 * limit) < 1 < radius(1.001 * limit)
    assert radius(limit) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_geometric_staleness_is_momentum(n: int) -> None:
    """Mean steps under geometric staleness are those of heavy-ball momentum 1 - 1/M and step lr/M."""
    lr, momentum = 0.3, momentum_from_asynchrony(n)
    pmf = [asgd_staleness_pmf(EXPONENTIAL, n, tau) for tau in range(50)]
    w, v, x = [1.0], 0.0, 1.0
    for _ in range(50):  # gradients of w^2/2, zero before the start
        w.append(w[-1] - lr * sum(p * past for p, past in zip(pmf, reversed(w), strict=False)))
        v = momentum * v - lr / n * x
        x += v
        assert w[-1] == pytest.approx(x, abs=1e-12)


@in_time
@given(
    workers=st.lists(st.tuples(st.floats(0.1, 10), st.floats(-5, 5)), min_size=1, max_size=4),
    steps=st.integers(1, 6),
)
def test_local_sgd_stays_at_its_fixed_point(workers: list[tuple[float, float]], steps: int) -> None:
    """H local steps on each worker from the fixed point, averaged, lead back to it."""
    curvatures, optima = zip(*workers, strict=True)
    fixed = local_sgd_fixed_point(0.15, curvatures, optima, steps)
    ends = []
    for a, x in workers:
        w = fixed
        for _ in range(steps):
            w -= 0.15 * a * (w - x)
        ends.append(w)
    assert np.mean(ends) == pytest.approx(fixed, abs=1e-9)


@in_time
@given(eta=st.floats(0.05, 1.95), share=st.floats(0, 2), n=st.integers(1, 5))
def test_easgd_is_stable_up_to_its_largest_alpha(eta: float, share: float, n: int) -> None:
    """The map of one round has a spectral radius of at most 1 if alpha is at most that; for n = 1, iff."""
    limit = easgd_largest_stable_alpha(eta)
    alpha = share * limit
    round_map: Floats = np.eye(n + 1)
    for i in range(n):  # worker i meets the centre, the last coordinate
        turn = np.eye(n + 1)
        turn[i, i], turn[i, n], turn[n, i], turn[n, n] = 1 - eta - alpha, alpha, alpha, 1 - alpha
        round_map = turn @ round_map
    radius = np.abs(np.linalg.eigvals(round_map)).max()
    if share <= 1:
        assert radius <= 1 + 1e-9
    elif share >= 1.001 and n == 1:
        assert radius > 1


# --- Advice -------------------------------------------------------------------------------------------------


@in_time
@given(law=laws, n=st.integers(1, 40))
def test_the_best_k_is_the_best_of_all(law: Law, n: int) -> None:
    """No other K gives more gradients per second, and no larger one as many."""
    rates = [k / k_sync_time(law, n, k) for k in range(1, n + 1)]
    best = best_k_sync(law, n)
    assert rates[best - 1] >= max(rates) * (1 - 1e-9)
    assert all(rate < max(rates) for rate in rates[best:])


@pytest.mark.parametrize(
    ("law", "best"),
    [(EXPONENTIAL, 1), (ShiftedExponential(1.0, 1.0), 6), (Constant(1.0), 8), (Uniform(0.0, 1.0), 8)],
)
def test_how_many_to_wait_for(law: Law, best: int) -> None:
    """P = 8: for the first where times have no memory, for all where they are even, else for some."""
    assert best_k_sync(law, 8) == best


# --- Limits -------------------------------------------------------------------------------------------------

NO_CLOSED_FORM: Mapping[str, Callable[[], Any]] = {
    "K-batch-sync, uniform": lambda: k_batch_sync_time(Uniform(0.0, 1.0), 8, 2),
    "K-async, uniform": lambda: k_async_time(Uniform(0.0, 1.0), 8, 2),
    "K-async, shifted": lambda: k_async_time(ShiftedExponential(1.0, 1.0), 8, 2),
    "LocalSGD, uniform": lambda: local_sgd_time_per_step(Uniform(0.0, 1.0), 8, 2),
    "LocalSGD, markov": lambda: local_sgd_time_per_step(Markov(1.0, 2.0, 0.5, 0.5), 8, 2),
    "SSP, uniform": lambda: ssp_steps_per_s(Uniform(0.0, 1.0), 8, 2),
    "SSP, unequal": lambda: ssp_steps_per_s(EXPONENTIAL, 3, 2, {0: 2.0}),
    "SSP, too many states": lambda: ssp_steps_per_s(EXPONENTIAL, 100, 10),
    "SSP, staleness": lambda: ssp_mean_staleness(Constant(1.0), 8, 2),
    "server, constant service": lambda: server_updates_per_s(EXPONENTIAL, Constant(0.1), 8),
    "fill a server, constant": lambda: workers_to_fill_server(EXPONENTIAL, Constant(0.1), 0.9),
    "staleness, uniform": lambda: asgd_staleness_pmf(Uniform(0.0, 1.0), 8, 0),
    "K-async staleness, uniform": lambda: k_async_staleness_pmf(Uniform(0.0, 1.0), 8, 2, 0),
    "trace, survival": lambda: survival(TRACE, 1.0),
    "trace, quantile": lambda: quantile(TRACE, 0.5),
    "trace, order statistic": lambda: order_statistic_mean(TRACE, 1, 2),
    "trace, quadrature": lambda: order_statistic_mean_by_quadrature(TRACE, 1, 2),
    "trace, SSGD": lambda: ssgd_time(TRACE, 2),
    "trace, ASGD": lambda: asgd_time(TRACE, 2),
    "trace, LocalSGD": lambda: local_sgd_time_per_step(TRACE, 2, 1),
    "trace, SSP": lambda: ssp_steps_per_s(TRACE, 2, 0),
    "trace, server": lambda: server_updates_per_s(TRACE, EXPONENTIAL, 2),
    "trace, best K": lambda: best_k_sync(TRACE, 2),
}

WRONG: Mapping[str, Callable[[], Any]] = {
    "harmonic": lambda: harmonic(-1),
    "u above 1": lambda: quantile(EXPONENTIAL, 1.5),
    "no workers": lambda: ssgd_time(EXPONENTIAL, 0),
    "half a worker": lambda: asgd_time(EXPONENTIAL, 2.5),  # type: ignore[arg-type]
    "no K": lambda: k_sync_time(EXPONENTIAL, 8, 0),
    "K above P": lambda: k_sync_time(EXPONENTIAL, 8, 9),
    "K above P, quadrature": lambda: order_statistic_mean_by_quadrature(EXPONENTIAL, 9, 8),
    "K above P, K-async": lambda: k_async_time(EXPONENTIAL, 8, 9),
    "K above P, staleness": lambda: k_async_mean_staleness(8, 9),
    "K above P, distribution": lambda: k_async_staleness_pmf(EXPONENTIAL, 8, 9, 0),
    "no K, K-batch-sync": lambda: k_batch_sync_time(EXPONENTIAL, 8, 0),
    "no K, K-batch-async": lambda: k_batch_async_time(EXPONENTIAL, 8, 0),
    "no K, staleness": lambda: k_batch_async_mean_staleness(8, 0),
    "backups": lambda: backup_workers_time(EXPONENTIAL, 8, -1),
    "no steps": lambda: local_sgd_time_per_step(EXPONENTIAL, 8, 0),
    "unknown worker": lambda: ssgd_time(EXPONENTIAL, 8, {8: 2.0}),
    "no speed": lambda: ssgd_time(EXPONENTIAL, 8, {0: math.inf}),
    "slowdown 0": lambda: asgd_mean_staleness_by_worker(8, {0: 0.0}),
    "half a slack": lambda: ssp_steps_per_s(EXPONENTIAL, 8, 0.5),
    "negative slack": lambda: ssp_staleness_bound(8, -1),
    "slack of nothing": lambda: ssp_clock_gap_bound(8, math.nan),
    "slack of staleness": lambda: ssp_mean_staleness(EXPONENTIAL, 8, -1),
    "no bound, unequal": lambda: ssp_steps_per_s(EXPONENTIAL, 8, math.inf, {0: 2.0}),
    "service 0": lambda: server_updates_per_s(EXPONENTIAL, Constant(0.0), 8),
    "latency": lambda: server_updates_per_s(EXPONENTIAL, EXPONENTIAL, 8, -1.0),
    "latency of the bound": lambda: server_updates_per_s_bound(EXPONENTIAL, EXPONENTIAL, 8, -1.0),
    "negative staleness": lambda: asgd_staleness_pmf(EXPONENTIAL, 8, -1),
    "no workers, staleness": lambda: asgd_mean_staleness(0),
    "no workers, momentum": lambda: momentum_from_asynchrony(0),
    "negative delay": lambda: largest_stable_step(-1),
    "momentum 1": lambda: largest_stable_step(1, 1.0),
    "all experts": lambda: balancing.curvature(8, 8),
    "no expert": lambda: balancing.expected_shares(np.zeros(8), 0),
    "no density": lambda: balancing.curvature(8, 2, 0.0),
    "no gap": lambda: balancing.curvatures_of_scores(np.zeros((1, 8)), 2, gap=0.0),
    "rate without lr": lambda: balancing.largest_stable_rate(0.0, 1.0),
    "no tokens": lambda: balancing.share_noise(8, 2, 0),
    "unstable bias": lambda: balancing.bias_variance(3.6, balancing.curvature(8, 2), 8, 2, 256),
    "negative variance": lambda: balancing.max_violation(8, -1.0),
    "unstable": lambda: noise_floor(2.0, 1.0, 1.0),
    "unstable with delay": lambda: noise_floor(0.5, 1.0, 1.0, delay=3),
    "lr 0": lambda: noise_floor(0.0, 1.0, 1.0),
    "negative noise": lambda: noise_floor(0.1, 1.0, -1.0),
    "concave": lambda: local_sgd_fixed_point(0.1, [-1.0], [0.0], 1),
    "unstable worker": lambda: local_sgd_fixed_point(0.1, [20.0], [0.0], 1),
    "optima missing": lambda: local_sgd_fixed_point(0.1, [1.0, 5.0], [0.0], 1),
    "half a local step": lambda: local_sgd_fixed_point(0.1, [1.0], [0.0], 1.5),
    "EASGD": lambda: easgd_largest_stable_alpha(2.1),
    "no time": lambda: best_k_sync(Constant(0.0), 8),
    "the whole server": lambda: workers_to_fill_server(EXPONENTIAL, EXPONENTIAL, 1.0),
    "never there": lambda: workers_to_fill_server(Pareto(0.5, 1.0), EXPONENTIAL, 0.5),
}


@pytest.mark.parametrize("case", NO_CLOSED_FORM)
def test_what_has_no_closed_form_says_so(case: str) -> None:
    """Where no formula is known, NoClosedForm says so in one line, and no number is made up."""
    with pytest.raises(NoClosedForm) as error:
        NO_CLOSED_FORM[case]()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", WRONG)
def test_arguments_outside_the_assumptions_are_refused(case: str) -> None:
    """Outside its assumptions a function raises ValueError, in one line."""
    with pytest.raises(ValueError, match=r"\w") as error:
        WRONG[case]()
    assert not isinstance(error.value, NoClosedForm)
    assert "\n" not in str(error.value)


def test_theory_is_light() -> None:
    """Importing it, and all strategies that use it, loads neither SciPy nor an engine: --help stays fast."""
    code = (
        "import sys, dsgd.strategies as s; [s.load(mode) for mode in s.modes()];"
        "print(*({'scipy', 'torch', 'ray'} & set(sys.modules)))"
    )
    loaded = run_python("-c", code)
    assert (loaded.returncode, loaded.stdout.strip()) == (0, "")
