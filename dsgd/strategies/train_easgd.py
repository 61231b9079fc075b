"""Elastic averaging SGD: each worker keeps weights of its own, on a spring to a common centre.

Source: Zhang, Choromanska and LeCun 2015, "Deep learning with elastic averaging SGD" (arXiv 1412.6651):
section 3 (synchronous), algorithm 1 (asynchronous), algorithm 2 (with momentum: EAMSGD).

Every H = `local_steps` mini-batches a worker and the centre w draw each other, at the weights both have:

    x_i <- x_i - lr g_i(x_i) - alpha (x_i - w),     w <- w + alpha (x_i - w)     (all i, or one at a time)

and in between a worker takes plain steps of its own, x_i <- x_i - lr g_i(x_i).

Limits: alpha -> 0 leaves P separate runs of SGD, and a centre that stays. P = 1: sync and async are the same.
In turn, on a quadratic of curvature 1, with H = 1: stable for alpha up to (4 - 2 lr)/(4 - lr).

How this differs from the paper: not in the rule. A worker takes its pull when it gets the centre as it was
at the exchange; staleness counts the exchanges of others between two of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsgd.cluster import Cluster, Update, run_all
from dsgd.config import ExchangeConfig, require
from dsgd.work.optim import Weights, mean, spread
from dsgd.work.tasks import Elastic, portions


@dataclass(frozen=True, kw_only=True)
class Config(ExchangeConfig):
    mode: str = "easgd"

    moving_rate: float | None = None
    """alpha, the share of the distance that worker and centre move. None: 0.9 / num_workers, as the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.moving_rate
        rule = "must lie in (0, 1], like 0.9 / num_workers"
        require(rate is None or 0 < rate <= 1, "moving-rate", rate, rule)

    @property
    def alpha(self) -> float:
        return 0.9 / self.num_workers if self.moving_rate is None else self.moving_rate

    def task(self, h: int) -> Elastic:
        return Elastic(batches=h, lr=self.lr, rate=self.alpha, momentum=self.momentum)


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    return synchronous(cluster, w, cfg) if cfg.exchange == "sync" else asynchronous(cluster, w, cfg)


def synchronous(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    centre = w  # as it was at the last exchange
    for h in portions(cfg.steps, cfg.local_steps):
        dones = run_all(cluster, cfg.task(h), Weights(centre.vector, w.version))
        average = mean(done.value for done in dones)
        centre, w = w, w.replaced(w.vector + cfg.num_workers * cfg.alpha * (average - w.vector))
        yield Update(w, dones, measured={"drift": spread((done.value for done in dones), average)})


def asynchronous(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    sizes = portions(cfg.budget, cfg.local_steps)
    for worker, h in zip(cluster.workers, sizes, strict=False):
        cluster.start(worker, cfg.task(h), w)
    while cluster.in_flight:
        done = cluster.next_done()
        centre, w = w, w.replaced(w.vector + cfg.alpha * (done.value - w.vector))
        if h := next(sizes, 0):
            cluster.start(done.worker, cfg.task(h), Weights(centre.vector, w.version))
        yield Update(w, [done])
