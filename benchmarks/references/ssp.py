"""Stale-synchronous parallel SGD, event by event: a worker too far ahead waits for the slowest.

Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel parameter server" (NIPS 26), section 2:
"the slowest and fastest workers must be <= s clocks apart". As on the page, workers read the newest weights.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from benchmarks.references.problem import Problem, Version

OPTIONS = {"lr": 0.1, "slack": 2}


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
