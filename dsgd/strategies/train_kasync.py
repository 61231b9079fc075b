"""K-async SGD: average K gradients per update, at whatever weights they were computed.

Source: Dutta et al. 2018 (arXiv 1803.01113), section 2.1 (K-async and K-batch-async); Zhang et al. 2015,
"Staleness-aware async-SGD" (arXiv 1511.05950), section 3 (n-softsync). FedBuff's buffer (Nguyen et al. 2022,
arXiv 2106.06639) is the same thing as K-batch-async, with local steps instead of gradients.

    w_{v+1} = w_v - lr/K  sum over K arrivals of g_i(w_{v - tau_i})

A worker that has pushed waits for the update (K-async, so the K gradients are from K workers); with `--count
gradients` (K-batch-async) it goes on at once, at the weights there are.

Limits: K = 1 is ASGD; K = P counting workers is SSGD. K-async: mean staleness (P - K)/K, and P(0) = K/P for
exponential times. K-batch-async: mean staleness (P - 1)/K, and an update every K E[X]/P, whatever the law.

Members that leave and join: an update averages K gradients, or fewer where all members have delivered theirs.
A worker that joins starts with the next update; with `--count gradients`, at once.

How this differs from the papers: the K-th gradient's worker fetches the new weights, like all workers that
wait: pushing and fetching is one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dsgd.strategy import *
from dsgd.theory.closed_forms import (
    ClosedForms,
    delivery_cycle,
    equal_workers,
    only_computing,
    timed,
    workers,
)
from dsgd.theory.stale_gradients import (
    k_async_mean_staleness,
    k_async_staleness_pmf,
    k_batch_async_mean_staleness,
)
from dsgd.theory.times import k_async_time, k_batch_async_time

EXAMPLE = "--k 4 --num-workers 8 --compute-time pareto:1.5,1"


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "kasync"

    k: int | None = None
    """K, the gradients that are averaged in an update. None: half of the workers, rounded up."""

    count: Literal["workers", "gradients"] = "workers"
    """workers: a worker that has pushed waits for the update. gradients: it goes on at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = self.num_workers if self.count == "workers" else self.budget
        rule = f"must lie between 1 and {most}; choose such a K, or add workers"
        require(self.k is None or 1 <= self.k <= most, "k", self.k, rule)

    @property
    def results_per_update(self) -> int:
        """K."""
        return self.k or (self.num_workers + 1) // 2


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    k = cfg.results_per_update
    rule = server_rule(cfg, gradients=k)
    while True:
        dones: list[Done] = []
        while len(dones) < k:
            if cfg.count == "gradients" or not (dones or cluster.in_flight):
                start_all(cluster, gradient, w)
            if dones and not cluster.in_flight:  # fewer members are present
                break
            if done := cluster.next_done():
                dones.append(done)
        w = cluster.combine(rule, w, in_worker_order(dones))
        start_all(cluster, gradient, w)
        yield Update(w, dones)


def theory(cfg: Config) -> ClosedForms:
    p, k = cfg.num_workers, cfg.results_per_update

    def memory() -> float:
        return max(1.0, delivery_cycle(cfg) / k)

    if cfg.count == "gradients":

        def s_per_update() -> float:
            law, _, slowdown = workers(timed(cfg))
            return k_batch_async_time(law, p, k, slowdown)

        return ClosedForms(
            staleness_mean=lambda: k_batch_async_mean_staleness(p, k),
            s_per_update=s_per_update,
            memory=memory,
        )
    return ClosedForms(
        staleness_mean=lambda: k_async_mean_staleness(p, k),
        staleness_pmf=lambda tau: k_async_staleness_pmf(*equal_workers(only_computing(cfg)), k, tau),
        s_per_update=lambda: k_async_time(*equal_workers(timed(cfg)), k),
        memory=memory,
    )


LAWS = Laws(
    exact_budget=False,
    limits=[
        Limit({"k": 1}, "asgd"),
        Limit({"k": 1, "count": "gradients"}, "asgd"),
        Limit({"k": 5}, "ssgd"),
        Limit({}, "kasync", {"k": 3}),
        Limit({"staleness_lr": "threshold:1"}, "kasync", {"staleness_lr": "inverse"}),
    ],
    variants=[{}, {"k": 2, "count": "gradients", "momentum": 0.5}, {"k": 4, "staleness_lr": "inverse"}],
)
