"""NoLoCo: local steps, then a momentum step towards what a random pair of workers has found.

Source: Kolehmainen et al. 2025, "NoLoCo: no-all-reduce low communication training method for large models"
(arXiv 2506.10911), section 3.

From its slow weights x_i worker i takes H inner steps, to y_i, with moments that stay with it. With the
weights W of a random pairing (each 1/2; `--graph` has others), D_j = y_j - x_j and a momentum m_i:

    m_i <- a m_i + outer_lr sum_j W_ij D_j - consensus_rate (x_i - sum_j W_ij x_j),       x_i <- x_i + m_i

The last term, which DiLoCo has not, draws the pair together; nothing is ever averaged over all workers.

Limits: outer lr 1, outer momentum 0, consensus rate 1 and plain inner SGD is LocalSGD on the complete graph,
and at H = 1 D-PSGD with mixing after the step on any; on the exponential one, SGP.

Members that leave and join: pairs are made of those present, and one who is left over steps alone. A worker
that joins starts at the mean, with m_i = 0. Staleness is 0 (dsgd/strategies/gossip.py).

How this differs from the paper: it is written for replicas of one pipeline stage; routing between stages has
no counterpart here. Its code (gensyn-ai/noloco, sparse_optimizer_c.py) has one number for outer lr and
consensus rate, which is the default here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from dsgd.scenario.graphs import Mixing
from dsgd.strategies.gossip import Node, WeightsFirst, rounds
from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, peers

EXAMPLE = "--local-steps 16 --num-workers 8 --compute-time exponential:1 --workload digits"
TUNE = {"outer_lr": (0.3, 0.7, 1.0), "outer_momentum": (0.0, 0.5, 0.9)}


@dataclass(frozen=True, kw_only=True)
class Config(PeerConfig):
    mode: str = "noloco"

    graph: str = "random"
    """Who exchanges with whom after each round of local steps: random (pairs) | ring | exponential (one peer
    a round) | complete, or a file with an edge like `0 1` in each line (docs/network.md)."""

    local_steps: Annotated[int, Ge(1)] = 8
    """H, the mini-batches each worker takes between two exchanges."""

    lr: Annotated[float, FINITE, Gt(0)] = 0.01
    """Step size of the workers' own steps."""

    momentum: Annotated[float, Ge(0), Lt(1), OnlyWith(inner="sgd")] = 0.0
    """Heavy-ball momentum of the workers' own steps, 0 to below 1."""

    inner: Literal["adamw", "sgd"] = "adamw"
    """The workers' optimizer; --momentum is that of sgd. adamw: betas .9 and .999, weight decay .01."""

    outer_lr: Annotated[float, FINITE, Gt(0)] = 0.7
    """Step size towards what the pair has found."""

    outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.5
    """a, of the momentum that each worker keeps."""

    consensus_rate: Annotated[float | None, FINITE, Gt(0)] = None
    """How strongly the slow weights of a pair are drawn together. None: as outer_lr."""

    def task(self, h: int) -> LocalAdamW | LocalSGD:
        return inner_steps(self, self.inner, h)


@dataclass(frozen=True)
class Pairing(WeightsFirst):
    """The exchange between two local rounds: what a worker has is x (D,) and its momentum m (D,)."""

    cfg: Config
    num_bytes: int
    late: bool = field(default=True, init=False)

    def first(self, x: Vector) -> Node:
        return x, np.zeros_like(x)

    def sources(self, t: int, members: Sequence[int]) -> Mixing:
        return self.cfg.edges.one_peer(t, members, self.cfg.seed)

    def next(
        self, worker: int, row: Mapping[int, float], nodes: Mapping[int, Node], came: Mapping[int, Done]
    ) -> Node:
        x, m = nodes[worker]
        moved = own = came[worker].value - x
        apart = np.zeros_like(x)
        for j, weight in row.items():
            other = nodes[j][0]
            moved = moved + np.float32(weight) * ((came[j].value - other) - own)
            apart += np.float32(weight) * (x - other)
        rate = self.cfg.outer_lr if self.cfg.consensus_rate is None else self.cfg.consensus_rate
        m = self.cfg.outer_momentum * m + self.cfg.outer_lr * moved - rate * apart
        return x + m, m


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    both_vectors = 2 * (w.vector.nbytes + cfg.timing.padding_bytes)  # the slow weights, and how they moved
    return rounds(cluster, w, cfg, Pairing(cfg, both_vectors), cfg.task, cfg.local_steps)


def theory(cfg: Config) -> ClosedForms:
    sources = cfg.edges.one_peer(0, range(cfg.num_workers), cfg.seed)
    return peers(cfg, sources, h=cfg.local_steps, one_peer=True, late=True)


PLAIN = {"inner": "sgd", "momentum": 0.0, "outer_lr": 1.0, "outer_momentum": 0.0}
LAWS = Laws(
    plain_sgd=PLAIN,
    deterministic={},
    limits=[
        Limit(
            {**PLAIN, "graph": "complete", "local_steps": 7},
            "localsgd",
            {"local_steps": 7, "momentum": 0.0},
            exactly=False,
        ),
        Limit(
            {**PLAIN, "graph": "random", "local_steps": 1},
            "dpsgd",
            {"graph": "random", "mixing": "after", "momentum": 0.0},
            exactly=False,
        ),
        Limit({**PLAIN, "graph": "exponential", "local_steps": 1}, "sgp", {"momentum": 0.0}, exactly=False),
    ],
    variants=[
        {"local_steps": 5},
        {"local_steps": 5, "inner": "sgd", "momentum": 0.5, "graph": "exponential"},
    ],
)
