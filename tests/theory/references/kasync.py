"""K-async SGD: the first K gradients make an update, at whatever weights; the other workers go on.

Dutta et al. 2018, "Slow and stale gradients can win the race" (arXiv 1803.01113), section 2.1. K-batch-async
(`count="gradients"`): a worker that has delivered goes on at once, and may give several of the K.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import torch

from references.problem import Problem, Version
from references.published import (
    EXPONENTIAL,
    SEEDS,
    Group,
    Published,
    Run,
    Series,
    harmonic,
    s_per_update,
)

OPTIONS = {"lr": 0.2, "k": 2}
VARIANTS = [{"count": "gradients"}]
OTHER = {"count": "gradients"}


def train(problem: Problem, lr: float, k: int, count: str = "workers") -> Iterator[Version]:
    """Make updates for ever."""
    w = problem.initial
    workers = range(problem.num_workers)
    step, read = [0 for _ in workers], [w for _ in workers]
    ready = [(problem.seconds(i, 0), i) for i in workers]
    heapq.heapify(ready)
    update = 0

    def restart(i: int, now: float) -> None:
        step[i] += 1
        read[i] = w
        heapq.heappush(ready, (now + problem.seconds(i, step[i]), i))

    while True:
        total = torch.zeros_like(w)
        delivered = []
        for arrived in range(1, k + 1):
            now, i = heapq.heappop(ready)
            total += problem.gradient(i, step[i], read[i])
            if count == "gradients" and arrived < k:
                restart(i, now)
            else:
                delivered.append(i)
        w = w - lr / k * total
        update += 1
        yield Version(now, update * k, w)
        for i in delivered:
            restart(i, now)


def published(run: Run) -> Published:
    """Dutta et al. 2018, section 3: H_P - H_(P-K) s an update if K workers count, K/P if K gradients do."""
    p = 8

    def seconds(seed: int, k: int, count: str) -> float:
        return s_per_update(run(seed=seed, k=k, count=count, num_workers=p, steps=60 * k, **EXPONENTIAL))

    laws = {
        "workers": [harmonic(p) - harmonic(p - k) for k in range(1, p + 1)],
        "gradients": [k / p for k in range(1, p + 1)],
    }
    return Published(
        title=f"Seconds per update against K, P = {p}",
        series=[
            Series(
                f"counting {count}",
                [
                    Group(k, law, [seconds(seed, k, count) for seed in SEEDS])
                    for k, law in enumerate(laws[count], 1)
                ],
            )
            for count in laws
        ],
    )
