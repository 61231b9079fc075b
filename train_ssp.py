"""Stale-synchronous parallel SGD.

Source: Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel parameter
server" (NIPS 26), section 2.

A worker's clock counts its finished mini-batches. Each gradient is applied as it comes (as in ASGD),
but a worker may start its next mini-batch only while it is at most `slack` ahead of the slowest:

    start worker i  iff  clock_i - min_j clock_j <= slack

Limits: slack = inf is ASGD; slack = 0 is bulk-synchronous, SSGD with summed gradients (and so with a P
times larger step). Staleness is at most (P - 1)(2 slack + 1), and one permanently slow worker holds
all others to its rate, whatever the slack.

Members that leave and join: only the members' clocks count, so a worker that leaves holds nobody up;
one that joins starts at once, with the slowest clock.

How this differs from the paper: the server sends whole vectors at the start of each mini-batch, so a
worker always reads the newest weights there are, never an older cached copy that the bound would
still allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from dsgd.config import AsynchronousConfig, whole_or_inf
from dsgd.core.protocol import Cluster, Update, start_idle
from dsgd.core.tasks import gradient
from dsgd.core.weights import Weights
from dsgd.strategies.conformance import Laws, Limit
from dsgd.strategies.optimizers import server_rule
from dsgd.theory.bounded_staleness import (
    ssp_clock_gap_bound,
    ssp_mean_staleness,
    ssp_memory,
    ssp_staleness_bound,
    ssp_steps_per_s,
)
from dsgd.theory.closed_forms import ClosedForms, equal_workers, same_members, timed, workers

EXAMPLE = "--slack 2 --num-workers 8 --compute-time exponential:1 --slowdown 0=4"


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "ssp"

    slack: Annotated[float, whole_or_inf(0)] = 3.0
    """Mini-batches a worker may be ahead of the slowest when it starts one; 0 is a barrier, inf is ASGD."""


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, gradients=1)
    while True:
        start_idle(cluster, gradient, w, ahead=cfg.slack)
        if done := cluster.next_done():
            w = cluster.combine(rule, w, [done])
            start_idle(cluster, gradient, w, ahead=cfg.slack)
            yield Update(w, [done])


def theory(cfg: Config) -> ClosedForms:
    def s_per_update() -> float:
        law, p, slowdown = workers(timed(cfg))
        return 1 / (p * ssp_steps_per_s(law, p, cfg.slack, slowdown))

    return ClosedForms(
        staleness_mean=lambda: ssp_mean_staleness(*equal_workers(cfg), cfg.slack),
        staleness_max=lambda: ssp_staleness_bound(same_members(cfg).num_workers, cfg.slack),
        clock_gap_max=lambda: ssp_clock_gap_bound(cfg.num_workers, cfg.slack),
        s_per_update=s_per_update,
        memory=lambda: ssp_memory(cfg.timing.compute_law, cfg.num_workers, cfg.timing.slowdowns, cfg.slack),
    )


LAWS = Laws(
    limits=[
        Limit({"slack": math.inf}, "asgd"),
        Limit({"staleness_lr": "threshold:0"}, "ssp", {"staleness_lr": "inverse"}),
    ],
    variants=[
        {"slack": 2.0},
        {"slack": 0.0, "momentum": 0.5},
        {"slack": math.inf, "staleness_lr": "inverse"},
    ],
)
