"""A bound on how far workers may run ahead: an answer to the task of lab 3.

It is train_asgd.py with a gate: before a worker starts again, its clock is compared with the slowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsgd.strategy import AsynchronousConfig, Cluster, Update, Weights, gradient, require, server_rule


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "bounded"

    slack: float = 3.0
    """Mini-batches a worker may be ahead of the slowest when it starts one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.slack >= 0, "slack", self.slack, "must be at least 0")


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule, clocks = server_rule(cfg, gradients=1), cluster.clocks
    for worker in cluster.workers:
        cluster.start(worker, gradient, w)
    while True:
        done = cluster.next_done()
        assert done
        w = cluster.combine(rule, w, [done])
        for worker in cluster.workers:
            idle = worker not in cluster.in_flight
            if idle and clocks[worker] - clocks.slowest <= cfg.slack:
                cluster.start(worker, gradient, w)
        yield Update(w, [done])
