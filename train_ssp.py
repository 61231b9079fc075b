"""Stale-synchronous parallel SGD.

Source: Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel parameter
server" (NIPS 26), section 2.

A worker's clock counts its finished mini-batches. Each gradient is applied as it comes (as in ASGD),
but a worker may start its next mini-batch only while it is at most `slack` ahead of the slowest:

    start worker i  iff  clock_i - min_j clock_j <= slack

Limits: slack = inf is ASGD; slack = 0 is SSGD with summed gradients, so with a P times larger step. Staleness
is at most (P - 1)(2 slack + 1). One worker that stays slow holds all others to its rate, whatever the slack.

Members that leave and join: only the members' clocks count, so a worker that leaves holds nobody up;
one that joins starts at once, with the slowest clock.

How this differs from the paper: the server sends whole vectors at the start of each mini-batch, so a worker
always reads the newest weights there are, never an older cached copy that the bound would still allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, stale_synchronous

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
    return stale_synchronous(cfg, cfg.slack)


LAWS = Laws(
    limits=[
        Limit({"slack": inf}, "asgd"),
        Limit({"staleness_lr": "threshold:0"}, "ssp", {"staleness_lr": "inverse"}),
    ],
    variants=[{"slack": 2.0}, {"slack": 0.0, "momentum": 0.5}, {"slack": inf, "staleness_lr": "inverse"}],
)
