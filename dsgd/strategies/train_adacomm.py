"""AdaComm: local SGD that averages rarely at first and more often as the loss falls.

Source: Wang and Joshi 2018, "Adaptive communication strategies to achieve the best error-runtime trade-off in
local-update SGD" (arXiv 1810.08313), section 4.

As LocalSGD, but the number of local steps is chosen at the start of each interval of T_0 seconds on the
engine's clock, from the training loss F then and at the start of the run:

    tau_l = ceil( sqrt(F(w_l) / F(w_0)) tau_0 ),    or, if that is not below tau_{l-1}, ceil(gamma tau_{l-1})

Limits: with T_0 = inf it is LocalSGD(tau_0); with tau_0 = 1 it is SSGD.

Members that leave and join: as in LocalSGD. tau and the times at which it is chosen belong to the server, so
they stay.

How this differs from the paper: F is the mean mini-batch loss of the last round, not of the whole training
set; the step size is constant, so the rule that couples it to tau is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms

EXAMPLE = "--local-steps 32 --interval-s 20 --num-workers 8 --compute-time exponential:1"


@dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    mode: str = "adacomm"

    traits = Traits(sends="steps", waits_for_all=True)

    local_steps: Annotated[int, Ge(1)] = 16
    """tau_0, the mini-batches between two averagings at the start."""

    interval_s: Annotated[float, Gt(0)] = 60.0
    """T_0, seconds on the engine's clock between two choices of the number of local steps."""

    decay: Annotated[float, Gt(0), Lt(1)] = 0.5
    """gamma, the factor on the number of local steps where the loss alone would not lower it."""


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = chain(Average())
    while True:
        tau, first_loss, choose_s = w.kept or (cfg.local_steps, 0.0, cluster.now_s + cfg.interval_s)
        h = next_round(cluster, cfg.budget, tau)
        if not h:
            return
        dones = run_all(cluster, local_sgd(cfg, h), w)
        loss = float(np.mean([done.loss or 0.0 for done in dones]))
        first_loss = first_loss or loss
        if cluster.now_s >= choose_s and math.isfinite(loss):
            choose_s = cluster.now_s + cfg.interval_s
            wanted = math.ceil(math.sqrt(loss / first_loss) * cfg.local_steps) if first_loss else tau
            tau = max(1, wanted if wanted < tau else math.ceil(cfg.decay * tau))
        w = cluster.combine(rule, w, dones).keeping((tau, first_loss, choose_s))
        yield Update(w, dones, measured={"drift": cluster.spread(dones)}, extra={"tau": h})


def theory(cfg: Config) -> ClosedForms:
    return ClosedForms(staleness_mean=lambda: 0.0)


LAWS = Laws(
    plain_sgd={"momentum": 0.0},
    deterministic={"interval_s": math.inf},
    limits=[
        Limit({"interval_s": math.inf, "local_steps": 16}, "localsgd", {"local_steps": 16}),
        Limit({"interval_s": math.inf, "local_steps": 7}, "localsgd", {"local_steps": 7}),
        Limit(
            {"local_steps": 1, "interval_s": 2.0, "momentum": 0.0},
            "ssgd",
            {"momentum": 0.0},
            exactly=False,
        ),
    ],
    variants=[{"interval_s": 6.0}, {"interval_s": 6.0, "momentum": 0.5}],
)
