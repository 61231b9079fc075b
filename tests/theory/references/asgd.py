"""Asynchronous SGD, event by event: the gradient that is ready first is applied, whatever the weights are by
then.

Dean et al. 2012, "Large scale distributed deep networks" (NIPS 25), section 4.1; the server's step is theirs
without Adagrad.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from references.problem import Problem, Version
from references.published import EXPONENTIAL, SEEDS, Group, Published, Run, Series

OPTIONS = {"lr": 0.1}
OTHER = {"lr": 0.101}


def train(problem: Problem, lr: float) -> Iterator[Version]:
    """Apply gradients for ever."""
    w = problem.initial
    workers = range(problem.num_workers)
    step, read = [0 for _ in workers], [w for _ in workers]
    ready = [(problem.seconds(i, 0), i) for i in workers]
    heapq.heapify(ready)
    gradients = 0
    while True:
        now, i = heapq.heappop(ready)
        w = w - lr * problem.gradient(i, step[i], read[i])
        gradients += 1
        yield Version(now, gradients, w)
        step[i] += 1
        read[i] = w
        heapq.heappush(ready, (now + problem.seconds(i, step[i]), i))


def published(run: Run) -> Published:
    """Mitliagkas et al. 2016 (arXiv 1605.09774): with exponential times staleness is geometric."""
    p, most = 4, 8
    runs = [run(seed=seed, num_workers=p, steps=4000, **EXPONENTIAL).staleness for seed in SEEDS]
    return Published(
        title=f"How stale gradients are, P = {p}",
        series=[
            Series(
                "(1/P) (1 - 1/P)^k",
                [
                    Group(
                        k, (1 - 1 / p) ** k / p, [counts.get(k, 0) / sum(counts.values()) for counts in runs]
                    )
                    for k in range(most + 1)
                ],
            )
        ],
    )
