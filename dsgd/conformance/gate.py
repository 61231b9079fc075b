"""Theory against measurement: every closed form that the suite is held to, as one row.

    python -m dsgd.conformance.gate           # or make theory; --markdown prints docs/theory.md

A row has a formula, its value, and a way to measure the same thing with the simulator. Where chance is in
it, the measurement is repeated with independent seeds, and the verdict is Student's two-sided test at the
level below: the value must lie in the interval around the mean. Where nothing is left to chance, the
two must agree to rounding. Values that the literature has only as simulations carry their own tolerance.

tests/theory/test_theory.py runs the same rows.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dsgd.core import rules as parts
from dsgd.core.time_laws import parse_law
from dsgd.running.quick_run import QuickRun, run
from dsgd.scenario.graphs import Graph, Mixing
from dsgd.theory.balancing import (
    bias_variance,
    curvature,
    expected_shares,
    largest_stable_rate,
    max_violation,
    measured_swing,
    updates_a_swing,
)
from dsgd.theory.bounded_staleness import (
    ssp_clock_gap_bound,
    ssp_mean_staleness,
    ssp_staleness_bound,
    ssp_steps_per_s,
)
from dsgd.theory.checkpointing import completion_time
from dsgd.theory.compressed_gradients import (
    largest_stable_random_k_step,
    random_k_with_feedback,
    unbiased_random_k_decay,
)
from dsgd.theory.exchanges import all_reduce_time, round_bytes, served_round_time
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
from dsgd.theory.islands import island_collectives_time, island_mtbf
from dsgd.theory.mixing import (
    consensus_distance,
    eigenvalues,
    matrix,
    one_peer_consensus_distance,
    ring_gap,
    spread_after_pairs,
)
from dsgd.theory.quadratics import (
    easgd_decay,
    easgd_largest_stable_alpha,
    largest_stable_step,
    local_sgd_fixed_point,
    momentum_from_asynchrony,
    noise_floor,
)
from dsgd.theory.queueing import server_updates_per_s
from dsgd.theory.robustness import ipm_decay, lower_bound, mimic_fixed_point, signflip_fixed_point
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
    k_async_time,
    k_batch_async_time,
    k_batch_sync_time,
    k_sync_time,
    local_sgd_time_per_step,
    ssgd_time,
)

LEVEL = 0.999  # of each row's interval; seeds are fixed, so a row that holds once holds always
ROUNDING = 1e-5  # float32, over some thousand additions


@dataclass(frozen=True, kw_only=True)
class Row:
    """One closed form, and how the simulator measures it."""

    group: str
    what: str
    formula: str
    value: float
    measure: Callable[[int], float]
    """Returns the measurement of one seed."""
    seeds: int = 20
    """Independent repetitions; 1 where nothing is left to chance."""
    tolerance: float = 0.0
    """Of `value` itself, where it is known to so many digits only."""

    def check(self) -> Measurement:
        """Measure, and compare with the value."""
        measured = np.array([self.measure(seed) for seed in range(self.seeds)])
        mean = float(measured.mean())
        if self.seeds == 1:
            half = ROUNDING * max(1.0, abs(self.value))
        else:
            from scipy.stats import t

            deviation = float(measured.std(ddof=1)) / math.sqrt(self.seeds)
            half = float(t.ppf((1 + LEVEL) / 2, self.seeds - 1)) * deviation
        return Measurement(self, mean, half, abs(mean - self.value) <= half + self.tolerance)


@dataclass(frozen=True)
class Measurement:
    """A row's measurement: mean, half the width of its interval, and whether theory holds."""

    row: Row
    measured: float
    half_width: float
    holds: bool


def schedule(
    mode: str, workers: int, steps: int, seed: int, law: str = "exponential:1", **options: Any
) -> QuickRun:
    """Run a strategy without weights: all that is measured is time and staleness."""
    return run(mode, dataset="none", num_workers=workers, steps=steps, seed=seed, compute_time=law, **options)


def s_per_update(outcome: QuickRun, skip: int = 0) -> float:
    """Return seconds per update, after the first `skip` updates."""
    last = [update.finished_s for update in outcome.updates]
    return (last[-1] - (last[skip - 1] if skip else 0.0)) / (len(last) - skip)


def megabytes(outcome: QuickRun) -> float:
    """Return MB sent per update, evaluations excluded."""
    moved = outcome.cluster.traffic.by_direction
    return (sum(moved.values()) - moved["fetched"]) / len(outcome.updates) / 1e6


def late_staleness(outcome: QuickRun, skip: int) -> list[int]:
    """Return the staleness of all gradients after the first `skip` updates."""
    return [update.staleness(done) for update in outcome.updates[skip:] for done in update.dones]


def quadratic(mode: str, workers: int, steps: int, seed: int, **options: Any) -> QuickRun:
    """Run a strategy on the quadratic w^2/2 for each worker, with unit steps of time."""
    return run(mode, dataset="quadratic", num_workers=workers, steps=steps, seed=seed, **options)


def iterates(outcome: QuickRun) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the weights after each update, shape (updates, D)."""
    return np.array([update.weights.vector for update in outcome.updates], dtype=np.float64)


def _row(
    group: str,
    what: str,
    formula: str,
    value: float,
    measure: Callable[..., float],
    *,
    seeds: int = 20,
    tolerance: float = 0.0,
    **at: Any,
) -> Row:
    """Make a row whose measurement has the parameters `at` and its seed."""
    return Row(
        group=group,
        what=what,
        formula=formula,
        value=value,
        measure=partial(measure, **at),
        seeds=seeds,
        tolerance=tolerance,
    )


def time_rows() -> Iterator[Row]:
    """Time per update and per step."""
    exponential, shifted = parse_law("exponential:1"), parse_law("shifted-exponential:1,1")

    row = partial(_row, "Time")

    for law, text in ((exponential, "exponential:1"), (shifted, "shifted-exponential:1,1")):
        for k in (8, 4, 1):
            yield row(
                f"K-sync, {text}, P=8, K={k}: s an update",
                "shift + H_P - H_{P-K}",
                k_sync_time(law, 8, k),
                lambda seed, k, text: s_per_update(schedule("ksync", 8, 200 * k // 8 + 1, seed, text, k=k)),
                k=k,
                text=text,
            )
    for text in ("pareto:3,1", "lognormal:1,.5", "uniform:.5,1.5"):
        yield row(
            f"K-sync, {text}, P=8, K=4: s an update",
            "mean of the K-th of P draws",
            k_sync_time(parse_law(text), 8, 4),
            lambda seed, text: s_per_update(schedule("ksync", 8, 100, seed, text, k=4)),
            text=text,
        )
    for k in (4, 8):
        yield row(
            f"K-batch-sync, exponential, P=8, K={k}: s an update",
            "K/P",
            k_batch_sync_time(exponential, 8, k),
            lambda seed, k: s_per_update(schedule("ksync", 8, 25 * k, seed, k=k, count="gradients")),
            k=k,
        )
    for text in ("exponential:1", "pareto:3,1"):
        yield row(
            f"ASGD, {text}, P=8: s an update",
            "E[X]/P",
            asgd_time(parse_law(text), 8),
            lambda seed, text: s_per_update(schedule("asgd", 8, 400, seed, text), skip=800),
            text=text,
        )
    yield row(
        "K-batch-async, exponential, P=8, K=4: s an update",
        "K E[X]/P",
        k_batch_async_time(exponential, 8, 4),
        lambda seed: s_per_update(schedule("kasync", 8, 400, seed, k=4, count="gradients"), skip=200),
    )
    yield row(
        "K-async, exponential, P=8, K=4: s an update",
        "H_P - H_{P-K}",
        k_async_time(exponential, 8, 4),
        lambda seed: s_per_update(schedule("kasync", 8, 200, seed, k=4), skip=100),
    )
    yield row(
        "backup workers, exponential, 96 of 100: s an update",
        "H_{N+b} - H_b",
        backup_workers_time(exponential, 96, 4),
        lambda seed: s_per_update(schedule("ksync", 100, 50, seed, backup=4)),
    )
    yield row(
        "SSGD, exponential, P=100: s an update",
        "H_P",
        ssgd_time(exponential, 100),
        lambda seed: s_per_update(schedule("ssgd", 100, 50, seed)),
    )
    for h in (1, 2, 4, 8, 16, 100):
        yield row(
            f"LocalSGD, exponential, P=8, H={h}: s a local step",
            "E[max of P Erlang(H)]/H",
            local_sgd_time_per_step(exponential, 8, h),
            lambda seed, h: s_per_update(schedule("localsgd", 8, 60 * h, seed, local_steps=h)) / h,
            h=h,
        )
    for slack in (0, 3, 10, 100):
        yield row(
            f"SSP, one of 8 workers 4 times slower, slack {slack}: s a step",
            "the slow worker's time",
            4.0,
            lambda seed, slack: (
                8
                * s_per_update(
                    schedule("ssp", 8, 800, seed, "constant:1", slack=float(slack), slowdown="0=4"), skip=3200
                )
            ),
            seeds=1,
            slack=slack,
        )
    for slack in (0, 1, 2, 3, 5, 10):
        yield row(
            f"SSP, exponential, P=8, slack {slack}: steps a second of each worker",
            "1/H_P" if slack == 0 else "Markov chain of the clocks",
            ssp_steps_per_s(exponential, 8, slack),
            lambda seed, slack: (
                1 / (8 * s_per_update(schedule("ssp", 8, 300, seed, slack=float(slack)), skip=800))
            ),
            slack=slack,
        )
    yield row(
        "SSP, exponential, P=2, slack 3: steps a second of each worker",
        "birth-death chain of the clocks' difference",
        ssp_steps_per_s(exponential, 2, 3),
        lambda seed: 1 / (2 * s_per_update(schedule("ssp", 2, 600, seed, slack=3.0), skip=200)),
    )
    service = parse_law("exponential:.1")
    for workers in (1, 8):
        yield row(
            f"a server of .1 s a push, exponential, P={workers}: updates a second",
            "(1 - p_0)/S, machine repair",
            server_updates_per_s(exponential, service, workers),
            lambda seed, workers: (
                1
                / s_per_update(
                    schedule("asgd", workers, 3200 // workers, seed, server_time="exponential:.1"), skip=400
                )
            ),
            workers=workers,
        )
    yield from _exchange_rows(row)
    yield from _island_rows(row)


def _exchange_rows(row: Callable[..., Row]) -> Iterator[Row]:
    """Yield rows of synchronous rounds: messages of 1 MB, links of 10 MB/s each way, 20 ms of latency."""
    exponential, size, latency_s, rate = parse_law("exponential:1"), 1_000_000, 0.02, 1e7
    options: dict[str, Any] = {"padding_mb": 1.0, "latency_s": latency_s, "bytes_per_s": rate}
    ways = {"allreduce": "direct", "allreduce:ring": "ring", "allreduce:halving": "halving"}
    exchange = {
        "direct": "2 alpha + 2 (N-1)/N n/B",
        "ring": "2 (N-1) (alpha + n/NB)",
        "halving": "2 log2(N) alpha + 2 (N-1)/N n/B",
    }
    for topology, way in ways.items():
        for law, rounds in (("exponential:1", 100), ("constant:1", 5)):
            yield row(
                f"SSGD, {topology}, {law}, P=8: s an update",
                f"E[max X] + {exchange[way]}",
                ssgd_time(parse_law(law), 8) + all_reduce_time(way, 8, size, latency_s, rate),
                lambda seed, topology, law, rounds: s_per_update(
                    schedule("ssgd", 8, rounds, seed, law, topology=topology, **options)
                ),
                seeds=1 if law == "constant:1" else 20,
                topology=topology,
                law=law,
                rounds=rounds,
            )
    for servers in (1, 2, 8):
        yield row(
            f"SSGD, {servers} server{'s' * (servers > 1)}, constant:1, P=8: s an update",
            "X + 2 alpha + max(Nx, y) + max(x, y), x = n/SC, y = n/B",
            1 + served_round_time(8, size, latency_s, rate, rate, servers),
            lambda seed, servers: s_per_update(
                schedule(
                    "ssgd",
                    8,
                    5,
                    seed,
                    "constant:1",
                    topology=f"sharded:{servers}",
                    server_bytes_per_s=rate,
                    **options,
                )
            ),
            seeds=1,
            servers=servers,
        )
    yield row(
        "LocalSGD, allreduce, exponential, P=8, H=4: s an update",
        "H E[max of P Erlang(H)]/H + 2 alpha + 2 (N-1)/N n/B",
        4 * local_sgd_time_per_step(exponential, 8, 4) + all_reduce_time("direct", 8, size, latency_s, rate),
        lambda seed: s_per_update(
            schedule("localsgd", 8, 240, seed, local_steps=4, topology="allreduce", **options)
        ),
    )
    for topology in ("server", "sharded:2", *ways):
        servers = {"server": 1, "sharded:2": 2}.get(topology, 0)
        yield row(
            f"SSGD, {topology}, P=8: MB an update, all links",
            "2 N n" if servers else "2 (N-1) n",
            round_bytes(8, size, all_reduce=not servers) / 1e6,
            lambda seed, topology: megabytes(schedule("ssgd", 8, 5, seed, topology=topology, padding_mb=1.0)),
            seeds=1,
            topology=topology,
        )


def _island_rows(row: Callable[..., Row]) -> Iterator[Row]:
    """Yield rows of workers of 4 ranks: weights of 1 MB, 10 MB/s between ranks, 5 ms of latency."""
    size, latency_s, rate = 1_000_000, 0.005, 1e7
    options: dict[str, Any] = {"padding_mb": 1.0, "rank_latency_s": latency_s, "rank_bytes_per_s": rate}
    formulas = {
        "fsdp": "3 (G-1) (alpha + n/GB)",
        "hsdp:2": "3 (S-1) (alpha + n/SB) + 2 (R-1) (alpha + n/GB)",
        "ddp": "2 (G-1) (alpha + n/GB)",
    }
    for (parallel, formula), copies in zip(formulas.items(), (1, 2, 4), strict=True):
        for law in ("constant:4", "lognormal:4,.5") if copies == 1 else ("constant:4",):
            collectives_s = island_collectives_time(4, copies, size, latency_s, rate)
            yield row(
                f"SSGD, {law}, P=8 islands of 4 ranks, {parallel}: s an update",
                f"E[max X]/G + {formula}",
                ssgd_time(parse_law(law), 8) / 4 + collectives_s,
                lambda seed, parallel, law: s_per_update(
                    schedule("ssgd", 8, 100, seed, law, ranks_per_worker=4, parallel=parallel, **options)
                ),
                seeds=1 if law == "constant:4" else 20,
                parallel=parallel,
                law=law,
            )


def staleness_rows() -> Iterator[Row]:
    """Staleness and clock gaps."""
    exponential = parse_law("exponential:1")

    row = partial(_row, "Staleness")

    for text in ("exponential:1", "pareto:3,1"):
        yield row(
            f"ASGD, {text}, P=8: mean",
            "P - 1",
            asgd_mean_staleness(8),
            lambda seed, text: float(np.mean(late_staleness(schedule("asgd", 8, 400, seed, text), 400))),
            text=text,
        )
    for tau in (0, 7):
        yield row(
            f"ASGD, exponential, P=8: P(staleness = {tau})",
            "(1/P)(1 - 1/P)^k",
            asgd_staleness_pmf(exponential, 8, tau),
            lambda seed, tau: late_staleness(schedule("asgd", 8, 400, seed), 400).count(tau) / 2800,
            tau=tau,
        )
    expected = asgd_mean_staleness_by_worker(3, {0: 4.0})
    for worker in (0, 1):
        yield row(
            f"ASGD, exponential, worker 0 of 3 four times slower: mean of worker {worker}",
            "R/r_i - 1",
            float(expected[worker]),
            lambda seed, worker: float(
                np.mean(
                    [
                        update.staleness(update.dones[0])
                        for update in schedule("asgd", 3, 1000, seed, slowdown="0=4").updates[200:]
                        if update.dones[0].worker == worker
                    ]
                )
            ),
            worker=worker,
        )
    yield row(
        "K-async, exponential, P=8, K=4: mean",
        "(P - K)/K",
        k_async_mean_staleness(8, 4),
        lambda seed: float(np.mean(late_staleness(schedule("kasync", 8, 300, seed, k=4), 100))),
    )
    yield row(
        "K-async, exponential, P=8, K=4: P(staleness = 0)",
        "K/P",
        k_async_staleness_pmf(exponential, 8, 4, 0),
        lambda seed: late_staleness(schedule("kasync", 8, 300, seed, k=4), 100).count(0) / 2000,
    )
    yield row(
        "K-batch-async, exponential, P=8, K=4: mean",
        "(P - 1)/K",
        k_batch_async_mean_staleness(8, 4),
        lambda seed: float(
            np.mean(late_staleness(schedule("kasync", 8, 300, seed, k=4, count="gradients"), 100))
        ),
    )
    synchronous: list[tuple[str, str, dict[str, Any]]] = [
        ("SSGD", "ssgd", {}),
        ("K-sync, K=4, rest cancelled", "ksync", {"k": 4}),
        ("K-sync, K=4, rest ignored", "ksync", {"k": 4, "rest": "ignore"}),
        ("Rennala", "rennala", {}),
    ]
    for name, mode, options in synchronous:
        yield row(
            f"{name}, exponential, P=8: greatest",
            "0",
            0.0,
            lambda seed, mode, options: float(max(schedule(mode, 8, 50, seed, **options).staleness)),
            seeds=1,
            mode=mode,
            options=options,
        )
    yield row(
        "SSP, P=2, slack 2, times that attain it: greatest",
        "(P - 1)(2s + 1)",
        ssp_staleness_bound(2, 2),
        lambda seed: float(max(_ssp_at_its_bound(2).staleness)),
        seeds=1,
    )
    yield row(
        "SSP, P=2, slack 2, times that attain it: clock gap at completion",
        "s + 1",
        ssp_clock_gap_bound(2, 2),
        lambda seed: float(_ssp_at_its_bound(2).tally.clock_gap_max),
        seeds=1,
    )
    for slack in (0, 1, 2, 3, 5, 10):
        yield row(
            f"SSP, exponential, P=8, slack {slack}: mean",
            "(P - 1)/2" if slack == 0 else "E[m^2]/E[m] - 1, m workers not blocked",
            ssp_mean_staleness(exponential, 8, slack),
            lambda seed, slack: float(
                np.mean(late_staleness(schedule("ssp", 8, 600, seed, slack=float(slack)), 800))
            ),
            slack=slack,
        )


def _ssp_at_its_bound(slack: int) -> QuickRun:
    """Worker 0 runs `slack` ahead and then takes long; meanwhile worker 1 does all it may."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        rows = [(0, 0.01)] * slack + [(0, 1000.0)] + [(1, 1.0)] + [(1, 0.01)] * (2 * slack)
        file.write("worker,seconds\n" + "".join(f"{worker},{seconds}\n" for worker, seconds in rows))
        file.flush()
        return schedule("ssp", 2, (3 * slack + 2) // 2 + 1, 0, f"trace:{file.name}", slack=float(slack))


def failure_rows() -> Iterator[Row]:
    """Hosts that are lost, members that come and go, and suspicion."""
    exponential, constant = parse_law("exponential:1"), parse_law("constant:1")

    row = partial(_row, "Failures")

    for text in ("exponential:1", "pareto:3,1"):
        yield row(
            f"ASGD, {text}, one of 8 hosts away, rehost: throughput against all",
            "(H - 1)/H",
            asgd_time_on_hosts(parse_law(text), 8, 8) / asgd_time_on_hosts(parse_law(text), 8, 7),
            _throughput_with_one_host_away,
            mode="asgd",
            workers=8,
            hosts=8,
            text=text,
        )
    for workers, hosts in ((12, 4), (8, 8)):
        yield row(
            f"SSGD, constant, {workers} workers, one of {hosts} hosts away, rehost: throughput against all",
            "ceil(P/H)/ceil(P/(H - 1))",
            ssgd_time_on_hosts(constant, workers, hosts) / ssgd_time_on_hosts(constant, workers, hosts - 1),
            _throughput_with_one_host_away,
            seeds=1,
            mode="ssgd",
            workers=workers,
            hosts=hosts,
            text="constant:1",
        )
    yield row(
        "SSGD, exponential, 8 workers on 3 hosts: s an update",
        "E[max of Erlang(3), Erlang(3), Erlang(2)]",
        ssgd_time_on_hosts(exponential, 8, 3),
        lambda seed: s_per_update(schedule("ssgd", 8, 100, seed, hosts=3)),
    )
    for text in ("constant:1", "exponential:1"):
        yield row(
            f"ASGD, {text}, P=4, hosts lost every 50 s, back in 20, started in 5: s an update",
            "(M + b) e^(r/M) E[e^(X/M) - 1]/P",
            asgd_time_with_losses(parse_law(text), 4, 50, time_away(50, 20, 5)),
            lambda seed, text: s_per_update(
                schedule("asgd", 4, 1000, seed, text, **_often_lost(50, 20), restart_s=5.0)
            ),
            text=text,
        )
    yield row(
        "ASGD, exponential, P=4 islands of 8 ranks, ranks lost every 400 s, back in 20: s an update",
        "(M/G + b) E[e^(X/M) - 1]/P",
        asgd_time_with_losses(
            parse_law("exponential:1"), 4, island_mtbf(400, 8), time_away(island_mtbf(400, 8), 20, 0)
        ),
        lambda seed: s_per_update(
            schedule("asgd", 4, 1000, seed, "exponential:8", ranks_per_worker=8, **_often_lost(400, 20))
        ),
    )
    yield row(
        "ASGD, constant, 8 workers on 4 hosts lost every 200 s, back in 100, rehost: hosts at work",
        "H M/(M + D)",
        hosts_at_work(4, up_share(200, 100)),
        # Each loss repeats a task, and leaves a host idle until its first worker is done elsewhere.
        lambda seed: (
            task_time(constant, 200)
            / s_per_update(
                schedule("asgd", 8, 2000, seed, **_often_lost(200, 100), hosts=4, on_loss="rehost")
            )
        ),
        tolerance=4 * 2.0 / 300,
    )
    for policy in ("replace", "rehost"):
        yield row(
            f"ASGD, constant, 4 hosts and a spare lost every 200 s, back in 100, {policy}: hosts at work",
            "E[min(H, N)], N binomial (H + s, a)",
            hosts_at_work(4, up_share(200, 100), spares=1),
            lambda seed, policy: (
                task_time(constant, 200)
                / s_per_update(
                    schedule("asgd", 4, 2000, seed, **_often_lost(200, 100), spares=1, on_loss=policy)
                )
            ),
            tolerance=4 * 2.0 / 300,
            policy=policy,
        )
    for slack in (math.inf, 2.0):
        name = "ASGD" if slack == math.inf else f"SSP, slack {slack:g}"
        # A leaver's last task is in flight for 1 s more: it is away for 199 of 400 s.
        share = (_AWAY_S - exponential.mean_s) / (2 * _AWAY_S)
        yield row(
            f"{name}, exponential, one of 4 members away half of the time: updates a second",
            "(P - q)/E[X]" if slack == math.inf else "(1 - q) P r_P + q (P - 1) r_{P-1}",
            ssp_updates_per_s_with_one_away(exponential, 4, slack, share),
            lambda seed, slack: len(_while_one_comes_and_goes(seed, slack)) / (4 * _AWAY_S),
            slack=slack,
        )
        yield row(
            f"{name}, exponential, one of 4 members away half of the time: mean staleness",
            "members - 1, weighted" if slack == math.inf else "E[m^2]/E[m] - 1 of the members, weighted",
            ssp_mean_staleness_with_one_away(exponential, 4, slack, share),
            lambda seed, slack: float(np.mean(_while_one_comes_and_goes(seed, slack))),
            slack=slack,
        )
    yield row(
        "suspicion after 3 s, exponential, nothing wrong: share of tasks with a second copy",
        "P(X > S)",
        suspected_share(exponential, 3.0),
        lambda seed: len(_suspicions(seed)) / 2000,
    )
    yield row(
        "suspicion after 3 s, exponential, nothing wrong: s of second copies a task",
        "E[(X - S)^+]",
        wasted_by_suspicion(exponential, 3.0),
        lambda seed: sum(seen.recovered_s or 0.0 for seen in _suspicions(seed)) / 2000,
    )
    for text in ("constant:1", "exponential:1"):
        yield row(
            f"suspicion after 2 s, {text}, a host 5 times slower: s until the first of two answers",
            "E[min(f X, S + X)]",
            first_of_two_answers(parse_law(text), 2.0, 5.0),
            _first_answers_of_slow_hosts,
            seeds=1 if text.startswith("constant") else 20,
            text=text,
        )
    yield row(
        "suspicion after 2 s, constant:1, a host always 5 times slower: times that it is tried in 800 s",
        "2 + floor(log2(T/(2 S + 3 X)))",
        tries_of_a_slow_host(800, 1, 2),
        lambda seed: sum(
            seen.t_s + (seen.recovered_s or 0.0) <= 800
            for seen in schedule(
                "asgd", 1, 800, seed, "constant:1", suspect_after=2.0, spares=1, faults="slow:0=5@t=0"
            ).cluster.faults_seen
            if seen.kind == "suspect"
        ),
        seeds=1,
    )

    for mtbf_s, intervals_s in ((600.0, (10.0, 49.0, 200.0)), (60.0, (5.0, 16.0, 50.0))):
        for interval_s in intervals_s:
            cost_s, restart_s = 2.0, 10.0
            yield row(
                f"driver lost every {mtbf_s:g} s, back in 10, a checkpoint of 2 s every {interval_s:g}: "
                "time/work",
                "M e^(R/M) (e^((T + C)/M) - 1)/T",
                completion_time(1.0, interval_s, cost_s, mtbf_s, restart_s),
                partial(_time_against_work, interval_s, cost_s, mtbf_s, restart_s),
                # The run ends without its last checkpoint.
                tolerance=cost_s / (_INTERVALS * interval_s),
            )


_AWAY_S = 200.0
_INTERVALS = 100


def _time_against_work(interval_s: float, cost_s: float, mtbf_s: float, restart_s: float, seed: int) -> float:
    """Return the seconds of a run with failures and checkpoints for each second that it computes."""
    outcome = schedule(
        "ssgd",
        1,
        10 * _INTERVALS,
        seed,
        f"constant:{interval_s / 10:g}",
        faults=f"crash:mtbf={mtbf_s:g},back={restart_s:g}",
        checkpoint_every=f"{0.999 * interval_s:g}",  # rounding must not put it off by an update
        checkpoint_cost_s=cost_s,
    )
    return outcome.tally.last_update_s / (_INTERVALS * interval_s)


def _often_lost(mtbf_s: float, back_s: float) -> dict[str, Any]:
    """Return the options of hosts that are lost at random, and started again without backoff."""
    return {
        "faults": f"spot:mtbf={mtbf_s:g},back={back_s:g}",
        "restart_window_s": back_s,  # no second loss comes so soon
        "max_restarts": 1,
    }


def _throughput_with_one_host_away(seed: int, mode: str, workers: int, hosts: int, text: str) -> float:
    """Return the throughput after host 3 was lost for good, as a share of that with all hosts."""
    away = {"faults": "kill:3@t=0+1e9", "on_loss": "rehost"}
    all_there, less = (
        s_per_update(schedule(mode, workers, 400, seed, text, hosts=hosts, **options), skip=200)
        for options in ({}, away)
    )
    return all_there / less


def _while_one_comes_and_goes(seed: int, slack: float) -> list[int]:
    """Return the staleness of all gradients in two times of four members, and two of three."""
    goes = "; ".join(
        f"leave:3@t={_AWAY_S * (2 * k + 1):g}; join:3@t={_AWAY_S * (2 * k + 2):g}" for k in range(2)
    )
    outcome = schedule("ssp", 4, int(5 * _AWAY_S), seed, slack=slack, faults=goes)
    ended = [update for update in outcome.updates if update.finished_s <= 4 * _AWAY_S]
    assert len(ended) < len(outcome.updates), "the budget was spent before the last time was over"
    return [update.staleness(done) for update in ended for done in update.dones]


def _suspicions(seed: int) -> list[Any]:
    """Return those of 2,000 tasks, with a spare for each worker."""
    outcome = schedule("asgd", 4, 500, seed, suspect_after=3.0, spares=4)
    return [seen for seen in outcome.cluster.faults_seen if seen.kind == "suspect"]


def _first_answers_of_slow_hosts(seed: int, text: str) -> float:
    """Return the mean seconds of the first task of 200 workers, each with a slow host and a spare."""
    everyone = ",".join(map(str, range(200)))
    options: dict[str, Any] = {"suspect_after": 2.0, "spares": 200, "faults": f"slow:{everyone}=5@t=0"}
    (update,) = schedule("ssgd", 200, 1, seed, text, **options).updates
    return float(np.mean([done.finished_s for done in update.dones]))


def optimization_rows() -> Iterator[Row]:
    """Effects of staleness, averaging and noise on the iterates, on quadratics."""
    row = partial(_row, "Optimization")

    for tau in (0, 1, 3, 7, 15):
        yield row(
            f"ASGD, constant times, P={tau + 1} (delay {tau}): largest stable step",
            "2 sin(pi/(2(2 tau + 1)))",
            largest_stable_step(tau),
            lambda seed, tau: _stability_limit(tau),
            seeds=1,
            tolerance=0.002,  # of the bisection, and of what 400 steps can show
            tau=tau,
        )
    for tau in (0, 3):
        yield row(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), momentum .5: largest stable step",
            "2 (1 + m); 2 sin(phi/2) |e^(i phi) - m|",
            largest_stable_step(tau, 0.5),
            lambda seed, tau: _stability_limit(tau, momentum=0.5),
            seeds=1,
            tolerance=0.002,
            tau=tau,
        )
    for workers in (1, 16):
        yield row(
            f"SSGD, step .1, unit noise, P={workers}: mean square",
            "lr s^2/(P a (2 - lr a))",
            noise_floor(0.1, 1.0, 1.0, num_workers=workers),
            lambda seed, workers: float(
                np.mean(
                    iterates(quadratic("ssgd", workers, 400, seed, grad_noise=1.0, lr=0.1, dim=50))[100:] ** 2
                )
            ),
            workers=workers,
        )
    for tau in (1, 3, 7):
        yield row(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), step .1, unit noise: mean square",
            "stationary variance of w - lr w_{-tau} - lr noise",
            noise_floor(0.1, 1.0, 1.0, delay=tau),
            lambda seed, tau: float(
                np.mean(
                    iterates(
                        quadratic("asgd", tau + 1, 1200 // (tau + 1), seed, grad_noise=1.0, lr=0.1, dim=50)
                    )[400:]
                    ** 2
                )
            ),
            tau=tau,
        )
    yield row(
        "ASGD, exponential, P=8: momentum of the mean iterate",
        "1 - 1/M",
        momentum_from_asynchrony(8),
        _implicit_momentum,
        seeds=12,
    )
    yield row(
        "LocalSGD, equal quadratics, noise: iterate after 64 steps, H=8 less H=1",
        "0: independent of H",
        0.0,
        lambda seed: float(
            np.abs(
                quadratic("localsgd", 4, 64, seed, local_steps=8, grad_noise=1.0, dim=20).w
                - quadratic("localsgd", 4, 64, seed, local_steps=1, grad_noise=1.0, dim=20).w
            ).max()
        ),
        seeds=1,
    )
    for h in (1, 4, 200):
        yield row(
            f"LocalSGD, curvatures 1 and 5, optima 0 and 1, step .1, H={h}: fixed point",
            "sum q_i x_i / sum q_i",
            local_sgd_fixed_point(0.1, [1.0, 5.0], [0.0, 1.0], h),
            lambda seed, h: float(
                quadratic(
                    "localsgd",
                    2,
                    max(200, 5 * h),
                    seed,
                    local_steps=h,
                    lr=0.1,
                    curvatures="1,5",
                    optima="0,1",
                ).w[0]
            ),
            seeds=1,
            h=h,
        )
    for eta in (0.5, 1.0, 1.5):
        yield row(
            f"EASGD, a worker and the centre, lr * curvature {eta:g}: largest stable alpha",
            "(4 - 2 eta)/(4 - eta)",
            easgd_largest_stable_alpha(eta),
            lambda seed, eta: _largest_stable_alpha(eta),
            seeds=1,
            tolerance=0.002,  # of the bisection, and of what 600 steps can show
            eta=eta,
        )
    yield row(
        "EASGD in turn, P=4, lr * curvature 1, alpha .99 of the largest: centre after 400 exchanges each",
        "0: stable",
        0.0,
        lambda seed: float(_easgd(4, 400, 1.0, 0.99 * easgd_largest_stable_alpha(1.0)).w[0]),
        seeds=1,
    )
    for workers in (1, 4, 16):
        yield row(
            f"EASGD at a barrier, P={workers}, lr * curvature .1, alpha .9/P: decay of the centre an update",
            "spectral radius of the recursion",
            easgd_decay(0.1, 0.9 / workers, workers),
            lambda seed, workers: _decay(iterates(_easgd(workers, 150, 0.1, None, "sync"))[:, 0]),
            seeds=1,
            workers=workers,
        )
    yield row(
        "DiLoCo, outer lr 1, outer momentum 0, inner SGD, H=7: last iterate less that of LocalSGD",
        "0: LocalSGD",
        0.0,
        lambda seed: float(
            np.abs(
                quadratic("diloco", 4, 63, 0, local_steps=7, lr=0.1, **_plain_outer, grad_noise=1.0, dim=20).w
                - quadratic("localsgd", 4, 63, 0, local_steps=7, lr=0.1, grad_noise=1.0, dim=20).w
            ).max()
        ),
        seeds=1,
    )
    yield row(
        "DC-ASGD with the exact Hessian, delay 3: last iterate less that without delay",
        "0: the zero-delay trajectory",
        0.0,
        lambda seed: _exact_compensation(),
        seeds=1,
    )


_EXPERTS, _TOP_K, _TOKENS = 8, 2, 256
_APART = 0.02  # of the first biases: little, for shares are linear in the biases only near balance


def balancing_rows() -> Iterator[Row]:
    """Balancing of 8 experts, of which a token is given to 2; scores are uniform."""
    row = partial(_row, "Experts")
    slope = curvature(_EXPERTS, _TOP_K)
    yield row(
        "shares of the load of drawn tokens: slope by the bias",
        "E/(K (E - 1))",
        slope,
        _slope_of_shares,
    )
    limits: list[tuple[str, str, str, int, int, dict[str, Any]]] = [
        ("SSGD, P=4", "2 K (E - 1)/(lr E)", "ssgd", 4, 0, {}),
        ("LocalSGD, P=2, H=4", "2 K (E - 1)/(lr E): for any H", "localsgd", 2, 0, {"local_steps": 4}),
        *(
            (
                f"ASGD, constant times, P={tau + 1} (delay {tau})",
                "2 sin(pi/(2(2 tau + 1))) K (E - 1)/(lr E)",
                "asgd",
                tau + 1,
                tau,
                {},
            )
            for tau in (1, 3, 7)
        ),
        (
            "ASGD, constant times, P=4 (delay 3), momentum .5",
            "2 sin(phi/2) |e^(i phi) - m| K (E - 1)/(lr E)",
            "asgd",
            4,
            3,
            {"momentum": 0.5},
        ),
    ]
    for who, formula, mode, workers, delay, options in limits:
        limit = largest_stable_rate(1.0, slope, delay=delay, momentum=options.get("momentum", 0.0))
        yield row(
            f"{who}, expected loads: largest stable rate",
            formula,
            limit,
            _largest_stable_rate,
            seeds=1,
            tolerance=0.005 * limit,  # of the bisection, and of what 100 steps can show
            mode=mode,
            num_workers=workers,
            near=limit,
            **options,
        )
    for tau in (0, 3):
        yield row(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), expected loads, 1.1 times it: updates a swing",
            "2 (2 tau + 1)",
            updates_a_swing(tau),
            lambda seed, tau, rate: _updates_a_swing(tau + 1, rate),
            seeds=1,
            tolerance=0.02 * updates_a_swing(tau),  # far from balance a swing takes a little longer
            tau=tau,
            rate=1.1 * largest_stable_rate(1.0, slope, delay=tau),
        )
    for tau in (0, 3):
        rate = 0.5 * largest_stable_rate(1.0, slope, delay=tau)
        variance = bias_variance(rate, slope, _EXPERTS, _TOP_K, _TOKENS, delay=tau)
        yield row(
            f"ASGD, constant times, P={tau + 1} (delay {tau}), half of that rate, {_TOKENS} tokens: MaxVio",
            "E sqrt(E/(E - 1)) curvature sd(bias) E[largest of E normals]",
            max_violation(_EXPERTS, slope**2 * variance),
            _max_violation,
            seeds=8,
            tolerance=0.004,  # shares are linear in the biases only near balance
            num_workers=tau + 1,
            rate=rate,
        )


def _router(mode: str, num_workers: int, rate: float, **options: Any) -> QuickRun:
    """Run a strategy on the balancing biases alone, with lr 1 and unit steps of time."""
    return run(
        mode,
        workload="router",
        experts=_EXPERTS,
        top_k=_TOP_K,
        balance_rate=rate,
        num_workers=num_workers,
        compute_time="constant:1",
        lr=1.0,
        **options,
    )


def _slope_of_shares(seed: int) -> float:
    """Return the least-squares slope of the shares by the first biases, which are a little apart."""
    outcome = _router("ssgd", 1, 1.0, steps=1, batch_size=32_768, unbalanced=0.1, seed=seed)
    bias = np.linspace(-0.05, 0.05, _EXPERTS)
    return float((bias - outcome.w) @ bias / (bias @ bias))


def _largest_stable_rate(seed: int, mode: str, num_workers: int, near: float, **options: Any) -> float:
    """Return the rate at which the biases stop settling; they begin a little apart."""

    def settles(rate: float) -> bool:
        outcome = _router(
            mode, num_workers, rate, expected=True, unbalanced=_APART, batch_size=1, steps=100, **options
        )
        bias = np.abs(rate * iterates(outcome)[:, 0])
        return bool(bias[len(bias) // 2 :].max() <= _APART / 2)  # growth would end by itself, far away

    return _bisect(settles, 1.5 * near, 0.5 * near, 0.005 * near)


def _updates_a_swing(num_workers: int, rate: float) -> float:
    """Return the mean updates from one swing of the first bias to the next, once they have grown."""
    outcome = _router("asgd", num_workers, rate, expected=True, unbalanced=_APART, batch_size=1, steps=100)
    return measured_swing(iterates(outcome)[len(outcome.updates) // 2 :, 0])


def _max_violation(seed: int, num_workers: int, rate: float) -> float:
    """Return the mean MaxVio of one version, by its expected loads, after a while."""
    outcome = _router("asgd", num_workers, rate, batch_size=_TOKENS, steps=400 // num_workers, seed=seed)
    biases = rate * iterates(outcome)[80:]
    return float(np.mean([_EXPERTS * expected_shares(bias, _TOP_K).max() - 1 for bias in biases]))


def compression_rows() -> Iterator[Row]:
    """Effects of what is not sent on the iterates, on quadratics."""
    row = partial(_row, "Compression")
    for share in (0.5, 0.25, 0.1):
        yield row(
            f"random-k scaled, k/D {share:g}, step .1: mean square after 5 steps, first 1",
            "((1 - lr a)^2 + (lr a)^2 (D/k - 1))^t",
            unbiased_random_k_decay(0.1, 1.0, share) ** 5,
            lambda seed, share: _mean_square(f"randk:{share},scaled", 0.1, 5, seed),
            share=share,
        )
        yield row(
            f"random-k scaled, k/D {share:g}, step 2 k/D: mean square after 100 steps, first 1",
            "1: the largest stable step",
            1.0,
            lambda seed, share: _mean_square(
                f"randk:{share},scaled", largest_stable_random_k_step(share), 100, seed
            ),
            seeds=1,
            share=share,
        )
        yield row(
            f"random-k, error feedback, k/D {share:g}, step .05: mean square after 30 steps, first 1",
            "a 3 x 3 matrix of (E x^2, E xe, E e^2)",
            random_k_with_feedback(0.05, 1.0, share, 30),
            lambda seed, share: _mean_square(f"randk:{share}", 0.05, 30, seed),
            share=share,
        )


_OPTIMA = (0.0, 1.0, 2.0, 5.0, -3.0, 4.0, 8.0)
_LIARS = 2  # the last ones


def lie_rows() -> Iterator[Row]:
    """Where descent ends among workers that lie, on quadratics."""
    row = partial(_row, "Lies", seeds=1)
    honest, liars = _OPTIMA[:-_LIARS], _OPTIMA[-_LIARS:]
    yield row(
        "the mean, 2 of 7 flip the sign: last iterate",
        "(sum of honest x_i - sum of the liars' x_i)/(n - 2 f)",
        signflip_fixed_point(honest, liars),
        lambda seed: _among_liars(_OPTIMA, "lie:5,6=signflip"),
        tolerance=1e-4,
    )
    yield row(
        "the mean, 2 of 7 mimic the first: last iterate",
        "(sum of honest x_i + f x_1)/n",
        mimic_fixed_point(honest, _LIARS),
        lambda seed: _among_liars(_OPTIMA, "lie:5,6=mimic"),
        tolerance=1e-4,
    )
    for size in (1.0, 2.0, 3.0):
        yield row(
            f"the mean, 2 of 7 send -{size:g} times the honest mean: decay of the distance an update",
            "1 - lr (n - f - size f)/n",
            ipm_decay(0.1, len(honest), _LIARS, size),
            _ipm_decay,
            size=size,
            tolerance=1e-5,
        )
    for n, f in ((5, 1), (7, 2), (9, 4)):
        yield row(
            f"trimmed mean, {f} of {n} lie as well as they can: squared error over spread",
            "f/(n - 2 f): no aggregator does better",
            lower_bound(n, f),
            lambda seed, n, f: _worst_split(n, f),
            n=n,
            f=f,
            tolerance=1e-5,
        )


def _among_liars(optima: Sequence[float], faults: str, **options: Any) -> float:
    """Return where SSGD with these optima and liars ends."""
    text = ",".join(map(str, optima))
    return float(quadratic("ssgd", len(optima), 200, 0, lr=0.2, optima=text, faults=faults, **options).w[0])


def _ipm_decay(seed: int, size: float) -> float:
    optima = [x + 2 for x in _OPTIMA]  # weights start at 1, which is the honest mean of _OPTIMA
    text = ",".join(map(str, optima))
    outcome = quadratic("ssgd", len(optima), 10, 0, lr=0.1, optima=text, faults=f"lie:5,6=ipm*{size}")
    distance = iterates(outcome)[:, 0] - np.mean(optima[:-_LIARS])
    return float((distance[-1] / distance[0]) ** (1 / (len(distance) - 1)))


def _worst_split(n: int, f: int) -> float:
    """Return the squared error over the spread where f honest optima are 1, the others 0, and liars mimic a
    worker at 0.
    """
    honest = [0.0] * (n - 2 * f) + [1.0] * f
    liars = ",".join(map(str, range(n - f, n)))
    w = _among_liars([*honest, *[9.0] * f], f"lie:{liars}=mimic", aggregate=f"trimmed:{f}")
    return float((w - np.mean(honest)) ** 2 / np.var(honest))


def _mean_square(compress: str, lr: float, steps: int, seed: int) -> float:
    """Return the mean square of the weights, of which the first are 1, after so many steps of one worker."""
    return float(np.mean(quadratic("ssgd", 1, steps, seed, lr=lr, dim=1000, compress=compress).w ** 2))


_plain_outer: dict[str, Any] = {"inner": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}


def _stability_limit(tau: int, **options: Any) -> float:
    """Return the step at which ASGD with P = tau + 1 equal workers stops converging."""
    return _bisect(
        lambda lr: _converges(quadratic("asgd", tau + 1, 400, 0, lr=lr, **options)), 3.5 if options else 2.5
    )


def _largest_stable_alpha(eta: float) -> float:
    """Return the alpha at which one worker and its centre stop converging."""
    return _bisect(lambda alpha: _converges(_easgd(1, 600, eta, alpha)), 1.0)


def _easgd(
    workers: int, exchanges: int, eta: float, alpha: float | None, exchange: str = "async"
) -> QuickRun:
    return quadratic(
        "easgd", workers, exchanges, 0, lr=eta, moving_rate=alpha, exchange=exchange, local_steps=1
    )


def _bisect(
    is_stable: Callable[[float], bool], high: float, low: float = 0.0, precision: float = 1e-3
) -> float:
    """Return the parameter, between `low` and `high`, up to which runs are stable."""
    with np.errstate(over="ignore", invalid="ignore"):
        while high - low > precision:
            middle = (low + high) / 2
            low, high = (middle, high) if is_stable(middle) else (low, middle)
    return (low + high) / 2


def _converges(outcome: QuickRun) -> bool:
    """Whether a run's first weight was smaller in the second half than in the first quarter."""
    w = np.abs(iterates(outcome)[:, 0])
    half = len(w) // 2
    return bool(np.isfinite(w).all() and w[half:].max() <= w[: half // 2].max())


def _decay(w: np.ndarray[Any, Any]) -> float:
    """Return the factor by which the iterates (updates,) fall in an update, in the long run."""
    return float((w[-1] / w[len(w) // 2]) ** (1 / (len(w) - 1 - len(w) // 2)))


def _implicit_momentum(seed: int) -> float:
    """Estimate the momentum mu from E w_{t+1} - E w_t = mu (E w_t - E w_{t-1}) - (1 - mu) lr E w_t.

    Source: Mitliagkas et al. 2016 (arXiv 1605.09774), theorem 3; the means are over independent runs.
    """
    lr, runs = 0.05, 60
    paths = [
        iterates(quadratic("asgd", 8, 8, 1000 * seed + k, lr=lr, compute_time="exponential:1"))[:, 0]
        for k in range(runs)
    ]
    w = np.concatenate([[1.0], np.mean(paths, axis=0)])
    d = np.diff(w)
    # d[t+1] + lr w[t+1] = mu (d[t] + lr w[t+1]): a ratio of sums, which noise in the means does not bias as
    # it does least squares; over the first updates, where all terms have one sign.
    x, y = d[:-1] + lr * w[1:-1], d[1:] + lr * w[1:-1]
    return float(y[:20].sum() / x[:20].sum())


def _exact_compensation() -> float:

    outer_product = parts.hessian
    parts.hessian = lambda g: np.full_like(g, 2.0)
    try:
        delayed = quadratic("dcasgd", 4, 20, 0, lr=0.1, compensation=1.0, curvatures="2")
    finally:
        parts.hessian = outer_product
    fresh = quadratic("asgd", 1, 80, 0, lr=0.1, curvatures="2")
    return float(np.abs(iterates(delayed) - iterates(fresh)).max())


def gossip_rows() -> Iterator[Row]:
    """Workers with their own weights, on graphs."""
    row, exactly = partial(_row, "Gossip"), partial(_row, "Gossip", seeds=1)

    yield row(
        "one random pair of 16: spread that is left",
        "1 - 1/(N - 1)",
        spread_after_pairs(16, 1),
        lambda seed: _left_after_pairs(seed, 16, 1),
    )
    yield row(
        "a random perfect matching of 16: spread that is left",
        "(N - 2)/(2(N - 1))",
        spread_after_pairs(16, 8),
        lambda seed: _left_after_pairs(seed, 16, 8),
    )
    yield exactly(
        "one-peer exponential, N=16: spread after log2 N rounds",
        "0",
        0.0,
        lambda _: _spread_after([Graph("exponential").one_peer(t, range(16), 0) for t in range(4)]),
    )
    yield exactly(
        "ring, N=16: 1 - mu_2",
        "2/3 (1 - cos(2 pi/N))",
        ring_gap(16),
        lambda _: 1 - abs(eigenvalues(Graph("ring").mixing(0, range(16), 0))[1]),
    )
    for name in ("ring", "exponential"):
        for mixing in ("before", "after"):
            mu = eigenvalues(Graph(name).mixing(0, range(8), 0))
            yield row(
                f"D-PSGD, {name}, N=8, mixing {mixing}, lr .2: consensus distance",
                "1/N sum_k lr^2 sigma^2/(1 - |mu_k - lr|^2)"
                if mixing == "before"
                else "1/N sum_k |lr sigma mu_k|^2/(1 - |mu_k (1 - lr)|^2)",
                consensus_distance(mu, 0.2, 1.0, 1.0, after=mixing == "after"),
                lambda seed, **options: _distance(_agreeing("dpsgd", seed, **options)),
                seeds=8,
                graph=name,
                mixing=mixing,
            )
    yield row(
        "SGP, one-peer exponential, N=8, lr .2: consensus distance",
        "lr^2 sigma^2 sum_m (1 - lr)^(2(m - 1)) (2^-m - 1/N)",
        one_peer_consensus_distance(8, 0.2, 1.0, 1.0),
        lambda seed: _distance(_agreeing("sgp", seed)),
        seeds=8,
    )
    yield row(
        "D-PSGD, ring, N=8, lr .2: variance of the mean",
        "lr sigma^2/(N (2 - lr))",
        noise_floor(0.2, 1.0, 1.0, num_workers=8),
        lambda seed: float(np.mean(iterates(_agreeing("dpsgd", seed))[50:] ** 2)),
        seeds=8,
    )
    yield row(
        "AD-PSGD, complete graph, exponential, P=8: mean staleness",
        "P - 1",
        asgd_mean_staleness(8),
        lambda seed: float(np.mean(late_staleness(schedule("adpsgd", 8, 200, seed, graph="complete"), 400))),
        seeds=8,
    )
    yield row(
        "AD-PSGD, exponential, P=8: s an update",
        "E[X]/P",
        asgd_time(parse_law("exponential:1"), 8),
        lambda seed: s_per_update(schedule("adpsgd", 8, 200, seed), skip=400),
        seeds=8,
    )
    yield exactly(
        "D-PSGD, ring of 8 with one worker 3 times slower: s an update",
        "the slow worker's time",
        3.0,
        lambda _: s_per_update(schedule("dpsgd", 8, 50, 0, "constant:1", slowdown="0=3")),
    )


def _left_after_pairs(seed: int, num_workers: int, pairs: int) -> float:
    """Return the share of the spread that is left once some random pairs have averaged, the mean of 50
    draws.
    """
    x = np.random.default_rng(seed).normal(size=num_workers)
    left = []
    for t in range(50):
        matching = Graph("random").mixing(t, range(num_workers), seed)
        chosen = [(i, j) for i, row in matching.items() for j in row if i < j]
        chosen = np.random.default_rng([seed, t]).permutation(chosen).tolist()[:pairs]
        mixed = x.copy()
        for i, j in chosen:
            mixed[[i, j]] = (x[i] + x[j]) / 2
        left.append(mixed.var() / x.var())
    return float(np.mean(left))


def _spread_after(rounds: list[Mixing]) -> float:
    """Return the spread of weights that workers have after some rounds of mixing; they begin with e_i."""
    x = np.eye(len(rounds[0]))
    for one in rounds:
        x = matrix(one) @ x
    return float(np.sum((x - x.mean(axis=0)) ** 2))


def _agreeing(mode: str, seed: int, **options: Any) -> QuickRun:
    """Run a mode on one quadratic that all eight workers share, with noise of variance 1."""
    return quadratic(mode, 8, 200, seed, lr=0.2, grad_noise=1.0, dim=100, **options)


def _distance(outcome: QuickRun) -> float:
    """Return the mean consensus distance of a coordinate, after a while."""
    return float(np.mean([update.measured["consensus"] for update in outcome.updates[50:]]) / 100)


_READING = """
## How a run is compared with theory

The summary of a run, and its report, compare it with the formulas that apply to it:

    theory says  7 mean staleness, measured 7.003 ± 0.071 (agrees)

Measured is the mean after the warm-up, and ± one standard error of it. Values of neighbouring updates
depend on each other, so the error comes from the means of some 8 to 32 long batches:
dsgd/theory/uncertainty.py has the method and its sources. A report pools the seeds of a variant.

- **agrees**: within two standard errors.
- **2.4 standard errors off: may be chance**: so is a correct formula more often than once in 1,000
  comparisons.
- **DIFFERS by 4.1 standard errors**: farther than that; the run contradicts the formula.
- **+24%: messages and computing take time too**: the same on Ray, where the formula knows of drawn compute
  times only.
- **exact**: nothing is left to chance, and the two are equal.
- **kept**, **BROKEN**: of bounds, at any length.
- **too short to compare**: the run has fewer updates than 40 times those in which it forgets its start (in
  ASGD, those in which each worker delivers once), or than 100 times the squared skewness of its times.
- **too heavy a tail to compare**: the times have no third moment, like Pareto's for alpha up to 3, so no
  length of the run gives a standard error.
- **not compared**: the run diverged or failed, workers were lost, or its times never forget their start.

tests/theory/test_uncertainty.py holds runs of all lengths to this: correct ones look like contradictions at
most once in 1,000 comparisons, and wrong formulas do.
"""


def rows() -> list[Row]:
    """Return every row of the table."""
    return [
        *time_rows(),
        *staleness_rows(),
        *failure_rows(),
        *optimization_rows(),
        *balancing_rows(),
        *compression_rows(),
        *lie_rows(),
        *gossip_rows(),
    ]


def main(markdown: bool) -> int:
    """Print the table; return 1 if a row fails."""
    results = [row.check() for row in rows()]
    head = ("what", "formula", "value", "measured", f"± {LEVEL:.1%}", "verdict")
    table = [
        (
            r.row.what,
            r.row.formula,
            f"{r.row.value:.5g}",
            f"{r.measured:.5g}",
            f"{r.half_width + r.row.tolerance:.2g}",
            "holds" if r.holds else "FAILS",
        )
        for r in results
    ]
    if markdown:
        print(
            "# Theory against measurement\n\nMade by `make theory`; dsgd/conformance/gate.py lists the runs."
        )
        for group in dict.fromkeys(r.row.group for r in results):
            print(f"\n## {group}\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
            for line, r in zip(table, results, strict=True):
                if r.row.group == group:
                    print("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |")
        print(_READING, end="")
    else:
        widths = [max(map(len, column)) for column in zip(head, *table, strict=True)]
        for line in (head, *table):
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    return int(not all(r.holds for r in results))


if __name__ == "__main__":
    sys.exit(main(markdown="--markdown" in sys.argv[1:]))
