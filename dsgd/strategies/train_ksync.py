"""K-sync SGD: wait for the first K of P workers, not for the slowest.

Source: Dutta et al. 2018, "Slow and stale gradients can win the race" (arXiv 1803.01113), section 2.1
(K-sync and K-batch-sync); Chen et al. 2016, "Revisiting distributed synchronous SGD" (arXiv 1604.00981),
section 3 (backup workers: K = P - b).

All workers start at the same weights; the server averages the first K gradients and does not wait for
the rest:

    w_{v+1} = w_v - lr/K  sum over the first K of g_i(w_v)

With `--count gradients` (K-batch-sync) a worker that has delivered starts another mini-batch at the same
weights, and the first K gradients count, from any worker.

Limits: K = P is SSGD. Staleness is always 0. An update takes the K-th smallest of P times; for
exponential times H_P - H_{P-K}, and K/P when gradients are counted.

Members that leave and join: an update averages K gradients, or fewer where all members have delivered theirs;
a worker that joins takes part at once.

How this differs from the papers: `--rest cancel` stops the slow workers as they do; `--rest ignore` lets
them finish, discards their results and starts them again, as a cluster must where a task cannot be stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dsgd.strategy import *
from dsgd.theory.assumptions import need
from dsgd.theory.closed_forms import ClosedForms, equal_workers, timed
from dsgd.theory.laws_of_times import memory_steps
from dsgd.theory.order_statistics import order_statistic_skewness
from dsgd.theory.times import k_batch_sync_time, k_sync_time

EXAMPLE = "--backup 2 --num-workers 8 --compute-time pareto:1.5,1"


@dataclass(frozen=True, kw_only=True)
class Config(GradientConfig):
    mode: str = "ksync"

    k: int | None = None
    """K, the results that make an update. None: num_workers - backup."""

    backup: int = 0
    """b, the backup workers: K = num_workers - b."""

    rest: Literal["cancel", "ignore"] = "cancel"
    """What happens to the other workers' tasks. cancel: stopped at once. ignore: discarded when they end."""

    count: Literal["workers", "gradients"] = "workers"
    """workers: K different workers. gradients: K mini-batches, a fast worker may give several."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must lie between 0 and num_workers - 1 = {self.num_workers - 1}; lower it or add workers"
        require(0 <= self.backup < self.num_workers, "backup", self.backup, rule)
        rule = "is an alternative to --backup; give only one"
        require(self.k is None or not self.backup, "k", self.k, rule)
        most = self.num_workers if self.count == "workers" else self.budget
        rule = f"must lie between 1 and {most}; choose such a K, or add workers"
        require(self.k is None or 1 <= self.k <= most, "k", self.k, rule)

    @property
    def results_per_update(self) -> int:
        """K."""
        return self.k or self.num_workers - self.backup


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    k = cfg.results_per_update
    rule = server_rule(cfg, gradients=k)
    while True:
        start_all(cluster, gradient, w)
        dones: list[Done] = []
        late: list[Done] = []
        while len(dones) < k and (cluster.in_flight or not dones):  # fewer if fewer members are present
            done = cluster.next_done()
            if not done:  # new members take part at once; those that have delivered wait
                start_all(cluster, gradient, w, besides={done.worker for done in dones})
                continue
            fresh = done.read == w.version
            (dones if fresh else late).append(done)
            if (not fresh or cfg.count == "gradients") and len(dones) < k and done.worker in cluster.idle:
                cluster.start(done.worker, gradient, w)
        if cfg.rest == "cancel":
            for worker in list(cluster.in_flight):
                cluster.cancel(worker)
        w = cluster.combine(rule, w, in_worker_order(dones))
        yield Update(w, dones, ignored=late)


def theory(cfg: Config) -> ClosedForms:
    k = cfg.results_per_update
    known = k_sync_time if cfg.count == "workers" else k_batch_sync_time

    def s_per_update() -> float:
        afresh = cfg.rest == "cancel" or (k == cfg.num_workers and cfg.count == "workers")
        need(afresh, "all workers must start at the new weights")
        return known(*equal_workers(timed(cfg)), k)

    return ClosedForms(
        staleness_mean=lambda: 0.0,
        s_per_update=s_per_update,
        memory=lambda: memory_steps(cfg.timing.compute_law),
        skewness=lambda: order_statistic_skewness(
            cfg.timing.compute_law, min(k, cfg.num_workers), cfg.num_workers
        ),
    )


LAWS = Laws(
    deterministic={},
    exact_budget=False,
    limits=[
        Limit({"k": 5}, "ssgd"),
        Limit({"k": 5, "rest": "ignore"}, "ssgd"),
        Limit({"backup": 0}, "ssgd"),
        Limit({"backup": 2}, "ksync", {"k": 3}),
        Limit({"backup": 2, "rest": "ignore"}, "ksync", {"k": 3, "rest": "ignore"}),
    ],
    variants=[
        {"k": 3},
        {"backup": 2, "rest": "ignore", "momentum": 0.5},
        {"k": 4, "count": "gradients"},
        {"k": 4, "count": "gradients", "rest": "ignore"},
    ],
)
