"""Stochastic gradient push: each worker sends shares of its weights along arcs, and divides by what it holds.

Source: Assran et al. 2019, "Stochastic gradient push for distributed deep learning" (arXiv 1811.10792),
algorithm 1; push-sum: Kempe, Dobra and Gehrke 2003, "Gossip-based computation of aggregate information".

Worker i has x_i and a number w_i, at first 1. With the column-stochastic weights P of `--graph` in round t,
by default that of one peer a round in the exponential graph:

    x_i <- x_i - lr g_i(z_i),     x_i <- sum_j P_ij x_j,   w_i <- sum_j P_ij w_j,     z_i = x_i / w_i

Nobody has to know who sends to it, and a worker may receive more than it sends: what z_i has too much of one
worker's weights, w_i takes out. The sums of x_i and of w_i are conserved; sum x_i / sum w_i is evaluated.

Limits: with P = 1 it is plain SGD; on the complete graph it is SSGD. Where P is doubly stochastic (all graphs
but random ones and some files'), w_i stays 1.

Members that leave and join: the arcs are those between members present. A worker that leaves takes its share
x_i, w_i along, which leaves the quotient of the sums a mean of those present; one that joins starts at the
mean with w_i = 1. Staleness is 0 (dsgd/strategies/gossip.py).

How this differs from the paper: momentum, if asked for, is heavy-ball, not Nesterov's; there is no overlap of
messages with later steps (its tau is 0); arcs lead forward only, where the authors' experiments alternate
(facebookresearch/stochastic_gradient_push, graph_type 0; its default, 5, leads forward).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsgd.scenario.graphs import Mixing, shares
from dsgd.strategies.gossip import Node, rounds
from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, peers

EXAMPLE = "--graph random --num-workers 8 --compute-time exponential:1"


@dataclass(frozen=True, kw_only=True)
class Config(PeerConfig):
    mode: str = "sgp"

    graph: str = "exponential"
    """Who sends to whom: ring (the next one) | exponential (one peer a round) | random (one a round) |
    complete, or a file with an arc like `0 1` in each line (docs/network.md)."""

    traits = Traits(sends="weights", has_server=False, directed=True)


@dataclass(frozen=True)
class Push:
    """Push-sum: what a worker has is x (D,) and its weight w."""

    cfg: Config
    late: bool = True
    num_bytes: None = None

    def first(self, x: Vector) -> Node:
        return x, 1.0

    def weights(self, node: Node) -> Vector:
        x, w = node
        z: Vector = x if w == 1 else x / np.float32(w)
        return z

    def mean(self, nodes: Sequence[Node]) -> Vector:
        total: Vector = nodes[0][0].copy()
        for x, _ in nodes[1:]:
            total += x
        total /= np.float32(sum(w for _, w in nodes))
        return total

    def sources(self, t: int, members: Sequence[int]) -> Mixing:
        return shares(self.cfg.edges.pushes(t, members, self.cfg.seed))

    def next(
        self, worker: int, row: Mapping[int, float], nodes: Mapping[int, Node], came: Mapping[int, Done]
    ) -> Node:
        def stepped(j: int) -> Vector:
            """Return x_j - lr g_j(z_j); without a bit of rounding if w_j is 1."""
            found: Vector = came[j].value + (nodes[j][0] - came[j].origin.vector)
            return found

        x, w = np.float32(row[worker]) * stepped(worker), row[worker] * nodes[worker][1]
        for j, share in row.items():
            if j != worker:
                x += np.float32(share) * stepped(j)
                w += share * nodes[j][1]
        return x, w


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    task = local_sgd(cfg, 1, keeps_velocity=cfg.momentum > 0)
    return rounds(cluster, w, cfg, Push(cfg), lambda _: task)


def theory(cfg: Config) -> ClosedForms:
    sources = shares(cfg.edges.pushes(0, range(cfg.num_workers), cfg.seed))
    return peers(cfg, sources, one_peer=True, late=True)


LAWS = Laws(
    deterministic={},
    limits=[
        Limit({"graph": "complete"}, "ssgd", exactly=False),
        Limit({"graph": "complete"}, "dpsgd", {"graph": "complete", "mixing": "after"}, exactly=False),
    ],
    variants=[{}, {"momentum": 0.5, "graph": "random"}, {"graph": "ring"}],
)
