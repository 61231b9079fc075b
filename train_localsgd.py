"""Local SGD: average the weights once in a while, not the gradients each time.

Source: Stich 2018, "Local SGD converges fast and communicates little" (arXiv 1805.09767), algorithm 1;
McMahan et al. 2017 (arXiv 1602.05629) for data that differ between workers.

Each worker takes H = `local_steps` steps from the same weights, then the server averages:

    w_i <- w_i - lr g_i(w_i)   H times from w_v,        w_{v+1} = 1/P  sum_i w_i

With --sample-clients K, K workers drawn anew take part in a round; with --aggregate mean,samples too, that is
McMahan's FederatedAveraging.

Limits: H = 1 is SSGD; so is any H in expectation where all workers share one quadratic. Where their
optima differ, a larger H moves the fixed point (client drift).

Members that leave and join: a round averages the weights of the members that are still there, and
workers that join take part from the next one on. The members share what is left of the budget, so H
shrinks only in the last round.

How this differs from the papers: local momentum starts at 0 in every round, because a worker keeps
nothing between tasks; and the last round is shorter where H does not divide the budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, averaging_fixed_point, rounds

EXAMPLE = "--local-steps 16 --num-workers 8 --workload digits --partition dirichlet:0.1"


@dataclass(frozen=True, kw_only=True)
class Config(LocalConfig):
    mode: str = "localsgd"

    sample_clients: Annotated[int | None, Ge(1)] = None
    """K, the workers that take part in a round, drawn anew each time. None: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        k, rule = self.sample_clients, f"must be at most --num-workers {self.num_workers}"
        require(k is None or k <= self.num_workers, "sample-clients", k, rule)

    @property
    def traits(self) -> Traits:
        return Traits(sends="steps", waits_for_all=self.sample_clients is None)

    @property
    def results_per_update(self) -> int:
        return self.sample_clients or self.num_workers


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule, k = chain(Average()), cfg.sample_clients
    while h := next_round(cluster, cfg.budget, cfg.local_steps, k):
        some = None if k is None else min(k, cfg.budget - cluster.given)
        dones = run_all(cluster, local_sgd(cfg, h), w, clients=some, seed=cfg.seed)
        w = cluster.combine(rule, w, dones)
        yield Update(w, dones, measured={"drift": cluster.spread(dones)})


def theory(cfg: Config) -> ClosedForms:
    if cfg.sample_clients is not None:
        return ClosedForms(staleness_mean=lambda: 0.0)
    return replace(rounds(cfg), final_weight=lambda: averaging_fixed_point(cfg))


LAWS = Laws(
    plain_sgd={"momentum": 0.0},
    deterministic={},
    limits=[Limit({"local_steps": 1, "momentum": 0.0}, "ssgd", {"momentum": 0.0}, exactly=False)],
    variants=[{"local_steps": 5}, {"local_steps": 7, "momentum": 0.5}, {"sample_clients": 3}],
)
