"""Staleness and clock gaps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from dsgd.running.quick_run import QuickRun
from dsgd.theory.bounded_staleness import ssp_clock_gap_bound, ssp_mean_staleness, ssp_staleness_bound
from dsgd.theory.stale_gradients import (
    asgd_mean_staleness,
    asgd_mean_staleness_by_worker,
    asgd_staleness_pmf,
    k_async_mean_staleness,
    k_async_staleness_pmf,
    k_batch_async_mean_staleness,
)
from gate.row import EXPONENTIAL, Row, exactly, of, schedule, stale

_BY_GRADIENTS: dict[str, Any] = {"k": 4, "count": "gradients"}


def rows() -> Iterator[Row]:
    """Yield the rows of asynchronous modes, synchronous ones, and SSP."""
    for law in ("exponential:1", "pareto:3,1"):
        yield Row(
            f"ASGD, {law}, P=8: mean",
            "P - 1",
            asgd_mean_staleness(8),
            stale("asgd", 8, 400, law, skip=400),
        )
    for tau in (0, 7):
        yield Row(
            f"ASGD, exponential, P=8: P(staleness = {tau})",
            "(1/P)(1 - 1/P)^k",
            asgd_staleness_pmf(EXPONENTIAL, 8, tau),
            stale("asgd", 8, 400, skip=400, over=partial(_share, tau)),
        )
    for worker, expected in enumerate(asgd_mean_staleness_by_worker(3, {0: 4.0})[:2]):
        yield Row(
            f"ASGD, exponential, worker 0 of 3 four times slower: mean of worker {worker}",
            "R/r_i - 1",
            float(expected),
            of(partial(_mean_of, worker), "asgd", 3, 1000, slowdown="0=4"),
        )
    yield Row(
        "K-async, exponential, P=8, K=4: mean",
        "(P - K)/K",
        k_async_mean_staleness(8, 4),
        stale("kasync", 8, 300, k=4, skip=100),
    )
    yield Row(
        "K-async, exponential, P=8, K=4: P(staleness = 0)",
        "K/P",
        k_async_staleness_pmf(EXPONENTIAL, 8, 4, 0),
        stale("kasync", 8, 300, k=4, skip=100, over=partial(_share, 0)),
    )
    yield Row(
        "K-batch-async, exponential, P=8, K=4: mean",
        "(P - 1)/K",
        k_batch_async_mean_staleness(8, 4),
        stale("kasync", 8, 300, **_BY_GRADIENTS, skip=100),
    )
    synchronous: list[tuple[str, str, dict[str, Any]]] = [
        ("SSGD", "ssgd", {}),
        ("K-sync, K=4, rest cancelled", "ksync", {"k": 4}),
        ("K-sync, K=4, rest ignored", "ksync", {"k": 4, "rest": "ignore"}),
        ("Rennala", "rennala", {}),
    ]
    for name, mode, options in synchronous:
        yield exactly(
            f"{name}, exponential, P=8: greatest", "0", 0.0, stale(mode, 8, 50, over=max, **options)
        )
    yield exactly(
        "SSP, P=2, slack 2, times that attain it: greatest",
        "(P - 1)(2s + 1)",
        ssp_staleness_bound(2, 2),
        lambda seed: float(max(_ssp_at_its_bound(2).staleness)),
    )
    yield exactly(
        "SSP, P=2, slack 2, times that attain it: clock gap at completion",
        "s + 1",
        ssp_clock_gap_bound(2, 2),
        lambda seed: float(_ssp_at_its_bound(2).tally.clock_gap_max),
    )
    for slack in (0, 1, 2, 3, 5, 10):
        yield Row(
            f"SSP, exponential, P=8, slack {slack}: mean",
            "(P - 1)/2" if slack == 0 else "E[m^2]/E[m] - 1, m workers not blocked",
            ssp_mean_staleness(EXPONENTIAL, 8, slack),
            stale("ssp", 8, 600, slack=float(slack), skip=800),
        )


def _share(value: int, found: list[int]) -> float:
    return found.count(value) / len(found)


def _mean_of(worker: int, outcome: QuickRun) -> float:
    """Return the mean staleness of a worker's gradients, of which each makes an update."""
    ones = [update for update in outcome.updates[200:] if update.dones[0].worker == worker]
    return float(np.mean([update.staleness(update.dones[0]) for update in ones]))


def _ssp_at_its_bound(slack: int) -> QuickRun:
    """Worker 0 runs `slack` ahead and then takes long; meanwhile worker 1 does all it may."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        times = [(0, 0.01)] * slack + [(0, 1000.0)] + [(1, 1.0)] + [(1, 0.01)] * (2 * slack)
        file.write("worker,seconds\n" + "".join(f"{worker},{seconds}\n" for worker, seconds in times))
        file.flush()
        return schedule("ssp", 2, (3 * slack + 2) // 2 + 1, 0, f"trace:{file.name}", slack=float(slack))
