"""DiLoCo: many local AdamW steps, then a Nesterov step of the server along what the workers have moved.

Source: Douillard et al. 2023, "DiLoCo: distributed low-communication training of language models" (arXiv
2311.08105), algorithm 1; Liu et al. 2024 (arXiv 2401.09135), delayed Nesterov, for `--exchange async`.

From w_v each worker takes H inner steps, to x_i, with moments that stay with it. With D_i = w_v - x_i:

    m <- b m + mean D_i,  w <- w - outer_lr (mean D_i + b m);       or, as each D comes, with N = P:
    w <- w - outer_lr D/N,  and every N of them  m <- b m + sum D/N,  w <- w - outer_lr b m

Limits: outer lr 1, outer momentum 0 and plain inner SGD is LocalSGD. P = 1: sync and async are the same.
How this differs from the papers: no schedules of the step size; c = 0 and equal H in the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dsgd.cluster import Cluster, Update, run_all
from dsgd.config import ExchangeConfig, require
from dsgd.work.optim import SGD, DelayedNesterov, Weights, mean, spread
from dsgd.work.tasks import LocalAdamW, LocalSGD, portions


@dataclass(frozen=True, kw_only=True)
class Config(ExchangeConfig):
    mode: str = "diloco"

    lr: float = 0.01
    """Step size of the workers' own steps."""

    inner: Literal["adamw", "sgd"] = "adamw"
    """The workers' optimizer; --momentum is that of sgd. adamw: betas .9 and .999, weight decay .01."""

    outer_lr: float = 0.7
    """Step size of the server."""

    outer_momentum: float = 0.9
    """b, of the server's Nesterov momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.outer_lr < float("inf"), "outer-lr", self.outer_lr, "must be finite and above 0")
        require(0 <= self.outer_momentum < 1, "outer-momentum", self.outer_momentum, "must lie in [0, 1)")
        rule = "is of --inner sgd; leave it out, for AdamW has moments of its own"
        require(self.inner == "sgd" or not self.momentum, "momentum", self.momentum, rule)

    def task(self, h: int) -> LocalAdamW | LocalSGD:
        sgd = LocalSGD(batches=h, lr=self.lr, momentum=self.momentum, keeps_velocity=True)
        return sgd if self.inner == "sgd" else LocalAdamW(batches=h, lr=self.lr)


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    if cfg.exchange == "async":
        yield from asynchronous(cluster, w, cfg)
        return
    nesterov = SGD(lr=cfg.outer_lr, momentum=cfg.outer_momentum, nesterov=True)
    for h in portions(cfg.steps, cfg.local_steps):
        dones = run_all(cluster, cfg.task(h), w)
        average = mean(done.value for done in dones)
        w = nesterov.step(w, w.vector - average)
        yield Update(w, dones, measured={"drift": spread((done.value for done in dones), average)})


def asynchronous(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    nesterov = DelayedNesterov(lr=cfg.outer_lr, momentum=cfg.outer_momentum, every=cfg.num_workers)
    sizes, read = portions(cfg.budget, cfg.local_steps), dict.fromkeys(cluster.workers, w)
    for worker, h in zip(cluster.workers, sizes, strict=False):
        cluster.start(worker, cfg.task(h), w)
    while cluster.in_flight:
        done = cluster.next_done()
        w = nesterov.step(w, read[done.worker].vector - done.value)
        if h := next(sizes, 0):
            cluster.start(done.worker, cfg.task(h), w)
        read[done.worker] = w
        yield Update(w, [done])
