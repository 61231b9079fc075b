"""AdaComm: local SGD that averages rarely at first and more often as the loss falls.

Source: Wang and Joshi 2018, "Adaptive communication strategies to achieve the best error-runtime trade-off in
local-update SGD" (arXiv 1810.08313), section 4.

As LocalSGD, but the number of local steps is chosen anew at the start of each interval of T_0 seconds of the
engine's clock, from the training loss F then and at the start:

    tau_l = ceil( sqrt(F(w_l) / F(w_0)) tau_0 ),    or, if that is not below tau_{l-1}, ceil(gamma tau_{l-1})

Limits: with T_0 = inf it is LocalSGD(tau_0); with tau_0 = 1 it is SSGD.

How this differs from the paper: F is the mean mini-batch loss of the last round, not of the whole training
set; the step size is constant, so the rule that couples it to tau is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsgd.cluster import Cluster, Update, run_all
from dsgd.config import TrainConfig, require
from dsgd.work.optim import Weights, mean, spread
from dsgd.work.tasks import LocalSGD


@dataclass(frozen=True, kw_only=True)
class Config(TrainConfig):
    mode: str = "adacomm"

    first_local_steps: int = 16
    """tau_0, the mini-batches between two averagings at the start."""

    interval_s: float = 60.0
    """T_0, seconds on the engine's clock between two choices of the number of local steps."""

    decay: float = 0.5
    """gamma, the factor on the number of local steps where the loss alone would not lower it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        first = self.first_local_steps
        require(first >= 1, "first-local-steps", first, "must be at least 1")
        require(self.interval_s > 0, "interval-s", self.interval_s, "must be above 0")
        require(0 < self.decay < 1, "decay", self.decay, "must lie between 0 and 1, both excluded")


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    left, tau, first_loss = cfg.steps, cfg.first_local_steps, 0.0
    choose_s = cluster.now_s + cfg.interval_s
    while left:
        h = min(tau, left)
        dones = run_all(cluster, LocalSGD(batches=h, lr=cfg.lr, momentum=cfg.momentum), w)
        w = w.replaced(mean(done.value for done in dones))
        left -= h
        loss = float(np.mean([done.loss or 0.0 for done in dones]))
        first_loss = first_loss or loss
        if cluster.now_s >= choose_s and math.isfinite(loss):
            choose_s = cluster.now_s + cfg.interval_s
            wanted = math.ceil(math.sqrt(loss / first_loss) * cfg.first_local_steps) if first_loss else tau
            tau = max(1, wanted if wanted < tau else math.ceil(cfg.decay * tau))
        yield Update(w, dones, measured={"drift": spread((done.value for done in dones), w.vector)})
