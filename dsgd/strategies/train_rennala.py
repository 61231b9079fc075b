"""Rennala SGD: asynchronous workers, but only gradients at the current weights count.

Source: Tyurin and Richtarik 2023, "Optimal time complexities of parallel stochastic optimization methods
under a fixed computation model" (arXiv 2305.12387), method 4.

The server collects S gradients at w_v. A worker that delivers one starts the next at once, at the newest
weights; a gradient at older weights is ignored:

    w_{v+1} = w_v - lr/S  sum of the first S gradients at w_v

Limits: it is K-batch-sync with K = S whose late results are ignored instead of cancelled; with P = S = 1
it is plain SGD. Staleness is always 0, so slow or crashed workers do no harm; S trades waiting
against gradient noise. Its time is optimal, up to constants, where each worker's time is bounded.

Members that leave and join: the S gradients of an update come from whoever is a member; a worker that joins
starts at once. So members that leave cost time only.

How this differs from the paper: the run's budget counts the gradients that were applied; those ignored are
reported as `wasted`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms

EXAMPLE = "--batches 16 --num-workers 8 --compute-time pareto:1.5,1"


@dataclass(frozen=True, kw_only=True)
class Config(GradientConfig):
    mode: str = "rennala"

    batches: int | None = None
    """S, the gradients at the current weights that make an update. None: as many as workers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must lie between 1 and the budget of {self.budget} mini-batches"
        require(self.batches is None or 1 <= self.batches <= self.budget, "batches", self.batches, rule)

    @property
    def results_per_update(self) -> int:
        """S."""
        return self.batches or self.num_workers


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    batches = cfg.results_per_update
    rule = server_rule(cfg, gradients=batches)
    while True:
        dones: list[Done] = []
        late: list[Done] = []
        while len(dones) < batches:
            start_all(cluster, gradient, w)
            if done := cluster.next_done():
                (dones if done.read == w.version else late).append(done)
        w = cluster.combine(rule, w, in_worker_order(dones))
        yield Update(w, dones, ignored=late)


def theory(cfg: Config) -> ClosedForms:
    return ClosedForms(staleness_mean=lambda: 0.0)


LATE_IGNORED = {"count": "gradients", "rest": "ignore"}
LAWS = Laws(
    exact_budget=False,
    limits=[
        Limit({}, "ksync", LATE_IGNORED),
        Limit({"batches": 1}, "ksync", {"k": 1, **LATE_IGNORED}),
        Limit({"batches": 12}, "ksync", {"k": 12, **LATE_IGNORED}),
    ],
    variants=[{}, {"batches": 3, "momentum": 0.5}],
)
