"""Elastic averaging SGD: the paper's equations.

Zhang, Choromanska and LeCun 2015 (arXiv 1412.6651): equations 5 and 6 for all workers at once (section 3),
every tau steps; algorithm 1 for one worker at a time (`exchange="async"`). alpha = 0.9/p, as in its
experiments.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from references.problem import Problem, Version
from references.published import Group, Published, Run, Series

OPTIONS = {"lr": 0.6, "local_steps": 5}
VARIANTS = [{"exchange": "async"}]
OTHER = {"local_steps": 10}


def train(problem: Problem, lr: float, local_steps: int, exchange: str = "sync") -> Iterator[Version]:
    """Train until each worker has had its mini-batches; the weights are the centre's."""
    how = synchronous if exchange == "sync" else asynchronous
    return how(problem, lr, local_steps, 0.9 / problem.num_workers)


def synchronous(problem: Problem, lr: float, tau: int, alpha: float) -> Iterator[Version]:
    """Let all workers and the centre attract each other in the same moment."""
    p = problem.num_workers
    centre = problem.initial
    x = [centre for _ in range(p)]
    elastic = [torch.zeros_like(centre) for _ in range(p)]
    now = 0.0
    for t in range(0, problem.steps, tau):
        x = [local(problem, lr, i, range(t, t + tau), x[i], elastic[i]) for i in range(p)]
        elastic = [alpha * (x[i] - centre) for i in range(p)]
        centre = centre + sum(elastic)
        now += max(problem.seconds(i, t, tau) for i in range(p))
        yield Version(now, (t + tau) * p, centre)


def asynchronous(problem: Problem, lr: float, tau: int, alpha: float) -> Iterator[Version]:
    """Let a worker and the centre attract each other whenever tau divides the worker's clock."""
    centre = problem.initial
    workers = range(problem.num_workers)
    x, t = [centre for _ in workers], [0 for _ in workers]
    elastic = [torch.zeros_like(centre) for _ in workers]
    ready = [(problem.seconds(i, 0, tau), i) for i in workers]
    heapq.heapify(ready)
    gradients, left = 0, problem.num_workers * (problem.steps - tau)
    while ready:
        now, i = heapq.heappop(ready)
        x[i] = local(problem, lr, i, range(t[i], t[i] + tau), x[i], elastic[i])
        elastic[i] = alpha * (x[i] - centre)
        centre = centre + elastic[i]
        gradients += tau
        yield Version(now, gradients, centre)
        t[i] += tau
        if left > 0:
            left -= tau
            heapq.heappush(ready, (now + problem.seconds(i, t[i], tau), i))


def local(problem: Problem, lr: float, worker: int, steps: range, x: Tensor, elastic: Tensor) -> Tensor:
    """Return where a worker's steps lead from x (D,), if the exchange just before moves it by -elastic.

    The first gradient is that of the place before the exchange, as in algorithm 1.
    """
    for step in steps:
        x = x - lr * problem.gradient(worker, step, x) - (elastic if step == steps[0] else 0)
    return x


def published(run: Run) -> Published:
    """Zhang, Choromanska and LeCun 2015, section 4 (round-robin): stable for alpha up to (4 - 2 eta)/(4 -
    eta).

    One worker on a quadratic of curvature 1, exchanging at every step; the measured limit is found by
    bisection, with runs whose weight grows or falls. Nothing is random.
    """

    def grows(eta: float, alpha: float) -> bool:
        result = run(
            num_workers=1, local_steps=1, exchange="async", lr=eta, moving_rate=alpha, steps=400,
            workload="quadratic", eval_every=0,
        )  # fmt: skip
        losses = [math.inf if loss is None else loss for loss in result.updates["loss"]]
        return result.stopped_by == "diverged" or max(losses[-50:]) > max(losses[150:200])

    def limit(eta: float) -> float:
        low, high = 0.0, 1.0
        while high - low > 1e-3:
            middle = (low + high) / 2
            low, high = (low, middle) if grows(eta, middle) else (middle, high)
        return (low + high) / 2

    return Published(
        title="Largest stable moving rate",
        series=[
            Series(
                "(4 - 2 eta)/(4 - eta)",
                [
                    Group(eta, (4 - 2 * eta) / (4 - eta), [limit(eta)])
                    for eta in (0.1, 0.4, 0.7, 1.0, 1.3, 1.6, 1.9)
                ],
            )
        ],
    )
