"""Workers with their own weights, on graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from dsgd.running.quick_run import QuickRun
from dsgd.scenario.graphs import Graph, Mixing
from dsgd.theory.mixing import (
    consensus_distance,
    eigenvalues,
    matrix,
    one_peer_consensus_distance,
    ring_gap,
    spread_after_pairs,
)
from dsgd.theory.quadratics import noise_floor
from dsgd.theory.stale_gradients import asgd_mean_staleness
from dsgd.theory.times import asgd_time
from gate.row import EXPONENTIAL, Row, exactly, iterates, quadratic, stale, timed


def rows() -> Iterator[Row]:
    """Yield the rows of mixing, of consensus, and of times."""
    for name, formula, pairs in (
        ("one random pair of 16", "1 - 1/(N - 1)", 1),
        ("a random perfect matching of 16", "(N - 2)/(2(N - 1))", 8),
    ):
        yield Row(
            f"{name}: spread that is left",
            formula,
            spread_after_pairs(16, pairs),
            partial(_left_after_pairs, 16, pairs),
        )
    yield exactly(
        "one-peer exponential, N=16: spread after log2 N rounds",
        "0",
        0.0,
        lambda seed: _spread_after([Graph("exponential").one_peer(t, range(16), 0) for t in range(4)]),
    )
    yield exactly(
        "ring, N=16: 1 - mu_2",
        "2/3 (1 - cos(2 pi/N))",
        ring_gap(16),
        lambda seed: 1 - abs(eigenvalues(Graph("ring").mixing(0, range(16), 0))[1]),
    )
    formulas = {
        "before": "1/N sum_k lr^2 sigma^2/(1 - |mu_k - lr|^2)",
        "after": "1/N sum_k |lr sigma mu_k|^2/(1 - |mu_k (1 - lr)|^2)",
    }
    for graph in ("ring", "exponential"):
        mu = eigenvalues(Graph(graph).mixing(0, range(8), 0))
        for mixing, formula in formulas.items():
            yield Row(
                f"D-PSGD, {graph}, N=8, mixing {mixing}, lr .2: consensus distance",
                formula,
                consensus_distance(mu, 0.2, 1.0, 1.0, after=mixing == "after"),
                partial(_distance, "dpsgd", graph=graph, mixing=mixing),
                seeds=8,
            )
    yield Row(
        "SGP, one-peer exponential, N=8, lr .2: consensus distance",
        "lr^2 sigma^2 sum_m (1 - lr)^(2(m - 1)) (2^-m - 1/N)",
        one_peer_consensus_distance(8, 0.2, 1.0, 1.0),
        partial(_distance, "sgp"),
        seeds=8,
    )
    yield Row(
        "D-PSGD, ring, N=8, lr .2: variance of the mean",
        "lr sigma^2/(N (2 - lr))",
        noise_floor(0.2, 1.0, 1.0, num_workers=8),
        lambda seed: float(np.mean(iterates(_agreeing("dpsgd", seed))[50:] ** 2)),
        seeds=8,
    )
    yield Row(
        "AD-PSGD, complete graph, exponential, P=8: mean staleness",
        "P - 1",
        asgd_mean_staleness(8),
        stale("adpsgd", 8, 200, graph="complete", skip=400),
        seeds=8,
    )
    yield Row(
        "AD-PSGD, exponential, P=8: s an update",
        "E[X]/P",
        asgd_time(EXPONENTIAL, 8),
        timed("adpsgd", 8, 200, skip=400),
        seeds=8,
    )
    yield exactly(
        "D-PSGD, ring of 8 with one worker 3 times slower: s an update",
        "the slow worker's time",
        3.0,
        timed("dpsgd", 8, 50, "constant:1", slowdown="0=3"),
    )


def _left_after_pairs(num_workers: int, pairs: int, seed: int) -> float:
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


def _distance(mode: str, seed: int, **options: Any) -> float:
    """Return the mean consensus distance of a coordinate, after a while."""
    updates = _agreeing(mode, seed, **options).updates[50:]
    return float(np.mean([update.measured["consensus"] for update in updates]) / 100)
