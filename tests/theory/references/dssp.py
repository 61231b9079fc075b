"""Dynamic SSP: the server's algorithm and its controller, which predicts the next pushes of two workers.

Zhao et al. 2019 (arXiv 1908.11848), algorithms 1 and 2, with the two differences that the page names: what is
granted counts from the present gap, so that no worker starts more than `slack_high` ahead, and is void once
the slowest worker has caught up to within `slack_low`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from references.problem import Problem, Version
from references.published import EXPONENTIAL, SEEDS, Group, Published, Run, Series, s_per_update

OPTIONS = {"lr": 0.1, "slack_low": 1, "slack_high": 6}
OTHER = {"slack_high": 3}


def controller(fastest: list[float], slowest: list[float], most: int) -> int:
    """Return how many mini-batches more bring the fastest's push closest to one of the slowest's.

    fastest, slowest: when (s) each has pushed so far, 0 before. most: the largest answer.
    """
    before, last = ([0.0, 0.0, *slowest])[-2:]
    predicted = [last + k * (last - before) for k in range(1, most + 2)]
    before, last = ([0.0, 0.0, *fastest])[-2:]
    best, shortest = 0, float("inf")
    for r in range(most + 1):
        for push in predicted:
            if abs(last + r * (last - before) - push) < shortest:
                best, shortest = r, abs(last + r * (last - before) - push)
    return best


def train(problem: Problem, lr: float, slack_low: int, slack_high: int) -> Iterator[Version]:
    """Apply gradients for ever."""
    w = problem.initial
    workers = range(problem.num_workers)
    clock, granted, read = [0 for _ in workers], [0 for _ in workers], [w for _ in workers]
    pushes: list[list[float]] = [[] for _ in workers]
    ready = [(problem.seconds(p, 0), p) for p in workers]
    heapq.heapify(ready)
    waiting: set[int] = set()
    gradients = 0
    while True:
        now, p = heapq.heappop(ready)
        w = w - lr * problem.gradient(p, clock[p], read[p])
        gradients += 1
        yield Version(now, gradients, w)
        clock[p] += 1
        pushes[p].append(now)
        waiting.add(p)
        ahead = clock[p] - min(clock)
        go = {i for i in waiting if clock[i] - min(clock) <= slack_low}
        if ahead <= slack_low:
            granted[p] = 0
        elif granted[p] > 0:
            granted[p] -= 1
            go.add(p)
        elif clock[p] == max(clock):
            slowest = clock.index(min(clock))
            r = controller(pushes[p], pushes[slowest], slack_high + 1 - ahead)
            if r > 0:
                granted[p] = r - 1
                go.add(p)
        for i in sorted(go):
            waiting.remove(i)
            read[i] = w
            heapq.heappush(ready, (now + problem.seconds(i, clock[i]), i))


def published(run: Run) -> Published:
    """Give the rate of two workers with exponential times between those of SSP with either slack.

    SSP's rate is (2s + 2)/(2s + 3), as ssp.py derives; that with s_U is a bound, since no worker starts
    further ahead. The paper has no formula.
    """
    low = 1

    def rate(seed: int, high: int) -> float:
        result = run(seed=seed, slack_low=low, slack_high=high, num_workers=2, steps=4000, **EXPONENTIAL)
        return 1 / (2 * s_per_update(result))

    def of_ssp(s: int) -> float:
        return (2 * s + 2) / (2 * s + 3)

    sizes = (2, 3, 4, 6, 8, 12)
    return Published(
        title=f"Rate of a worker against s_U, s_L = {low}, P = 2",
        series=[
            Series(
                "SSP with slack s_U",
                [Group(high, of_ssp(high), [rate(seed, high) for seed in SEEDS]) for high in sizes],
                bound=True,
            ),
            Series(f"SSP with slack {low}", [Group(high, of_ssp(low), ()) for high in sizes]),
        ],
    )
