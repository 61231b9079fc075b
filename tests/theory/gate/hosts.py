"""Hosts that are lost, members that come and go, and suspicion."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dsgd.core.time_laws import parse_law
from dsgd.theory.checkpointing import completion_time
from dsgd.theory.failures import (
    asgd_time_on_hosts,
    asgd_time_with_losses,
    first_of_two_answers,
    hosts_at_work,
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
from dsgd.theory.islands import island_mtbf
from gate.row import CONSTANT, EXPONENTIAL, Row, exactly, s_per_update, schedule, timed

_AWAY_S = 200.0
_INTERVALS = 100


def rows() -> Iterator[Row]:
    """Yield the rows of lost hosts, of members, of suspicion and of lost drivers."""
    yield from _of_hosts()
    yield from _of_members()
    yield from _of_suspicion()
    for mtbf_s, intervals_s in ((600.0, (10.0, 49.0, 200.0)), (60.0, (5.0, 16.0, 50.0))):
        for interval_s in intervals_s:
            yield Row(
                f"driver lost every {mtbf_s:g} s, back in 10, a checkpoint of 2 s every {interval_s:g}: "
                "time/work",
                "M e^(R/M) (e^((T + C)/M) - 1)/T",
                completion_time(1.0, interval_s, 2.0, mtbf_s, 10.0),
                partial(_time_against_work, interval_s, mtbf_s),
                tolerance=2.0 / (_INTERVALS * interval_s),  # the run ends without its last checkpoint
            )


def _of_hosts() -> Iterator[Row]:
    for law in ("exponential:1", "pareto:3,1"):
        yield Row(
            f"ASGD, {law}, one of 8 hosts away, rehost: throughput against all",
            "(H - 1)/H",
            asgd_time_on_hosts(parse_law(law), 8, 8) / asgd_time_on_hosts(parse_law(law), 8, 7),
            partial(_throughput_with_one_host_away, "asgd", 8, 8, law),
        )
    for workers, hosts in ((12, 4), (8, 8)):
        yield exactly(
            f"SSGD, constant, {workers} workers, one of {hosts} hosts away, rehost: throughput against all",
            "ceil(P/H)/ceil(P/(H - 1))",
            ssgd_time_on_hosts(CONSTANT, workers, hosts) / ssgd_time_on_hosts(CONSTANT, workers, hosts - 1),
            partial(_throughput_with_one_host_away, "ssgd", workers, hosts, "constant:1"),
        )
    yield Row(
        "SSGD, exponential, 8 workers on 3 hosts: s an update",
        "E[max of Erlang(3), Erlang(3), Erlang(2)]",
        ssgd_time_on_hosts(EXPONENTIAL, 8, 3),
        timed("ssgd", 8, 100, hosts=3),
    )
    for law in ("constant:1", "exponential:1"):
        yield Row(
            f"ASGD, {law}, P=4, hosts lost every 50 s, back in 20, started in 5: s an update",
            "(M + b) e^(r/M) E[e^(X/M) - 1]/P",
            asgd_time_with_losses(parse_law(law), 4, 50, time_away(50, 20, 5)),
            timed("asgd", 4, 1000, law, **_often_lost(50, 20), restart_s=5.0),
        )
    yield Row(
        "ASGD, exponential, P=4 islands of 8 ranks, ranks lost every 400 s, back in 20: s an update",
        "(M/G + b) E[e^(X/M) - 1]/P",
        asgd_time_with_losses(EXPONENTIAL, 4, island_mtbf(400, 8), time_away(island_mtbf(400, 8), 20, 0)),
        timed("asgd", 4, 1000, "exponential:8", ranks_per_worker=8, **_often_lost(400, 20)),
    )
    # Each loss repeats a task, and leaves a host idle until its first worker is done elsewhere.
    at_work = partial(timed, **_often_lost(200, 100), then=lambda s: task_time(CONSTANT, 200) / s)
    yield Row(
        "ASGD, constant, 8 workers on 4 hosts lost every 200 s, back in 100, rehost: hosts at work",
        "H M/(M + D)",
        hosts_at_work(4, up_share(200, 100)),
        at_work("asgd", 8, 2000, hosts=4, on_loss="rehost"),
        tolerance=4 * 2.0 / 300,
    )
    for policy in ("replace", "rehost"):
        yield Row(
            f"ASGD, constant, 4 hosts and a spare lost every 200 s, back in 100, {policy}: hosts at work",
            "E[min(H, N)], N binomial (H + s, a)",
            hosts_at_work(4, up_share(200, 100), spares=1),
            at_work("asgd", 4, 2000, spares=1, on_loss=policy),
            tolerance=4 * 2.0 / 300,
        )


def _of_members() -> Iterator[Row]:
    # A leaver's last task is in flight for 1 s more: it is away for 199 of 400 s.
    share = (_AWAY_S - EXPONENTIAL.mean_s) / (2 * _AWAY_S)
    for slack in (math.inf, 2.0):
        who = "ASGD" if slack == math.inf else f"SSP, slack {slack:g}"
        yield Row(
            f"{who}, exponential, one of 4 members away half of the time: updates a second",
            "(P - q)/E[X]" if slack == math.inf else "(1 - q) P r_P + q (P - 1) r_{P-1}",
            ssp_updates_per_s_with_one_away(EXPONENTIAL, 4, slack, share),
            partial(_with_one_away, lambda seen: len(seen) / (4 * _AWAY_S), slack),
        )
        yield Row(
            f"{who}, exponential, one of 4 members away half of the time: mean staleness",
            "members - 1, weighted" if slack == math.inf else "E[m^2]/E[m] - 1 of the members, weighted",
            ssp_mean_staleness_with_one_away(EXPONENTIAL, 4, slack, share),
            partial(_with_one_away, np.mean, slack),
        )


def _of_suspicion() -> Iterator[Row]:
    yield Row(
        "suspicion after 3 s, exponential, nothing wrong: share of tasks with a second copy",
        "P(X > S)",
        suspected_share(EXPONENTIAL, 3.0),
        lambda seed: len(_suspicions(seed)) / 2000,
    )
    yield Row(
        "suspicion after 3 s, exponential, nothing wrong: s of second copies a task",
        "E[(X - S)^+]",
        wasted_by_suspicion(EXPONENTIAL, 3.0),
        lambda seed: sum(seen.recovered_s or 0.0 for seen in _suspicions(seed)) / 2000,
    )
    for law, seeds in (("constant:1", 1), ("exponential:1", 20)):
        yield Row(
            f"suspicion after 2 s, {law}, a host 5 times slower: s until the first of two answers",
            "E[min(f X, S + X)]",
            first_of_two_answers(parse_law(law), 2.0, 5.0),
            partial(_first_answers_of_slow_hosts, law),
            seeds,
        )
    yield exactly(
        "suspicion after 2 s, constant:1, a host always 5 times slower: times that it is tried in 800 s",
        "2 + floor(log2(T/(2 S + 3 X)))",
        tries_of_a_slow_host(800, 1, 2),
        _tries_of_a_slow_host,
    )


def _time_against_work(interval_s: float, mtbf_s: float, seed: int) -> float:
    """Return the seconds of a run with failures and checkpoints for each second that it computes."""
    outcome = schedule(
        "ssgd",
        1,
        10 * _INTERVALS,
        seed,
        f"constant:{interval_s / 10:g}",
        faults=f"crash:mtbf={mtbf_s:g},back=10",
        checkpoint_every=f"{0.999 * interval_s:g}",  # rounding must not put it off by an update
        checkpoint_cost_s=2.0,
    )
    return outcome.tally.last_update_s / (_INTERVALS * interval_s)


def _often_lost(mtbf_s: float, back_s: float) -> dict[str, Any]:
    """Return the options of hosts that are lost at random, and started again without backoff."""
    return {
        "faults": f"spot:mtbf={mtbf_s:g},back={back_s:g}",
        "restarts": f"1,within={back_s:g}",  # no second loss comes so soon
    }


def _throughput_with_one_host_away(mode: str, workers: int, hosts: int, law: str, seed: int) -> float:
    """Return the throughput after host 3 was lost for good, as a share of that with all hosts."""
    away = {"faults": "kill:3@t=0+1e9", "on_loss": "rehost"}
    all_there, less = (
        s_per_update(schedule(mode, workers, 400, seed, law, hosts=hosts, **options), skip=200)
        for options in ({}, away)
    )
    return all_there / less


def _with_one_away(quantity: Callable[[list[int]], Any], slack: float, seed: int) -> float:
    """Return a quantity of the staleness of all gradients in two times of four members, and two of three."""
    goes = "; ".join(
        f"leave:3@t={_AWAY_S * (2 * k + 1):g}; join:3@t={_AWAY_S * (2 * k + 2):g}" for k in range(2)
    )
    outcome = schedule("ssp", 4, int(5 * _AWAY_S), seed, slack=slack, faults=goes)
    ended = [update for update in outcome.updates if update.finished_s <= 4 * _AWAY_S]
    assert len(ended) < len(outcome.updates), "the budget was spent before the last time was over"
    return float(quantity([update.staleness(done) for update in ended for done in update.dones]))


def _suspicions(seed: int) -> list[Any]:
    """Return those of 2,000 tasks, with a spare for each worker."""
    outcome = schedule("asgd", 4, 500, seed, suspect_after=3.0, spares=4)
    return [seen for seen in outcome.cluster.faults_seen if seen.kind == "suspect"]


def _first_answers_of_slow_hosts(law: str, seed: int) -> float:
    """Return the mean seconds of the first task of 200 workers, each with a slow host and a spare."""
    everyone = ",".join(map(str, range(200)))
    options: dict[str, Any] = {"suspect_after": 2.0, "spares": 200, "faults": f"slow:{everyone}=5@t=0"}
    (update,) = schedule("ssgd", 200, 1, seed, law, **options).updates
    return float(np.mean([done.finished_s for done in update.dones]))


def _tries_of_a_slow_host(seed: int) -> float:
    slow: dict[str, Any] = {"suspect_after": 2.0, "spares": 1, "faults": "slow:0=5@t=0"}
    seen = schedule("asgd", 1, 800, seed, "constant:1", **slow).cluster.faults_seen
    return sum(one.t_s + (one.recovered_s or 0.0) <= 800 for one in seen if one.kind == "suspect")
