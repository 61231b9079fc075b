"""Stale-synchronous parallel SGD, event by event: a worker too far ahead waits for the slowest.

Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel parameter server" (NIPS 26),
section 2: a worker more than s clocks ahead of the slowest waits for it. As on the page, workers read the
newest weights.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from references.problem import Problem, Version
from references.published import EXPONENTIAL, SEEDS, Group, Published, Run, Series, s_per_update

OPTIONS = {"lr": 0.1, "slack": 2}
OTHER = {"slack": 1}


def train(problem: Problem, lr: float, slack: float) -> Iterator[Version]:
    """Apply gradients for ever."""
    w = problem.initial
    workers = range(problem.num_workers)
    clock, read = [0 for _ in workers], [w for _ in workers]
    ready: list[tuple[float, int]] = []
    waiting = set(workers)
    now, gradients = 0.0, 0
    while True:
        for i in [i for i in waiting if clock[i] - min(clock) <= slack]:
            waiting.remove(i)
            read[i] = w
            heapq.heappush(ready, (now + problem.seconds(i, clock[i]), i))
        now, i = heapq.heappop(ready)
        w = w - lr * problem.gradient(i, clock[i], read[i])
        gradients += 1
        yield Version(now, gradients, w)
        clock[i] += 1
        waiting.add(i)


def published(run: Run) -> Published:
    """Give the rate of two workers with exponential times; the paper only measures rates, on a cluster.

    The lead of worker 0 is a random walk on -(s + 1), ..., s + 1, and all 2s + 3 places are equally likely,
    since both steps have the same rate. A worker waits at one of them: it works (2s + 2)/(2s + 3) of the
    time.
    """

    def rate(seed: int, s: int) -> float:
        result = run(seed=seed, slack=s, num_workers=2, steps=4000, **EXPONENTIAL)
        return 1 / (2 * s_per_update(result))

    return Published(
        title="Rate of a worker against the slack, P = 2",
        series=[
            Series(
                "(2s + 2)/(2s + 3)",
                [
                    Group(s, (2 * s + 2) / (2 * s + 3), [rate(seed, s) for seed in SEEDS])
                    for s in (0, 1, 2, 3, 4, 6, 8)
                ],
            )
        ],
    )
