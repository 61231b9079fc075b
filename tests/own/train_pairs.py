"""Asynchronous SGD in pairs: two results make an update, and the staler one counts less.

Source: Zhang, Gupta, Lian and Liu 2015, "Staleness-aware async-SGD" (arXiv 1511.05950), for the weights; the
pairs and the running mean are this file's.

    on the arrival of two gradients g, h of staleness t, u:   w <- w - lr/2 ( c(t) g + c(u) h )
    c(t) = min(1, m/t),   m: running mean of the staleness of all gradients so far, at least 1

Limits: where nothing is stale it is SGD with two mini-batches a step.

How this differs from the paper: its weight is 1/t for each single gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from dsgd.config import GradientConfig
from dsgd.core.protocol import Cluster, Done, Update, start_idle
from dsgd.core.rules import Slots, TaskResult
from dsgd.core.tasks import gradient
from dsgd.core.weights import Vector, Weights
from dsgd.strategies.conformance import Laws
from dsgd.strategies.optimizers import server_rule


@dataclass(frozen=True, kw_only=True)
class Config(GradientConfig):
    mode: str = "pairs"


@dataclass(frozen=True)
class ByMeanStaleness:
    """A gradient counts min(1, m/t), with its staleness t and the mean m that the weights keep."""

    slots: ClassVar[tuple[str, ...]] = ()

    def each(
        self, g: Vector, scale: float, w: Weights, result: TaskResult, slots: Slots
    ) -> tuple[Vector, float]:
        return g, scale * min(1.0, max(1.0, w.kept) / max(1, w.version - result.read))


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, 2, ByMeanStaleness())
    while True:
        two: list[Done] = []
        while len(two) < 2:
            start_idle(cluster, gradient, w)
            if done := cluster.next_done():
                two.append(done)
        mean = w.kept or 0.0
        stale = sum(w.version - done.read for done in two) / 2
        w = cluster.combine(rule, w.keeping(mean + (stale - mean) / (w.version + 1)), two)
        start_idle(cluster, gradient, w)  # before the yield: recording never idles a worker
        yield Update(w, two)


LAWS = Laws(plain_sgd=None, exact_budget=False)
