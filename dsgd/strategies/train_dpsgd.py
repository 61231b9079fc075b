"""D-PSGD: each worker has its own weights, and averages them with its neighbours' in each round.

Source: Lian et al. 2017, "Can decentralized algorithms outperform centralized algorithms?" (arXiv
1705.09056), algorithm 1. With `--mixing after`: Chen and Sayed 2012, "Diffusion adaptation strategies" (arXiv
1111.0034), adapt then combine.

With the doubly stochastic weights W of `--graph` (dsgd/scenario/graphs.py), at once for all i:

    before:  x_i <- sum_j W_ij x_j - lr g_i(x_i)            after:  x_i <- sum_j W_ij (x_j - lr g_j(x_j))

The mean of all x_i, which is evaluated, moves as in SSGD by -lr times the mean gradient, but each gradient is
taken at its worker's weights.

Limits: with P = 1 it is plain SGD. On the complete graph, mixing after the step is SSGD; mixing before it is
SSGD where all workers share one quadratic.

Members that leave and join: the graph is that of the members present; a worker that joins starts at the mean.
Staleness is 0; a worker waits for its neighbours only (dsgd/strategies/gossip.py).

How this differs from the paper: momentum, if asked for, is each worker's own, as in its experiments; weights
travel when both ends have begun the round, not earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsgd.scenario.graphs import Mixing
from dsgd.strategies.gossip import Node, WeightsFirst, rounds
from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, peers

EXAMPLE = "--graph ring --num-workers 8 --compute-time exponential:1"


@dataclass(frozen=True, kw_only=True)
class Config(PeerConfig):
    mode: str = "dpsgd"

    mixing: Literal["before", "after"] = "before"
    """before: neighbours' weights of the round's beginning are averaged, while gradients are computed. after:
    those that the step has made."""


@dataclass(frozen=True)
class Averaging(WeightsFirst):
    """The exchange of weights with the neighbours."""

    cfg: Config
    num_bytes: None = None

    @property
    def late(self) -> bool:
        return self.cfg.mixing == "after"

    def first(self, x: Vector) -> Node:
        return (x,)

    def sources(self, t: int, members: Sequence[int]) -> Mixing:
        return self.cfg.edges.mixing(t, members, self.cfg.seed)

    def next(
        self, worker: int, row: Mapping[int, float], nodes: Mapping[int, Node], came: Mapping[int, Done]
    ) -> Node:
        if self.late:
            mixed = {j: came[j].value for j in (worker, *row)}
        else:
            mixed = {j: nodes[j][0] for j in (worker, *row)}
        # The worker's own result and what W adds to it: without neighbours not a bit changes.
        x = came[worker].value.copy()
        for j, weight in row.items():
            x += np.float32(weight) * (mixed[j] - mixed[worker])
        return (x,)


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    task = local_sgd(cfg, 1, keeps_velocity=cfg.momentum > 0)
    return rounds(cluster, w, cfg, Averaging(cfg), lambda _: task)


def theory(cfg: Config) -> ClosedForms:
    sources = cfg.edges.mixing(0, range(cfg.num_workers), cfg.seed)
    return peers(cfg, sources, late=cfg.mixing == "after")


LAWS = Laws(
    deterministic={},
    limits=[
        Limit({"graph": "complete", "mixing": "after"}, "ssgd", exactly=False),
    ],
    variants=[
        {},
        {"mixing": "after", "momentum": 0.5},
        {"graph": "exponential"},
        {"graph": "random", "mixing": "after"},
        {"graph": "complete"},
    ],
)
