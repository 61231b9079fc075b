"""Delay-compensated ASGD: mend a stale gradient by what its weights have moved since.

Source: Zheng et al. 2017, "Asynchronous stochastic gradient descent with delay compensation" (arXiv
1609.08326), algorithm 2 and section 5 (the adaptive lambda, DC-ASGD-a).

A gradient at the old weights is carried to the present ones by a first-order Taylor step, with the outer
product of the gradient, reduced to its diagonal, for the Hessian:

    w_{v+1} = w_v - lr (g + lambda g*g*(w_v - w_{v - tau})),     g = g_i(w_{v - tau})

With `--adaptive`, lambda is divided by sqrt(mean square of g + 1e-7) in each coordinate, the mean square
being a moving average with decay .95.

Limits: lambda = 0 is ASGD. With the exact Hessian, on a quadratic, the trajectory is that without delay.

How this differs from the paper: nothing in the rule. The server keeps the weights that each worker has read,
instead of copying them when the worker pulls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsgd.cluster import Cluster, Update
from dsgd.config import AsynchronousConfig, require
from dsgd.strategies.conformance import Laws, Limit
from dsgd.theory.closed_forms import ClosedForms, asynchronous
from dsgd.work.optim import SGD, Vector, Weights
from dsgd.work.tasks import gradient


@dataclass(frozen=True, kw_only=True)
class Config(AsynchronousConfig):
    mode: str = "dcasgd"

    compensation: float = 0.04
    """lambda, how much of the correction is applied; 0 is ASGD."""

    adaptive: bool = False
    """Divide lambda by the root of the gradients' mean square, coordinate by coordinate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = 0 <= self.compensation < math.inf
        require(known, "compensation", self.compensation, "must be finite and at least 0")


def hessian(g: Vector) -> Vector:
    """Return what stands for the Hessian: the diagonal (D,) of the gradient's outer product."""
    return g * g


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    sgd = SGD(lr=cfg.lr_for(1), momentum=cfg.momentum)
    mean_square = np.zeros_like(w.vector)
    read = dict.fromkeys(cluster.workers, w)  # the weights that each worker computes at
    for worker in cluster.workers:
        cluster.start(worker, gradient, w)
    while True:
        done = cluster.next_done()
        g, scale = done.value, cfg.compensation
        if cfg.adaptive:
            mean_square = 0.95 * mean_square + 0.05 * g * g
            scale = cfg.compensation / np.sqrt(mean_square + 1e-7)
        g = g + scale * hessian(g) * (w.vector - read[done.worker].vector)
        w = sgd.step(w, g, cfg.weight(w.version - done.read))
        read[done.worker] = w
        cluster.start(done.worker, gradient, w)
        yield Update(w, [done])


def theory(cfg: Config) -> ClosedForms:
    return asynchronous(cfg)


LAWS = Laws(
    limits=[
        Limit({"compensation": 0.0}, "asgd"),
        Limit({"compensation": 0.0, "adaptive": True}, "asgd"),
    ]
)
