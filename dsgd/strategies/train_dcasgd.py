"""Delay-compensated ASGD: correct a stale gradient for the weights' movement since it was read.

Source: Zheng et al. 2017, "Asynchronous stochastic gradient descent with delay compensation" (arXiv
1609.08326), algorithm 2 and section 5 (the adaptive lambda, DC-ASGD-a).

A first-order Taylor step carries a gradient from the old weights to the present ones, with the diagonal of
the gradient's outer product in place of the Hessian:

    w_{v+1} = w_v - lr (g + lambda g*g*(w_v - w_{v - tau})),     g = g_i(w_{v - tau})

With `--adaptive`, lambda is divided by sqrt(mean square of g + 1e-7) in each coordinate, the mean square
being a moving average with decay .95.

Limits: lambda = 0 is ASGD. With the exact Hessian, on a quadratic, the trajectory is that without delay.

Members that leave and join: as in ASGD; a gradient is compensated for all that happened since its worker read
the weights, however long ago that was.

How this differs from the paper: nothing in the rule. The server keeps the weights that each worker has read,
instead of copying them when the worker pulls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from dsgd.strategy import *
from dsgd.theory.closed_forms import ClosedForms, asynchronous

EXAMPLE = "--compensation 0.04 --adaptive --num-workers 8 --compute-time exponential:1"
TUNE = {"compensation": (0.04, 0.2, 1.0)}


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "dcasgd"

    compensation: Annotated[float, FINITE, Ge(0)] = 0.04
    """lambda, how much of the correction is applied; 0 is ASGD."""

    adaptive: bool = False
    """Divide lambda by the root of the gradients' mean square, coordinate by coordinate."""


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, 1, Compensate(cfg.compensation, cfg.adaptive))
    while True:
        start_idle(cluster, gradient, w)
        if done := cluster.next_done():
            w = cluster.combine(rule, w, [done])
            start_idle(cluster, gradient, w)
            yield Update(w, [done])


def theory(cfg: Config) -> ClosedForms:
    return asynchronous(cfg)


LAWS = Laws(
    limits=[
        Limit({"compensation": 0.0}, "asgd"),
        Limit({"compensation": 0.0, "adaptive": True}, "asgd"),
    ],
    variants=[{}, {"adaptive": True}, {"adaptive": True, "momentum": 0.5, "staleness_lr": "inverse"}],
)
