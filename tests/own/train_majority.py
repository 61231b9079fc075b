"""signSGD with majority vote: each worker sends one bit a weight, and the majority decides the direction.

Source: Bernstein et al. 2018, "signSGD: compressed optimisation for non-convex problems" (arXiv 1802.04434),
algorithm 3; Bernstein et al. 2019, "signSGD with majority vote is communication efficient and fault
tolerant" (arXiv 1810.05291).

All P workers compute a gradient at the same weights; the server adds up their signs:

    w_{v+1} = w_v - lr sign( sum_i sign(g_i(w_v)) )

Limits: with P = 1 it is signSGD. Staleness is always 0, and an update takes as long as the slowest worker.

How this differs from the paper: nothing is packed, a sign travels as a float; where the votes are even a
weight stays; momentum is the server's, after the vote, and not the workers'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, timed, workers
from dsgd.theory.times import ssgd_time

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.model import Objective
    from dsgd.core.shards import Shard


@dataclass(frozen=True, kw_only=True)
class Config(GradientConfig):
    mode: str = "majority"

    quorum: int = 1
    """How many more votes one direction needs than the other; with fewer a weight stays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must lie between 1 and num_workers = {self.num_workers}"
        require(1 <= self.quorum <= self.num_workers, "quorum", self.quorum, rule)


@dataclass(frozen=True)
class Signs:
    """The signs of one mini-batch's gradient."""

    batches: ClassVar[int] = 1
    state_rows: ClassVar[int] = 0

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        losses, gradients = objective.loss_and_gradient(w, shards, steps)
        return losses, gradients.sign(), state


@dataclass(frozen=True)
class Vote:
    """A part of the server's rule: the mean sign becomes -1, 0 or 1 for each weight."""

    quorum: int
    slots: ClassVar[tuple[str, ...]] = ()

    def __call__(self, u: Vector, w: Weights, results: Sequence[TaskResult], slots: Slots) -> Vector:
        clear = np.abs(np.rint(len(results) * u)) >= self.quorum
        return np.where(clear, np.sign(u), np.float32(0))


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, cfg.num_workers, Vote(cfg.quorum))
    while True:
        dones = run_all(cluster, Signs(), w)
        w = cluster.combine(rule, w, dones)
        yield Update(w, dones)


def theory(cfg: Config) -> ClosedForms:
    return ClosedForms(staleness_mean=lambda: 0.0, s_per_update=lambda: ssgd_time(*workers(timed(cfg))))


LAWS = Laws(
    plain_sgd=None,  # a step has the same length in each weight, however small the gradient is
    convex={"lr": 0.002},
    deterministic={},
    limits=[Limit({"quorum": 3}, "majority", {"quorum": 2})],  # five votes differ by an odd number
    variants=[{}, {"quorum": 2, "momentum": 0.5}],
)
