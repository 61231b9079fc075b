"""Asynchronous SGD.

Source: Recht et al. 2011, "Hogwild!" (NIPS 24); Dean et al. 2012, "Large scale distributed deep
networks" (NIPS 25), section 4.1 (Downpour SGD with every push followed by a fetch).

Each gradient is applied as it comes, and its worker goes on at once with the new weights:

    w_{v+1} = w_v - lr g_i(w_{v-tau}),    tau the gradient's staleness

Limits: with P = 1 it is plain SGD. Whatever the workers' speeds, tau averages P - 1 over all
gradients; with exponential compute times it is geometric, P(tau = k) = (1 - 1/P)^k / P.

Members that leave and join: nobody waits for a worker that leaves, and its lost mini-batch is given to
it again when it is back; a worker that joins starts at once, at the newest weights.

How this differs from the papers: the weights are one vector on one server, read and written as a
whole (no torn reads, no sharded servers), and a worker pushes and fetches after every mini-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, asynchronous

EXAMPLE = "--lr-scaling workers --num-workers 8 --compute-time exponential:1"


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "asgd"


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, gradients=1)
    while True:
        start_idle(cluster, gradient, w)
        if done := cluster.next_done():
            w = cluster.combine(rule, w, [done])
            start_idle(cluster, gradient, w)  # before the yield: recording never idles a worker
            yield Update(w, [done])


def theory(cfg: Config) -> ClosedForms:
    return asynchronous(cfg)


LAWS = Laws(
    limits=[
        Limit({"staleness_lr": "threshold:0"}, "asgd", {"staleness_lr": "inverse"}),
        Limit({"staleness_lr": "threshold:1"}, "asgd", {"staleness_lr": "inverse"}),
    ],
    variants=[
        {},
        {"momentum": 0.9, "lr_scaling": "workers"},
        {"staleness_lr": "inverse"},
        {"staleness_lr": "threshold:3", "momentum": 0.5},
    ],
)
