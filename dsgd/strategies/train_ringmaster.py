"""Ringmaster ASGD: asynchronous SGD that discards gradients which are too old.

Source: Maranjyan, Tyurin and Richtarik 2025, "Ringmaster ASGD: the first asynchronous SGD with optimal time
complexity" (arXiv 2501.16168), algorithms 4 (ignoring) and 5 (stopping).

    on the arrival of g_i(w_{v - tau}):   w_{v+1} = w_v - lr g_i    if tau < R,   else it is discarded

With `--rest cancel` a worker whose gradient has become too old is stopped and starts again at the current
weights, without waiting for a result that would be discarded.

Limits: R = inf is ASGD; R = 1 applies only fresh gradients, like Rennala with S = 1. No staleness reaches R.

Members that leave and join: as in ASGD; R bounds the staleness whoever leaves or joins.

How this differs from the paper: the run's budget counts the gradients that were applied; the others are
reported as `wasted`. R is given, not derived from the noise and the target accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms

EXAMPLE = "--delay-bound 4 --num-workers 8 --compute-time exponential:1 --slowdown 0=20"


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "ringmaster"

    delay_bound: Annotated[float | None, whole_or_inf(1)] = None
    """R: a gradient counts only if fewer than R updates came since its weights were read; inf is ASGD. None:
    twice the number of workers."""

    rest: Literal["cancel", "ignore"] = "cancel"
    """What happens to a task that is too old. cancel: stopped at once. ignore: discarded when it ends."""

    @property
    def bound(self) -> float:
        return 2.0 * self.num_workers if self.delay_bound is None else self.delay_bound


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, gradients=1)
    late: list[Done] = []
    while True:
        start_all(cluster, gradient, w)
        done = cluster.next_done()
        if not done:
            continue
        if w.version - done.read >= cfg.bound:
            late.append(done)
            continue
        w = cluster.combine(rule, w, [done])
        if cfg.rest == "cancel":
            cancel_older(cluster, w.version - cfg.bound)
        start_all(cluster, gradient, w)
        yield Update(w, [done], ignored=late)
        late = []


def cancel_older(cluster: Cluster, version: float) -> None:
    """Cancel the tasks that have read this version or an older one; those started first have read the
    oldest.
    """
    while cluster.in_flight and cluster.reading(worker := next(iter(cluster.in_flight))).version <= version:
        cluster.cancel(worker)


def theory(cfg: Config) -> ClosedForms:
    return ClosedForms(staleness_max=lambda: cfg.bound - 1)


LAWS = Laws(
    limits=[
        Limit({"delay_bound": math.inf}, "asgd"),
        Limit({"delay_bound": math.inf, "rest": "ignore"}, "asgd"),
        Limit({"delay_bound": 1.0, "rest": "ignore"}, "rennala", {"batches": 1}),
        Limit({"delay_bound": 1.0}, "ksync", {"k": 1}),
    ],
    variants=[
        {"delay_bound": 4.0},
        {"delay_bound": 3.0, "rest": "ignore", "momentum": 0.5},
        {"delay_bound": 3.0, "staleness_lr": "inverse"},
    ],
)
