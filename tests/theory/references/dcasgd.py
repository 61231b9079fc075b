"""Delay-compensated ASGD: the server's algorithm as printed, with its backup of what each worker has pulled.

Zheng et al. 2017 (arXiv 1609.08326), algorithm 2; `adaptive` is its section 5, equation for lambda_t.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import torch

from references.problem import Problem, Version

# So large a lambda, and a step near the largest, that the correction is seen.
OPTIONS = {"lr": 0.2, "compensation": 2.0}
VARIANTS = [{"adaptive": True, "compensation": 0.3}]
OTHER = {"compensation": 1.9}


def train(problem: Problem, lr: float, compensation: float, adaptive: bool = False) -> Iterator[Version]:
    """Apply gradients for ever."""
    w = problem.initial
    workers = range(problem.num_workers)
    step, backup = [0 for _ in workers], [w for _ in workers]
    mean_square = torch.zeros_like(w)
    ready = [(problem.seconds(m, 0), m) for m in workers]
    heapq.heapify(ready)
    gradients = 0
    while True:
        now, m = heapq.heappop(ready)
        g = problem.gradient(m, step[m], backup[m])
        rate: torch.Tensor | float = compensation
        if adaptive:
            mean_square = 0.95 * mean_square + 0.05 * g * g
            rate = compensation / torch.sqrt(mean_square + 1e-7)
        w = w - lr * (g + rate * g * g * (w - backup[m]))
        gradients += 1
        yield Version(now, gradients, w)
        backup[m] = w
        step[m] += 1
        heapq.heappush(ready, (now + problem.seconds(m, step[m]), m))
