"""DiLoCo: many local AdamW steps, then a Nesterov step of the server in the direction the workers moved.

Source: Douillard et al. 2023, "DiLoCo: distributed low-communication training of language models" (arXiv
2311.08105), algorithm 1; Liu et al. 2024 (arXiv 2401.09135), delayed Nesterov, for `--exchange async`.

From w_v each worker takes H inner steps, to x_i, with moments that stay with it. With D_i = w_v - x_i:

    m <- b m + mean D_i,  w <- w - outer_lr (mean D_i + b m);       or, as each D comes, with N = P:
    w <- w - outer_lr D/N,  and every N of them  m <- b m + sum D/N,  w <- w - outer_lr b m

Limits: outer lr 1, outer momentum 0 and plain inner SGD is LocalSGD. P = 1: sync and async are the same.

Members that leave and join: at the barrier as in LocalSGD; without it, lost mini-batches are shared out
again, and a worker that joins starts at once. A worker that comes back still has its moments; a new one
starts at 0.

How this differs from the papers: the inner step size is constant unless --schedule is given. In
Liu et al. the momentum activation c is 0, and all workers take the same H.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, exchanges

EXAMPLE = "--local-steps 16 --outer-lr 0.7 --num-workers 8 --workload digits"
TUNE = {"outer_lr": (0.3, 0.7, 1.0), "outer_momentum": (0.0, 0.5, 0.9)}


@dataclass(frozen=True, kw_only=True)
class Config(ExchangeConfig):
    mode: str = "diloco"

    lr: Annotated[float, FINITE, Gt(0)] = 0.01
    """Step size of the workers' own steps."""

    momentum: Annotated[float, Ge(0), Lt(1), OnlyWith(inner="sgd")] = 0.0
    """Heavy-ball momentum of the workers' own steps, 0 to below 1."""

    inner: Literal["adamw", "sgd"] = "adamw"
    """The workers' optimizer; --momentum is that of sgd. adamw: betas .9 and .999, weight decay .01."""

    outer_lr: Annotated[float, FINITE, Gt(0)] = 0.7
    """Step size of the server."""

    outer_momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """b, of the server's Nesterov momentum."""

    sample_clients: Annotated[int | None, Ge(1), OnlyWith(exchange="sync")] = None
    """K, the workers that take part in a round, drawn anew each time. None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        k, rule = self.sample_clients, f"must be at most --num-workers {self.num_workers}"
        require(k is None or k <= self.num_workers, "sample-clients", k, rule)

    @property
    def traits(self) -> Traits:
        waits = self.exchange == "sync" and self.sample_clients is None
        return Traits(sends="weights", waits_for_all=waits)

    @property
    def results_per_update(self) -> int:
        return (self.sample_clients or self.num_workers) if self.exchange == "sync" else 1

    def task(self, h: int) -> LocalAdamW | LocalSGD:
        return inner_steps(self, self.inner, h)


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    return synchronous(cluster, w, cfg) if cfg.exchange == "sync" else asynchronous(cluster, w, cfg)


def synchronous(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = chain(Moved(), Momentum(cfg.outer_momentum, nesterov=True), Descend(cfg.outer_lr))
    k = cfg.sample_clients
    while h := next_round(cluster, cfg.budget, cfg.local_steps, k):
        some = None if k is None else min(k, cfg.budget - cluster.given)
        dones = run_all(cluster, cfg.task(h), w, clients=some, seed=cfg.seed)
        w = cluster.combine(rule, w, dones)
        yield Update(w, dones, measured={"drift": cluster.spread(dones)})


def asynchronous(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = chain(Moved(), DelayedNesterov(cfg.outer_momentum, cfg.num_workers), Descend(cfg.outer_lr))
    while start_portions(cluster, cfg.task, w, cfg.budget, cfg.local_steps):
        if done := cluster.next_done():
            w = cluster.combine(rule, w, [done])
            start_portions(cluster, cfg.task, w, cfg.budget, cfg.local_steps)
            yield Update(w, [done])


def theory(cfg: Config) -> ClosedForms:
    return exchanges(cfg) if cfg.sample_clients is None else ClosedForms(staleness_mean=lambda: 0.0)


PLAIN = {"inner": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0, "momentum": 0.0}
LAWS = Laws(
    plain_sgd=PLAIN,
    deterministic={},
    limits=[
        Limit({**PLAIN, "local_steps": 7}, "localsgd", {"momentum": 0.0, "local_steps": 7}, exactly=False)
    ],
    variants=[
        {"local_steps": 5},
        {"local_steps": 5, "inner": "sgd", "momentum": 0.5},
        {"local_steps": 5, "sample_clients": 3},
        {"local_steps": 5, "exchange": "async"},
        {"local_steps": 5, "exchange": "async", "inner": "sgd"},
    ],
)
