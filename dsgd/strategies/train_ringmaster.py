"""Ringmaster ASGD: asynchronous SGD that does without gradients which are too old.

Source: Maranjyan, Tyurin and Richtarik 2025, "Ringmaster ASGD: the first asynchronous SGD with optimal time
complexity" (arXiv 2501.16168), algorithms 4 (ignoring) and 5 (stopping).

    on the arrival of g_i(w_{v - tau}):   w_{v+1} = w_v - lr g_i    if tau < R,   else it is thrown away

With `--rest cancel` a worker whose gradient has become too old is stopped and starts anew at the current
weights, without waiting for a result that would be thrown away.

Limits: R = inf is ASGD; R = 1 applies only fresh gradients, like Rennala with S = 1. No staleness reaches R.

How this differs from the paper: the run's budget counts the gradients that were applied; the others are
reported as `wasted`. R is given, not derived from the noise and the target accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dsgd.cluster import Cluster, Done, Update, start_all
from dsgd.config import AsynchronousConfig, require
from dsgd.strategies.conformance import Laws, Limit
from dsgd.theory.closed_forms import ClosedForms
from dsgd.work.optim import SGD, Weights
from dsgd.work.tasks import gradient


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "ringmaster"

    delay_bound: float = 8.0
    """R: a gradient counts only if fewer than R updates came since its weights were read; inf is ASGD."""

    rest: Literal["cancel", "ignore"] = "cancel"
    """What becomes of a task that is too old. cancel: stopped at once. ignore: thrown away when it ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = float(self.delay_bound)
        whole = bound >= 1 and (bound == math.inf or bound.is_integer())
        require(whole, "delay-bound", self.delay_bound, "must be a whole number of at least 1, or inf")


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    sgd = SGD(lr=cfg.lr_for(1), momentum=cfg.momentum)
    read = dict.fromkeys(cluster.workers, w.version)  # which version each worker's task has read
    late: list[Done] = []
    start_all(cluster, gradient, w)
    while True:
        done = cluster.next_done()
        staleness = w.version - done.read
        fresh = staleness < cfg.delay_bound
        if fresh:
            w = sgd.step(w, done.value, cfg.weight(staleness))
        else:
            late.append(done)
        if fresh and cfg.rest == "cancel":
            for worker in list(cluster.in_flight):
                if w.version - read[worker] >= cfg.delay_bound:
                    cluster.cancel(worker)
        for worker in cluster.workers:
            if worker not in cluster.in_flight:
                read[worker] = w.version
        start_all(cluster, gradient, w)
        if fresh:
            yield Update(w, [done], ignored=late)
            late = []


def theory(cfg: Config) -> ClosedForms:
    return ClosedForms(staleness_max=lambda: cfg.delay_bound - 1)


LAWS = Laws(
    limits=[
        Limit({"delay_bound": math.inf}, "asgd"),
        Limit({"delay_bound": math.inf, "rest": "ignore"}, "asgd"),
        Limit({"delay_bound": 1.0, "rest": "ignore"}, "rennala", {"batches": 1}),
        Limit({"delay_bound": 1.0}, "ksync", {"k": 1}),
    ]
)
