"""Synchronous SGD.

Source: Chen et al. 2016, "Revisiting distributed synchronous SGD" (arXiv 1604.00981), section 2;
Dekel et al. 2012, "Optimal distributed online prediction using mini-batches" (arXiv 1012.1367).

All P workers compute a gradient at the same weights, and the server waits for the last of them:

    w_{v+1} = w_v - lr/P  sum_i g_i(w_v)

Limits: with P = 1 it is plain SGD; on P workers it is plain SGD with a P times larger mini-batch.
Staleness is always 0; an update takes as long as the slowest of P workers.

Members that leave and join: a round averages the gradients of the members that are still there, and is
repeated if none is; a worker that joins takes part from the next round on.

How this differs from the papers: the server adds the gradients (in worker order, so that the sum does
not depend on the order of arrival). With `--topology allreduce` the workers add them, to the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsgd.strategy import *
from dsgd.theory import closed_forms as th
from dsgd.theory import disturbances, failures, laws_of_times, times

EXAMPLE = "--momentum 0.9 --num-workers 8 --compute-time exponential:1"


@dataclass(frozen=True, kw_only=True)
class Config(GradientConfig):
    mode: str = "ssgd"

    traits = Traits(sends="gradients", waits_for_all=True)


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, gradients=cfg.num_workers)
    while True:
        dones = run_all(cluster, gradient, w)
        w = cluster.combine(rule, w, dones)
        yield Update(w, dones)
        del dones  # P gradients: not kept while the next are computed


def theory(cfg: Config) -> th.ClosedForms:
    return th.ClosedForms(
        staleness_mean=lambda: 0.0,
        s_per_update=lambda: times.ssgd_time(*th.workers(th.known_times(cfg))) + th.exchange_s(cfg),
        s_per_update_disturbed=lambda: failures.ssgd_time_on_hosts(
            *th.equal_workers(th.timed(cfg)), disturbances.shared_hosts(cfg)
        ),
        run_s=lambda: cfg.steps * times.ssgd_time(*th.workers(th.timed(cfg))),
        memory=lambda: laws_of_times.memory_steps(cfg.timing.compute_law),
        skewness=lambda: th.slowest_skewness(cfg),
    )


LAWS = Laws(
    deterministic={},
    variants=[{}, {"momentum": 0.9}],
)
