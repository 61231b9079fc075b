"""AD-PSGD: the paper's algorithm 1, gradient by gradient, on a ring.

Lian et al. 2018 (arXiv 1710.06952). Which neighbour a worker averages with is drawn as the strategy draws it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from references.problem import Problem, Version
from references.published import SEEDS, Group, Published, Run, Series, s_per_update

OPTIONS = {"lr": 0.3}
OTHER = {"lr": 0.2}


def train(problem: Problem, lr: float) -> Iterator[Version]:
    """Train for ever; the weights are the mean of the workers'."""
    p = problem.num_workers
    x = [problem.initial for _ in range(p)]
    read, steps = list(x), [0] * p
    ready = [(problem.seconds(i, 0), i) for i in range(p)]
    heapq.heapify(ready)
    gradients = 0
    while True:
        now, i = heapq.heappop(ready)
        gradient = problem.gradient(i, steps[i], read[i])
        j = problem.peer(i, steps[i])
        x[i] = x[j] = (x[i] + x[j]) / 2
        x[i] = x[i] - lr * gradient
        gradients += 1
        yield Version(now, gradients, sum(x[1:], x[0]) / p)
        read[i] = x[i]
        steps[i] += 1
        heapq.heappush(ready, (now + problem.seconds(i, steps[i]), i))


def published(run: Run) -> Published:
    """Nobody waits (Lian et al. 2018, section 5): P workers, one of them F times slower, make P - 1 + 1/F
    updates in the time that the others need for a mini-batch.
    """

    def measured(seed: int, factor: float) -> float:
        slow = {"workload": "none", "compute_time": "exponential:1", "slowdown": f"0={factor}"}
        return s_per_update(run(seed=seed, num_workers=8, steps=400, **slow))

    return Published(
        title="Seconds per update against one worker's slowness",
        series=[
            Series(
                "1 / (P - 1 + 1/F), P = 8",
                [Group(f, 1 / (7 + 1 / f), [measured(seed, f) for seed in SEEDS]) for f in (1, 2, 4, 8, 16)],
            )
        ],
    )
