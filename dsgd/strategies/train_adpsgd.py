"""AD-PSGD: after every mini-batch a worker averages its weights with a random neighbour's; nobody waits.

Source: Lian et al. 2018, "Asynchronous decentralized parallel stochastic gradient descent" (arXiv
1710.06952), algorithm 1.

Worker i has its own weights x_i, at which it computes; meanwhile others may average theirs with them. When
its gradient, taken at what x_i then was, is there, and j is a random neighbour of i in `--graph`, at once:

    x_i, x_j <- (x_i + x_j)/2,        x_i <- x_i - lr g_i(x_i as it was)

Each gradient is an update; the mean of all x_i, which is evaluated, moves by -lr g_i/P. Staleness counts the
updates between reading and applying, as the paper's tau does: it averages P - 1 whatever the speeds.

Limits: with P = 1 it is plain SGD.

Members that leave and join: the graph is that of those who are present. A worker that joins starts at the
mean; one that leaves takes its weights along.

How this differs from the paper: a worker waits for what travels to it after each step, where the paper
overlaps that with the next gradient; so averaging is atomic in any graph, not in bipartite ones alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, asynchronous

EXAMPLE = "--graph complete --num-workers 8 --compute-time exponential:1 --slowdown 0=10"


@dataclass(frozen=True, kw_only=True)
class Config(PeerConfig):
    mode: str = "adpsgd"


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    task = local_sgd(cfg, 1, keeps_velocity=cfg.momentum > 0)
    while True:
        start_own(cluster, task, w)
        if done := cluster.next_done():
            w = averaged(cluster, w, done, cfg)
            start_own(cluster, task, w)  # before the yield: recording never idles a worker
            yield Update(w, [done], measured=consensus_now_and_then(w))


def own_weights(cluster: Cluster, w: Weights) -> dict[int, Vector]:
    """Return the weights (D,) of each member; those of a new one are the mean."""
    x: dict[int, Vector] = w.kept or {}
    if tuple(x) != tuple(cluster.workers):
        x = {worker: x.get(worker, w.vector) for worker in cluster.workers}
    return x


def start_own(cluster: Cluster, task: Task, w: Weights) -> None:
    """Start every idle worker at its own weights."""
    x = own_weights(cluster, w)
    for worker in cluster.idle:
        cluster.start(worker, task, Weights(x[worker], w.version))


def averaged(cluster: Cluster, w: Weights, done: Done, cfg: Config) -> Weights:
    """Return the next version: a worker has averaged with a neighbour, and has taken its step."""
    x, i = own_weights(cluster, w), done.worker
    j = cfg.edges.peer(i, done.step, tuple(x), cfg.seed)
    if j is None:
        both = x[i]
    else:
        both = (x[i] + x[j]) * np.float32(0.5)
        both.setflags(write=False)
        cluster.travel(j, i)
        cluster.travel(i, j)
    after = x | {i if j is None else j: both, i: done.value + (both - done.origin.vector)}
    after[i].setflags(write=False)
    if is_measured(w.version + 1, len(after)):
        centre = mean(after.values())
    else:  # averaging has left the mean alone: it moves by the step, not by all weights' rounding
        centre = w.vector + (done.value - done.origin.vector) / np.float32(len(after))
    return w.replaced(centre).keeping(after)


def is_measured(version: int, members: int) -> bool:
    """Whether all workers' weights are looked at: once for as many updates as there are workers."""
    return version % members == 0


def consensus_now_and_then(w: Weights) -> dict[str, float]:
    x = w.kept
    return {"consensus": consensus(list(x.values()), w.vector)} if is_measured(w.version, len(x)) else {}


def theory(cfg: Config) -> ClosedForms:
    return asynchronous(cfg)


LAWS = Laws(
    variants=[{}, {"graph": "complete", "momentum": 0.5}, {"graph": "exponential"}],
)
