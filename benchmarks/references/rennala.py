"""Rennala SGD: the server's loop as printed. Only gradients at the current point count; a worker never waits.

Tyurin and Richtarik 2023, "Optimal time complexities of parallel stochastic optimization methods under a fixed
computation model" (arXiv 2305.12387), methods 4 and 5.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import torch

from benchmarks.references.problem import Problem, Version

OPTIONS = {"lr": 0.3, "batches": 6}


def train(problem: Problem, lr: float, batches: int) -> Iterator[Version]:
    """Make updates for ever."""
    x = problem.initial
    workers = range(problem.num_workers)
    step, point = [0 for _ in workers], [0 for _ in workers]
    ready = [(problem.seconds(i, 0), i) for i in workers]
    heapq.heapify(ready)
    k = 0
    while True:
        g, s = torch.zeros_like(x), 0
        while True:
            now, i = heapq.heappop(ready)
            if point[i] == k:
                g, s = g + problem.gradient(i, step[i], x) / batches, s + 1
            if s == batches:
                break
            step[i], point[i] = step[i] + 1, k
            heapq.heappush(ready, (now + problem.seconds(i, step[i]), i))
        x = x - lr * g
        k += 1
        yield Version(now, k * batches, x)
        step[i], point[i] = step[i] + 1, k
        heapq.heappush(ready, (now + problem.seconds(i, step[i]), i))
