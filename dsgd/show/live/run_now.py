"""What a run is doing now: the numbers of its log's lines and of its gauges that no update is counted for."""

from __future__ import annotations

import time

import numpy as np

from dsgd.config import TrainConfig
from dsgd.core.protocol import Update
from dsgd.engines.replay import after_rollbacks
from dsgd.metrics import Tally
from dsgd.strategies.optimizers import schedule

_MOST_SHARE = 0.01  # of the driver's time that norms may take
_EVERY_S = 1.0


def step_size(cfg: TrainConfig, tally: Tally) -> float:
    """Return --lr at this point of the run: times the schedule's factor, halved each time it went back.

    What a mode makes of it for each gradient, as by --lr-scaling and --staleness-lr, comes on top.
    """
    lr = after_rollbacks(cfg, tally.faults.get("divergence", 0)).lr
    shape = schedule(cfg)
    return lr * shape.factor(tally.gradients // cfg.num_workers) if shape else lr


def gradient_norm(cfg: TrainConfig, update: Update) -> float | None:
    """Return the Euclidean norm of an update's mean gradient.

    Where workers return weights after plain steps, it is that of their mean way from those that they read,
    divided by --lr and the mini-batches: without momentum the mean gradient along it. None where the driver
    has no values, as in an all-reduce on Ray, and in other modes.
    """
    sends = cfg.traits.sends
    if sends not in ("gradients", "steps") or not all(done.value.size for done in update.dones):
        return None
    if sends == "gradients":
        of_each = [done.value for done in update.dones]
    else:
        of_each = [(done.origin.vector - done.value) / (cfg.lr * done.batches) for done in update.dones]
    return float(np.linalg.norm(np.mean(of_each, axis=0)))


class NormNow:
    """The gradient norm of the last update that was looked at: one a second, fewer where that takes long."""

    def __init__(self, cfg: TrainConfig) -> None:
        self._cfg, self._next_s = cfg, 0.0
        self.value: float | None = None

    def look(self, update: Update) -> None:
        """Look at an update, if it is time."""
        began_s = time.monotonic()
        if began_s >= self._next_s:
            self.value = gradient_norm(self._cfg, update)
            took_s = time.monotonic() - began_s
            self._next_s = began_s + max(_EVERY_S, took_s / _MOST_SHARE)
