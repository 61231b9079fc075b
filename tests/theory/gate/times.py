"""Time per update and per step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import mul
from typing import Any

from dsgd.core.time_laws import parse_law
from dsgd.running.quick_run import QuickRun
from dsgd.theory.bounded_staleness import ssp_steps_per_s
from dsgd.theory.exchanges import all_reduce_time, round_bytes, served_round_time
from dsgd.theory.islands import island_collectives_time
from dsgd.theory.queueing import server_updates_per_s
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
from gate.row import EXPONENTIAL, Row, exactly, of, timed

_MB = 1_000_000
_SERVICE = "exponential:.1"


def rows() -> Iterator[Row]:
    """Yield the rows of servers' modes, of exchanges and of islands."""
    yield from _of_servers()
    yield from _of_slack()
    yield from _of_exchanges()
    yield from _of_islands()


def _of_servers() -> Iterator[Row]:
    for law in ("exponential:1", "shifted-exponential:1,1"):
        for k in (8, 4, 1):
            yield Row(
                f"K-sync, {law}, P=8, K={k}: s an update",
                "shift + H_P - H_{P-K}",
                k_sync_time(parse_law(law), 8, k),
                timed("ksync", 8, 200 * k // 8 + 1, law, k=k),
            )
    for law in ("pareto:3,1", "lognormal:1,.5", "uniform:.5,1.5"):
        yield Row(
            f"K-sync, {law}, P=8, K=4: s an update",
            "mean of the K-th of P draws",
            k_sync_time(parse_law(law), 8, 4),
            timed("ksync", 8, 100, law, k=4),
        )
    for k in (4, 8):
        yield Row(
            f"K-batch-sync, exponential, P=8, K={k}: s an update",
            "K/P",
            k_batch_sync_time(EXPONENTIAL, 8, k),
            timed("ksync", 8, 25 * k, k=k, count="gradients"),
        )
    for law in ("exponential:1", "pareto:3,1"):
        yield Row(
            f"ASGD, {law}, P=8: s an update",
            "E[X]/P",
            asgd_time(parse_law(law), 8),
            timed("asgd", 8, 400, law, skip=800),
        )
    yield Row(
        "K-batch-async, exponential, P=8, K=4: s an update",
        "K E[X]/P",
        k_batch_async_time(EXPONENTIAL, 8, 4),
        timed("kasync", 8, 400, k=4, count="gradients", skip=200),
    )
    yield Row(
        "K-async, exponential, P=8, K=4: s an update",
        "H_P - H_{P-K}",
        k_async_time(EXPONENTIAL, 8, 4),
        timed("kasync", 8, 200, k=4, skip=100),
    )
    yield Row(
        "backup workers, exponential, 96 of 100: s an update",
        "H_{N+b} - H_b",
        backup_workers_time(EXPONENTIAL, 96, 4),
        timed("ksync", 100, 50, backup=4),
    )
    yield Row(
        "SSGD, exponential, P=100: s an update",
        "H_P",
        ssgd_time(EXPONENTIAL, 100),
        timed("ssgd", 100, 50),
    )
    for h in (1, 2, 4, 8, 16, 100):
        yield Row(
            f"LocalSGD, exponential, P=8, H={h}: s a local step",
            "E[max of P Erlang(H)]/H",
            local_sgd_time_per_step(EXPONENTIAL, 8, h),
            timed("localsgd", 8, 60 * h, local_steps=h, then=partial(mul, 1 / h)),
        )


def _of_slack() -> Iterator[Row]:
    for slack in (0, 3, 10, 100):
        given: dict[str, Any] = {"slack": float(slack), "slowdown": "0=4"}
        yield exactly(
            f"SSP, one of 8 workers 4 times slower, slack {slack}: s a step",
            "the slow worker's time",
            4.0,
            timed("ssp", 8, 800, "constant:1", **given, skip=3200, then=partial(mul, 8)),
        )
    for slack in (0, 1, 2, 3, 5, 10):
        yield Row(
            f"SSP, exponential, P=8, slack {slack}: steps a second of each worker",
            "1/H_P" if slack == 0 else "Markov chain of the clocks",
            ssp_steps_per_s(EXPONENTIAL, 8, slack),
            timed("ssp", 8, 300, slack=float(slack), skip=800, then=lambda s: 1 / (8 * s)),
        )
    yield Row(
        "SSP, exponential, P=2, slack 3: steps a second of each worker",
        "birth-death chain of the clocks' difference",
        ssp_steps_per_s(EXPONENTIAL, 2, 3),
        timed("ssp", 2, 600, slack=3.0, skip=200, then=lambda s: 1 / (2 * s)),
    )
    for workers in (1, 8):
        yield Row(
            f"a server of .1 s a push, exponential, P={workers}: updates a second",
            "(1 - p_0)/S, machine repair",
            server_updates_per_s(EXPONENTIAL, parse_law(_SERVICE), workers),
            timed("asgd", workers, 3200 // workers, server_time=_SERVICE, skip=400, then=lambda s: 1 / s),
        )


def _of_exchanges() -> Iterator[Row]:
    """Yield rows of synchronous rounds: messages of 1 MB, links of 10 MB/s each way, 20 ms of latency."""
    latency_s, rate = 0.02, 1e7
    links: dict[str, Any] = {"padding_mb": 1.0, "latency_s": latency_s, "bytes_per_s": rate}
    ways = {
        "allreduce": ("direct", "2 alpha + 2 (N-1)/N n/B"),
        "allreduce:ring": ("ring", "2 (N-1) (alpha + n/NB)"),
        "allreduce:halving": ("halving", "2 log2(N) alpha + 2 (N-1)/N n/B"),
    }
    for topology, (way, formula) in ways.items():
        for law, rounds, seeds in (("exponential:1", 100, 20), ("constant:1", 5, 1)):
            yield Row(
                f"SSGD, {topology}, {law}, P=8: s an update",
                f"E[max X] + {formula}",
                ssgd_time(parse_law(law), 8) + all_reduce_time(way, 8, _MB, latency_s, rate),
                timed("ssgd", 8, rounds, law, topology=topology, **links),
                seeds,
            )
    for servers in (1, 2, 8):
        served: dict[str, Any] = {"topology": f"sharded:{servers}", "server_bytes_per_s": rate}
        yield exactly(
            f"SSGD, {servers} server{'s' * (servers > 1)}, constant:1, P=8: s an update",
            "X + 2 alpha + max(Nx, y) + max(x, y), x = n/SC, y = n/B",
            1 + served_round_time(8, _MB, latency_s, rate, rate, servers),
            timed("ssgd", 8, 5, "constant:1", **served, **links),
        )
    yield Row(
        "LocalSGD, allreduce, exponential, P=8, H=4: s an update",
        "H E[max of P Erlang(H)]/H + 2 alpha + 2 (N-1)/N n/B",
        4 * local_sgd_time_per_step(EXPONENTIAL, 8, 4) + all_reduce_time("direct", 8, _MB, latency_s, rate),
        timed("localsgd", 8, 240, local_steps=4, topology="allreduce", **links),
    )
    for topology in ("server", "sharded:2", *ways):
        yield exactly(
            f"SSGD, {topology}, P=8: MB an update, all links",
            "2 (N-1) n" if topology in ways else "2 N n",
            round_bytes(8, _MB, all_reduce=topology in ways) / 1e6,
            of(_megabytes, "ssgd", 8, 5, topology=topology, padding_mb=1.0),
        )


def _megabytes(outcome: QuickRun) -> float:
    """Return MB sent per update, evaluations excluded."""
    moved = outcome.cluster.traffic.by_direction
    return (sum(moved.values()) - moved["fetched"]) / len(outcome.updates) / 1e6


def _of_islands() -> Iterator[Row]:
    """Yield rows of workers of 4 ranks: weights of 1 MB, 10 MB/s between ranks, 5 ms of latency."""
    latency_s, rate = 0.005, 1e7
    ranks: dict[str, Any] = {
        "padding_mb": 1.0,
        "rank_link": f"{rate},{latency_s}",
        "ranks_per_worker": 4,
    }
    for parallel, copies, law, formula in (
        ("fsdp", 1, "constant:4", "3 (G-1) (alpha + n/GB)"),
        ("fsdp", 1, "lognormal:4,.5", "3 (G-1) (alpha + n/GB)"),
        ("hsdp:2", 2, "constant:4", "3 (S-1) (alpha + n/SB) + 2 (R-1) (alpha + n/GB)"),
        ("ddp", 4, "constant:4", "2 (G-1) (alpha + n/GB)"),
    ):
        yield Row(
            f"SSGD, {law}, P=8 islands of 4 ranks, {parallel}: s an update",
            f"E[max X]/G + {formula}",
            ssgd_time(parse_law(law), 8) / 4 + island_collectives_time(4, copies, _MB, latency_s, rate),
            timed("ssgd", 8, 100, law, parallel=parallel, **ranks),
            1 if law == "constant:4" else 20,
        )
