"""Local SGD: average the weights once in a while, not the gradients each time.

Source: Stich 2018, "Local SGD converges fast and communicates little" (arXiv 1805.09767), algorithm 1;
McMahan et al. 2017 (arXiv 1602.05629) for data that differ between workers.

Each worker takes H = `local_steps` steps from the same weights, then the server averages:

    w_i <- w_i - lr g_i(w_i)   H times from w_v,        w_{v+1} = 1/P  sum_i w_i

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

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, averaging_fixed_point, rounds

EXAMPLE = "--local-steps 16 --num-workers 8 --workload digits --partition dirichlet:0.1"


@dataclass(frozen=True, kw_only=True)
class Config(LocalConfig):
    mode: str = "localsgd"

    traits = Traits(sends="steps", waits_for_all=True)


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = chain(Average())
    while h := next_round(cluster, cfg.budget, cfg.local_steps):
        dones = run_all(cluster, local_sgd(cfg, h), w)
        w = cluster.combine(rule, w, dones)
        yield Update(w, dones, measured={"drift": cluster.spread(dones)})


def theory(cfg: Config) -> ClosedForms:
    return replace(rounds(cfg), final_weight=lambda: averaging_fixed_point(cfg))


LAWS = Laws(
    plain_sgd={"momentum": 0.0},
    deterministic={},
    limits=[Limit({"local_steps": 1, "momentum": 0.0}, "ssgd", {"momentum": 0.0}, exactly=False)],
    variants=[{"local_steps": 5}, {"local_steps": 7, "momentum": 0.5}],
)
