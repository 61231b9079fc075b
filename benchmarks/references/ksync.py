"""K-sync SGD: all workers start at the same weights, the K that finish first count, the others are stopped.

Dutta et al. 2018, "Slow and stale gradients can win the race" (arXiv 1803.01113), section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.references.problem import Problem, Version

OPTIONS = {"lr": 0.3, "k": 3}


def train(problem: Problem, lr: float, k: int) -> Iterator[Version]:
    """Make updates for ever. Who is stopped leaves that mini-batch out."""
    w = problem.initial
    now, update = 0.0, 0
    while True:
        finished = sorted((now + problem.seconds(i, update), i) for i in range(problem.num_workers))[:k]
        w = w - lr / k * sum(problem.gradient(i, update, w) for _, i in finished)
        now, _ = finished[-1]
        update += 1
        yield Version(now, update * k, w)
