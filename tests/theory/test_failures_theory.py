"""What is lost to failures: the closed forms against small references that only follow their rules.

Each reference is a direct simulation without the engine: it draws failures and counts seconds. Then what the
summaries of simulated runs with faults claim, and what they do not.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.core.time_laws import (
    Constant,
    Exponential,
    Law,
    Lognormal,
    Markov,
    Normal,
    Pareto,
    Uniform,
    parse_law,
)
from dsgd.running.execute import execute
from dsgd.running.predict.predictions import compare, predict
from dsgd.running.quick_run import QuickRun, config, run
from dsgd.scenario.fault_plan import Plan
from dsgd.scenario.faults_text import parse_faults
from dsgd.scenario.hosts import Hosts
from dsgd.strategies import modes
from dsgd.theory.assumptions import NoClosedForm
from dsgd.theory.bounded_staleness import ssp_mean_staleness, ssp_steps_per_s
from dsgd.theory.checkpointing import (
    best_checkpoint_interval,
    checkpoint_interval,
    completion_deviation,
    completion_time,
    time_without_checkpoints,
    young_interval,
)
from dsgd.theory.failures import (
    asgd_mean_staleness_with_one_away,
    asgd_time_on_hosts,
    asgd_time_with_losses,
    asgd_time_with_one_away,
    first_of_two_answers,
    hosts_at_work,
    loads,
    ssgd_time_on_hosts,
    ssp_mean_staleness_with_one_away,
    ssp_updates_per_s_with_one_away,
    suspected_share,
    task_time,
    time_away,
    tries_of_a_slow_host,
    up_share,
    wasted_by_suspicion,
)
from dsgd.theory.times import asgd_time, ssgd_time
from dsgd.theory.uncertainty import standard_errors_allowed

TIMES = st.floats(0.01, 100.0)


def agrees(draws: list[float], theory: float) -> bool:
    """Whether the mean of independent draws is within its interval of 99.9 %."""
    error = float(np.std(draws, ddof=1)) / math.sqrt(len(draws))
    return abs(float(np.mean(draws)) - theory) <= standard_errors_allowed(len(draws)) * error


def with_failures(
    rng: np.random.Generator, needed_s: float, mtbf_s: float, away: Callable[[], float]
) -> float:
    """Follow a piece of work that a failure makes begin again; return its seconds."""
    elapsed_s = 0.0
    while (failure_s := float(rng.exponential(mtbf_s))) < needed_s:
        elapsed_s += failure_s + away()
    return elapsed_s + needed_s


# --- Checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mtbf_s", [60.0, 600.0])
@pytest.mark.parametrize("interval_s", [10.0, 40.0, 160.0])
def test_daly_s_completion_time_is_that_of_a_run_followed_by_hand(mtbf_s: float, interval_s: float) -> None:
    """Failures in computing, in writing and in the restart itself: the mean is Daly's."""
    rng = np.random.default_rng(int(mtbf_s + interval_s))
    cost_s, restart_s, segments = 2.0, 10.0, 8

    def restart() -> float:
        return with_failures(rng, restart_s, mtbf_s, lambda: 0.0)

    runs = [
        sum(with_failures(rng, interval_s + cost_s, mtbf_s, restart) for _ in range(segments))
        for _ in range(400)
    ]
    at = (segments * interval_s, interval_s, cost_s, mtbf_s, restart_s)
    assert agrees(runs, completion_time(*at))
    off = [(one - completion_time(*at)) ** 2 for one in runs]
    assert agrees(off, completion_deviation(*at) ** 2)


@settings(deadline=None)  # the first call loads SciPy
@given(cost_s=TIMES, mtbf_s=TIMES, other=st.floats(0.05, 20.0))
def test_no_interval_is_better_than_the_best(cost_s: float, mtbf_s: float, other: float) -> None:
    """The root of Daly's derivative is the least of his completion time."""
    best = best_checkpoint_interval(cost_s, mtbf_s)

    def time(interval_s: float) -> float:
        return completion_time(1.0, interval_s, cost_s, mtbf_s)

    if (other * best + cost_s) / mtbf_s < 500:  # past that, the exponential overflows
        assert time(best) <= time(other * best) * (1 + 1e-9)


@settings(deadline=None)
@given(mtbf_s=TIMES, share=st.floats(1e-4, 1.0))
def test_daly_s_series_is_as_good_as_the_best_interval(mtbf_s: float, share: float) -> None:
    """The series costs less than 0.1 % of the run's time more than the exact root, for C up to M."""
    cost_s = share * mtbf_s

    def time(interval_s: float) -> float:
        return completion_time(1.0, interval_s, cost_s, mtbf_s)

    series, exact = checkpoint_interval(cost_s, mtbf_s), best_checkpoint_interval(cost_s, mtbf_s)
    assert time(series) <= time(exact) * 1.001


def test_young_s_interval_is_the_first_order() -> None:
    """With a cost that is small against the MTBF, Young's and Daly's intervals and the root are one."""
    cost_s, mtbf_s = 1e-6, 1.0
    for interval_s in (checkpoint_interval(cost_s, mtbf_s), best_checkpoint_interval(cost_s, mtbf_s)):
        assert interval_s == pytest.approx(young_interval(cost_s, mtbf_s), rel=1e-3)


def test_daly_s_figures_have_these_intervals() -> None:
    """The best intervals that Daly 2006 prints beside his figures 3 to 5, in minutes: 117, 57 and 9.1."""
    printed = {24 * 60.0: 117, 6 * 60.0: 57, 15.0: 9.1}
    for mtbf, interval in printed.items():
        assert checkpoint_interval(5.0, mtbf) == pytest.approx(interval, rel=0.006)


def test_a_checkpoint_that_costs_more_than_twice_the_mtbf_is_taken_once_an_mtbf() -> None:
    """From C = 2 M on, Daly's rule is T = M."""
    assert checkpoint_interval(20.0, 10.0) == checkpoint_interval(200.0, 10.0) == 10.0


def test_without_checkpoints_a_run_is_one_interval() -> None:
    """A run that begins again at each failure takes exponentially long in its work."""
    assert time_without_checkpoints(100, 100, 5) == completion_time(100, 100, 0, 100, 5)
    assert time_without_checkpoints(2000, 100) > 1e6 * 100


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: checkpoint_interval(1.0, 0.0), "mtbf_s must be above 0"),
        (lambda: checkpoint_interval(-1.0, 10.0), "cost_s must be at least 0"),
        (lambda: completion_time(1.0, 0.0, 1.0, 1.0), "interval_s must be above 0"),
        (lambda: completion_time(1.0, 1.0, 1.0, 1.0, -1.0), "restart_s must be at least 0"),
        (lambda: up_share(math.inf, 1.0), "mtbf_s must be above 0 and finite"),
        (lambda: asgd_time_on_hosts(Constant(1.0), 2, 3), "some would have nothing to do"),
        (lambda: asgd_time_with_one_away(Constant(1.0), 4, 1.5), "share must lie in"),
        (lambda: first_of_two_answers(Constant(1.0), 1.0, 0.5), "factor must be above 1"),
        (lambda: suspected_share(Constant(1.0), 0.0), "suspect_after_s must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_rule(call: Callable[[], float], rule: str) -> None:
    """Each argument outside its meaning raises ValueError that names it."""
    with pytest.raises(ValueError, match=rule):
        call()


# --- Hosts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["constant:1", "exponential:1", "uniform:.5,1.5", "normal:1,.3", "shifted-exponential:.5,.5"]
)
def test_a_task_s_time_with_losses_is_that_of_a_task_followed_by_hand(text: str) -> None:
    """A lost task is repeated with the same time, after the host was away."""
    rng, law, mtbf_s, away_s = np.random.default_rng(1), parse_law(text), 8.0, 3.0
    times = law.sample(rng, 20_000)
    draws = [with_failures(rng, float(x), mtbf_s, lambda: away_s) for x in times]
    assert agrees(draws, task_time(law, mtbf_s, away_s))


def test_a_host_that_is_lost_while_it_starts_is_away_longer() -> None:
    """The time away counts the losses during the start of the new process."""
    rng, mtbf_s, back_s, restart_s = np.random.default_rng(2), 20.0, 6.0, 10.0
    draws = [back_s + with_failures(rng, restart_s, mtbf_s, lambda: back_s) for _ in range(20_000)]
    assert agrees(draws, time_away(mtbf_s, back_s, restart_s))


@pytest.mark.parametrize("law", [Pareto(3.0, 1.0), Lognormal(1.0, 0.1), Exponential(8.0)])
def test_a_task_that_no_host_lives_to_finish_takes_for_ever(law: Law) -> None:
    """Heavy tails, and exponential times whose mean is the MTBF, have no mean time with losses."""
    assert task_time(law, 8.0) == math.inf


@pytest.mark.parametrize("law", [Constant(1.0), Exponential(1.0), Uniform(0.5, 1.5), Markov(1, 5, 0.05, 0.2)])
def test_hosts_that_are_hardly_ever_lost_cost_nothing(law: Law) -> None:
    """As the MTBF grows, ASGD's time with losses becomes its time without."""
    assert asgd_time_with_losses(law, 4, 1e9, 60.0, {0: 2.0}) == pytest.approx(
        asgd_time(law, 4, {0: 2.0}), rel=1e-6
    )


def test_a_sum_on_each_host_is_what_a_round_waits_for() -> None:
    """SSGD's round on uneven hosts is the mean of the slowest host's sum."""
    rng = np.random.default_rng(3)
    shares = loads(8, 3)
    draws = [max(float(rng.exponential(1.0, n).sum()) for n in shares) for _ in range(20_000)]
    assert agrees(draws, ssgd_time_on_hosts(Exponential(1.0), 8, 3))


@pytest.mark.parametrize("law", [Constant(2.0), Exponential(1.0), Pareto(3.0, 1.0)])
def test_a_host_for_each_worker_is_ssgd_as_it_was(law: Law) -> None:
    """With P hosts the round is SSGD's."""
    assert ssgd_time_on_hosts(law, 6, 6) == pytest.approx(ssgd_time(law, 6))


def test_sums_without_a_closed_form_are_left_to_the_simulator() -> None:
    """Two uniform times on a host have no formula here."""
    with pytest.raises(NoClosedForm, match="simulate it"):
        ssgd_time_on_hosts(Uniform(0.5, 1.5), 4, 2)


@given(workers=st.integers(1, 40), hosts=st.integers(2, 12), lost=st.integers(0, 11))
def test_workers_of_a_lost_host_are_spread_as_the_formula_says(workers: int, hosts: int, lost: int) -> None:
    """`--on-loss rehost` leaves the living hosts the loads of the closed form."""
    lost %= hosts
    book = Hosts(workers, hosts, on_loss="rehost")
    book.lose(lost, 0.0, range(workers))
    carried = [len(book.carried(host)) for host in range(hosts) if host != lost]
    assert sorted(carried, reverse=True) == loads(workers, hosts - 1)


def test_an_asynchronous_cluster_on_fewer_hosts_is_that_much_slower() -> None:
    """One of H hosts away for good leaves (H - 1)/H of ASGD's throughput."""
    law = Exponential(1.0)
    assert asgd_time_on_hosts(law, 8, 8) / asgd_time_on_hosts(law, 8, 7) == pytest.approx(7 / 8)


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_spares_fill_places_as_hosts_followed_by_hand_do(spares: int) -> None:
    """The mean number of filled places is that of alternating hosts, whatever the law of the time away."""
    rng, hosts, mtbf_s, away_s, end_s = np.random.default_rng(4 + spares), 4, 5.0, 3.0, 400.0

    def filled_share() -> float:
        there = range(hosts + spares)
        events = [(float(rng.exponential(mtbf_s)), host, False) for host in there]
        heapq.heapify(events)
        up, now_s, filled_s = len(there), 0.0, 0.0
        while now_s < end_s:
            at_s, host, comes_back = heapq.heappop(events)
            filled_s += (min(at_s, end_s) - now_s) * min(hosts, up)
            up, now_s = up + (1 if comes_back else -1), at_s
            next_s = float(rng.exponential(mtbf_s)) if comes_back else away_s
            heapq.heappush(events, (at_s + next_s, host, not comes_back))
        return filled_s / end_s

    runs = [filled_share() for _ in range(100)]
    # All hosts live at the start: until they have forgotten it, within about 3 of 400 s, more are filled.
    theory = hosts_at_work(hosts, up_share(mtbf_s, away_s), spares)
    error = float(np.std(runs, ddof=1)) / 10
    assert abs(float(np.mean(runs)) - theory) <= standard_errors_allowed(100) * error + hosts * 3 / end_s


def test_a_spare_of_a_spot_fleet_is_lost_like_any_other_process() -> None:
    """ASGD's throughput on a fleet with a spare is that of the places filled, of five alike processes."""
    spot: dict[str, Any] = {"faults": "spot:mtbf=20,back=20", "restarts": "3,within=1e-9", "spares": 1}

    def filled(seed: int) -> float:
        options: dict[str, Any] = {"steps": 4000, "compute_time": "constant:.25", "seed": seed, **spot}
        tally = run("asgd", workload="none", num_workers=4, **options).tally
        return tally.gradients * 0.25 / tally.last_update_s

    runs = [filled(seed) for seed in range(6)]
    assert np.mean(runs) == pytest.approx(hosts_at_work(4, up_share(20, 20), 1), rel=0.05)


# --- Members ------------------------------------------------------------------------------------------------


@given(workers=st.integers(2, 40), share=st.floats(0, 1))
def test_a_member_that_is_away_for_no_time_or_for_all_is_one_more_or_one_less(
    workers: int, share: float
) -> None:
    """At q = 0 and q = 1 the formulas are those of P and P - 1 members, and in between they lie between."""
    law = Exponential(1.0)
    ends = [asgd_mean_staleness_with_one_away(workers, q) for q in (0.0, 1.0)]
    assert ends == pytest.approx([workers - 1, workers - 2])
    assert ends[1] - 1e-9 <= asgd_mean_staleness_with_one_away(workers, share) <= ends[0] + 1e-9
    assert asgd_time_with_one_away(law, workers, 1.0) == asgd_time(law, workers - 1)
    assert asgd_time_with_one_away(law, workers, 0.0) == asgd_time(law, workers)


def test_ssp_with_one_away_lies_between_its_two_member_counts() -> None:
    """SSP's rate with a member away for half the time is the mean of the two rates."""
    law = Exponential(1.0)
    rates = [n * ssp_steps_per_s(law, n, 3) for n in (4, 3)]
    assert ssp_updates_per_s_with_one_away(law, 4, 3, 0.5) == pytest.approx(sum(rates) / 2)
    ends = [ssp_mean_staleness(law, n, 3) for n in (3, 4)]
    assert [ssp_mean_staleness_with_one_away(law, 4, 3, q) for q in (1.0, 0.0)] == pytest.approx(ends)
    assert ends[0] < ssp_mean_staleness_with_one_away(law, 4, 3, 0.5) < ends[1]


# --- Suspicion ----------------------------------------------------------------------------------------------


LAWS: list[Law] = [
    Constant(2.0),
    Exponential(1.0),
    Uniform(0.5, 1.5),
    Normal(1.0, 0.3),
    Lognormal(1.0, 0.5),
    Pareto(3.0, 0.5),
    Markov(1.0, 5.0, 0.05, 0.2),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_suspicion_costs_what_drawn_times_say(law: Law) -> None:
    """The share of suspected tasks, what second copies compute, and the first answer, from draws alone."""
    x = law.sample(np.random.default_rng(5), 100_000)
    for suspect_after_s in (0.7, 1.2, 3.0):
        assert_near((x > suspect_after_s).astype(float), suspected_share(law, suspect_after_s))
        assert_near(np.maximum(x - suspect_after_s, 0), wasted_by_suspicion(law, suspect_after_s))
        for factor in (1.5, 8.0):
            first = np.minimum(factor * x, suspect_after_s + x)
            assert_near(first, first_of_two_answers(law, suspect_after_s, factor))


@given(task=st.integers(1, 4), after=st.integers(2, 9), tasks=st.integers(30, 400))
@settings(max_examples=20, deadline=None)
def test_a_slow_host_is_tried_as_often_as_the_formula_says(task: int, after: int, tasks: int) -> None:
    """Exactly where S is a multiple of X; and the run is that many times S longer."""
    outcome = run(
        "asgd",
        workload="none",
        num_workers=1,
        steps=tasks,
        compute_time=f"constant:{task}",
        suspect_after=float(after * task),
        spares=1,
        faults="slow:0=50@t=0",
    )
    tries = sum(seen.kind == "suspect" for seen in outcome.cluster.faults_seen)
    lasted_s = outcome.tally.last_update_s
    assert lasted_s == tasks * task + tries * after * task
    if lasted_s >= (2 * after + 3) * task:
        assert tries == tries_of_a_slow_host(lasted_s, task, after * task)


def assert_near(draws: np.ndarray[tuple[int], np.dtype[np.float64]], theory: float) -> None:
    """Assert that a mean of many draws is within 4.5 standard errors, or one draw, of its theory."""
    error = float(draws.std()) / math.sqrt(len(draws))
    assert abs(float(draws.mean()) - theory) <= 4.5 * error + 1 / len(draws)


# --- Summaries ----------------------------------------------------------------------------------------------


def said(mode: str, **options: Any) -> Mapping[str, Any]:
    """Return what the summary of a simulated run compares with theory."""
    options = {"workload": "none", "num_workers": 4, "compute_time": "exponential:1", **options}
    cfg = config(mode, **options)
    found: Mapping[str, Any] = execute(cfg, evaluate=False).summary["theory"]
    return found


AWAY = "leave:3@update=1000; join:3@update=3000"


@pytest.mark.parametrize(
    ("mode", "options", "averages"),
    [
        ("asgd", {"steps": 2000}, {"staleness_mean", "staleness_p0", "s_per_update"}),
        ("ssp", {"steps": 4000, "slack": 2.0}, {"staleness_mean", "s_per_update"}),
        ("ssgd", {"steps": 4000}, {"s_per_update"}),
    ],
)
def test_a_run_that_a_member_left_for_a_while_is_compared(
    mode: str, options: Mapping[str, Any], averages: set[str]
) -> None:
    """Each stretch of a run is held to the formulas for its members."""
    entries = said(mode, faults=AWAY, **options)
    verdicts = {name: entries[name]["verdict"] for name in averages}
    assert set(verdicts.values()) <= {"agrees", "may be chance"}, entries


def test_a_member_that_is_away_is_not_overlooked() -> None:
    """Theory's mean staleness of ASGD is 3 with four members, 2 with three, weighted by the updates."""
    entry = said("asgd", steps=2000, faults=AWAY)["staleness_mean"]
    assert entry["theory"] == pytest.approx((3 * 6000 + 2 * 2000) / 8000)
    assert abs(entry["measured"] - 3) > 10 * entry["standard_error"]  # four members throughout: refuted


@pytest.mark.parametrize("mode", modes())
def test_the_last_member_left_is_held_to_theory_too(mode: str) -> None:
    """Two workers, of which one leaves: what has a formula for one member is in the summary, and agrees."""
    for faults in ("leave:1@update=5", "leave:1@update=5; join:1@t=60", "join:1@update=5"):
        workload = "xor" if mode == "adacomm" else "none"  # its steps follow the loss
        entries = said(mode, num_workers=2, steps=200, faults=faults, workload=workload)
        assert all(entry["verdict"] not in ("differs", "broken") for entry in entries.values()), entries


def test_a_lost_process_leaves_only_what_does_not_depend_on_times() -> None:
    """After a kill nothing is claimed of seconds and of mean staleness; 0 and the bounds stay."""
    kill = {"faults": "kill:1@update=50", "restart_s": 5.0}
    assert set(said("ssgd", steps=200, **kill)) == {"staleness_mean"}
    assert set(said("asgd", steps=200, **kill)) == set()
    assert set(said("ssp", steps=200, slack=2.0, **kill)) == {"staleness_max", "clock_gap_max"}


def test_ssp_s_bound_on_staleness_is_for_members_that_stay() -> None:
    """A worker that comes back starts at the slowest clock, and may pass the bound: none is claimed then."""
    assert set(said("ssp", steps=50, slack=2.0, faults="leave:3@update=50; join:3@update=60")) >= {
        "clock_gap_max"
    }
    assert "staleness_max" not in said("ssp", steps=50, slack=2.0, faults="leave:3@update=50")


def test_hosts_that_are_lost_at_random_are_compared_with_their_formula() -> None:
    """ASGD under `spot`: repeated work and time away are in theory's seconds per update."""
    spot = {"faults": "spot:mtbf=50,back=10", "restarts": "3,within=10", "steps": 10_000}
    entries = said("asgd", **spot)
    assert entries["s_per_update"]["theory"] == pytest.approx(60 * (1 / 49) / 4)
    assert {entry["verdict"] for entry in entries.values()} <= {"agrees", "may be chance"}
    assert "s_per_update" not in said("asgd", **{**spot, "steps": 50, "restarts": "3"})


def test_members_that_may_have_waited_are_not_compared() -> None:
    """With --on-loss drop down to --min-workers some wait instead of leaving: no average is claimed."""
    spot = {"faults": "spot:mtbf=50,back=10", "restarts": "3,within=10", "on_loss": "drop", "steps": 2000}
    assert said("asgd", **spot, min_workers=3) == {}


def test_workers_that_share_hosts_are_compared() -> None:
    """Four workers on two hosts: ASGD at the hosts' rate, SSGD at the slowest host's."""
    for mode in ("asgd", "ssgd"):
        entries = said(mode, hosts=2, steps=3000)
        assert {entry["verdict"] for entry in entries.values()} <= {"agrees", "may be chance"}, entries
        assert "s_per_update" in entries


# --- Losses of the driver -----------------------------------------------------------------------------------


def test_drawn_losses_of_the_driver_follow_daly_s_rules() -> None:
    """Losses come at exponential intervals; each time away includes the restarts that a loss interrupted."""
    mtbf_s, back_s = 40.0, 15.0
    plan = Plan(parse_faults(f"crash:mtbf={mtbf_s},back={back_s}"), seed=1, hosts=4)
    losses = [plan.pop_timed() for _ in range(4000)]
    ends_s = [0.0, *(at_s + (fault.lasts_s or 0.0) for at_s, fault in losses)]
    up_s = [at_s - end_s for (at_s, _), end_s in zip(losses, ends_s, strict=False)]
    assert {fault.kind for _, fault in losses} == {"driver"}
    assert min(up_s) >= 0
    assert agrees(up_s, mtbf_s)
    assert agrees([fault.lasts_s or 0.0 for _, fault in losses], mtbf_s * math.expm1(back_s / mtbf_s))


def test_drawn_losses_of_the_driver_go_on_from_a_position() -> None:
    """A plan that goes to another's position gives the same losses from there."""
    faults = parse_faults("crash:mtbf=40,back=15; spot:mtbf=30,back=5")
    one, other = Plan(faults, seed=3, hosts=2), Plan(faults, seed=3, hosts=2)
    for _ in range(20):
        one.pop_timed()
    other.go_to(one.position())
    assert [one.pop_timed() for _ in range(20)] == [other.pop_timed() for _ in range(20)]


CRASHES = {"faults": "crash:mtbf=60,back=5", "compute_time": "constant:2", "checkpoint_cost_s": 1.0}


def test_the_time_of_a_run_whose_driver_is_lost_is_compared_with_daly_s() -> None:
    """The summary has Daly's time, and its deviation as standard error; a short one is not compared."""
    found = {}
    for steps in (60, 2000):
        options: dict[str, Any] = {**CRASHES, "num_workers": 2, "steps": steps, "checkpoint_every": "9.5"}
        found[steps] = run("ssgd", workload="none", **options)
    entry = compared(found[2000])["run_s"]
    work = (4000.0, 10.0, 1.0, 60.0, 5.0)  # a checkpoint at the first update that is due
    assert entry["theory"] == pytest.approx(completion_time(*work))
    assert entry["standard_error"] == pytest.approx(completion_deviation(*work))
    assert entry["verdict"] in ("agrees", "may be chance")
    assert compared(found[60])["run_s"]["verdict"] == "too short to compare"


def test_a_driver_that_is_always_lost_before_its_next_checkpoint_ends_the_run() -> None:
    """Such a run would go on for ever: it fails, in one line with the remedy."""
    crashes = {**CRASHES, "num_workers": 2, "steps": 200, "faults": "crash:mtbf=10"}
    ended = execute(config("ssgd", workload="none", **crashes, checkpoint_every="200"), evaluate=False)
    assert ended.stopped_by == "failed"
    assert "a shorter --checkpoint-every" in str(ended.error)
    assert not ended.traceback


def compared(outcome: QuickRun) -> Mapping[str, Any]:
    """Return what the summary of such a run has under `theory`."""
    tally, cluster = outcome.tally, outcome.cluster
    return compare(
        outcome.cfg,
        tally.summary(cluster),
        tally.totals,
        "budget",
        sum(cluster.restarts),
        cluster.faults_seen,
    )


def test_no_time_is_claimed_where_daly_s_assumptions_do_not_hold() -> None:
    """Random updates, and another fault beside the losses of the driver, leave the whole time unpredicted."""
    ssgd = {**CRASHES, "num_workers": 2, "checkpoint_every": "10"}
    assert "run_s" in predict(config("ssgd", **ssgd))
    others = [
        {"compute_time": "exponential:2"},
        {"faults": "crash:mtbf=60,back=5; kill:1@t=20"},
        {"checkpoint_every": "memory=10"},
    ]
    assert not any("run_s" in predict(config("ssgd", **{**ssgd, **other})) for other in others)
    assert "run_s" not in predict(config("asgd", **ssgd))


def test_a_checkpoint_in_which_the_driver_is_lost_is_none() -> None:
    """The loss comes while the second checkpoint is written: the run goes on from the first."""
    outcome = run(
        "ssgd", workload="none", num_workers=1, steps=30, compute_time="constant:1", checkpoint_every="10",
        checkpoint_cost_s=2.0, faults="driver@t=23+4",
    )  # fmt: skip
    (loss,) = (seen for seen in outcome.cluster.faults_seen if seen.kind == "driver")
    assert (loss.t_s, loss.update) == (23.0, 20)
    # Up to the loss 23 s, 4 s away, then from update 10 again: 20 s and a checkpoint.
    assert outcome.tally.last_update_s == 23 + 4 + 20 + 2
