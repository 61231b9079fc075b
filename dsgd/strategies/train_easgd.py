"""Elastic averaging SGD: each worker keeps its own weights, tied by a spring to a common centre.

Source: Zhang, Choromanska and LeCun 2015, "Deep learning with elastic averaging SGD" (arXiv 1412.6651):
section 3 (synchronous), algorithm 1 (asynchronous), algorithm 2 (with momentum: EAMSGD).

Every H = `local_steps` mini-batches a worker and the centre w attract each other, from their current weights:

    x_i <- x_i - lr g_i(x_i) - alpha (x_i - w),     w <- w + alpha (x_i - w)     (all i, or one at a time)

and in between a worker takes plain local steps, x_i <- x_i - lr g_i(x_i).

Limits: alpha -> 0 leaves P separate runs of SGD, and a fixed centre. P = 1: sync and async are the same.
Round-robin, on a quadratic of curvature 1, with H = 1: stable for alpha up to (4 - 2 lr)/(4 - lr).

Members that leave and join: the centre is pulled to the mean of the members that are still there, at the same
rate. A worker that comes back goes on from its own weights; a new one starts at the centre.

How this differs from the paper: the rule is the same. A worker applies its pull when it receives the centre
as it was at the exchange; staleness counts the other workers' exchanges between two of one worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, exchanges

EXAMPLE = "--exchange async --moving-rate 0.1 --num-workers 8 --compute-time exponential:1"


@dataclass(frozen=True, kw_only=True)
class Config(ExchangeConfig):
    mode: str = "easgd"

    moving_rate: Annotated[float | None, Gt(0), Le(1)] = None
    """alpha, the share of the distance that worker and centre move. None: 0.9 / num_workers, as the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "the server of --mode easgd needs the workers' own weights as they are; leave it out"
        require(self.compression.results is None, "compress", self.compression.compress, rule)

    @property
    def alpha(self) -> float:
        return 0.9 / self.num_workers if self.moving_rate is None else self.moving_rate

    def task(self, h: int) -> Elastic:
        return Elastic(
            batches=h,
            lr=self.lr,
            schedule=schedule(self),
            clip_norm=self.clip_norm,
            weight_decay=self.weight_decay or 0.0,
            rate=self.alpha,
            momentum=self.momentum,
        )


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    return synchronous(cluster, w, cfg) if cfg.exchange == "sync" else asynchronous(cluster, w, cfg)


def synchronous(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = chain(Pull(cfg.num_workers * cfg.alpha))
    while h := next_round(cluster, cfg.budget, cfg.local_steps):
        dones = run_all(cluster, cfg.task(h), before(w))
        w = cluster.combine(rule, w, dones)
        yield Update(w, dones, measured={"drift": cluster.spread(dones)})


def asynchronous(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = chain(Pull(cfg.alpha))
    while start_portions(cluster, cfg.task, before(w), cfg.budget, cfg.local_steps):
        if done := cluster.next_done():
            w = cluster.combine(rule, w, [done])
            start_portions(cluster, cfg.task, before(w), cfg.budget, cfg.local_steps)
            yield Update(w, [done])


def before(w: Weights) -> Weights:
    """Return the centre as it was at the last exchange: what the workers are pulled to."""
    return w.in_slot("before")


def theory(cfg: Config) -> ClosedForms:
    return exchanges(cfg)


LAWS = Laws(
    plain_sgd=None,  # one worker's centre follows the worker at a distance
    # The centre has a worker's mass but no gradient: only P/(P + 1) of the step size is felt.
    convex={"lr": 0.0625},
    deterministic={},
    limits=[Limit({"moving_rate": 0.18}, "easgd")],
    variants=[
        {"local_steps": 5},
        {"local_steps": 5, "momentum": 0.5},
        {"local_steps": 5, "exchange": "async", "momentum": 0.5},
        {"local_steps": 5, "exchange": "async", "moving_rate": 0.4},
    ],
)
