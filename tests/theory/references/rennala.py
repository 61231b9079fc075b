"""Rennala SGD: the server's loop as printed. Only gradients at the current point count; a worker never waits.

Tyurin and Richtarik 2023, "Optimal time complexities of parallel stochastic optimization methods under a
fixed computation model" (arXiv 2305.12387), methods 4 and 5.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import torch

from references.problem import Problem, Version
from references.published import Group, Published, Run, Series

OPTIONS = {"lr": 0.6, "batches": 6}
OTHER = {"batches": 5}


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


def published(run: Run) -> Published:
    """Give the time of an update in the paper's model, where worker i always takes tau_i = sqrt(i) s.

    Of its time t after an update, worker i loses at most what is left of an old gradient, and a last one that
    is not finished: it gives at least t/tau_i - 2. So the m fastest have S gradients by (S + 2m)/(1/tau_1 +
    ... + 1/tau_m), for any m; the proof of the paper's theorem has this bound with other constants. Nothing
    is random.
    """
    p = 8
    rates = [1 / math.sqrt(i) for i in range(1, p + 1)]
    slowdown = ",".join(f"{i}={1 / rate}" for i, rate in enumerate(rates))

    def longest(s: int) -> float:
        steps = 40 * s // p + 1
        result = run(
            batches=s,
            num_workers=p,
            steps=steps,
            workload="none",
            compute_time="constant:1",
            slowdown=slowdown,
        )
        return float(max(result.updates["t_s"].diff().drop_nulls()))

    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    return Published(
        title=f"Longest update against S, P = {p}",
        series=[
            Series(
                "bound, (S + 2m)/Σ",
                [
                    Group(s, min((s + 2 * m) / sum(rates[:m]) for m in range(1, p + 1)), [longest(s)])
                    for s in sizes
                ],
                bound=True,
            ),
            Series("if nothing were lost", [Group(s, s / sum(rates), ()) for s in sizes]),
        ],
    )
