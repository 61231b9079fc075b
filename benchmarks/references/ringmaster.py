"""Ringmaster ASGD: ASGD that leaves out gradients with a delay of R or more.

Maranjyan, Tyurin and Richtarik 2025 (arXiv 2501.16168), algorithm 5, which stops the computation of a gradient as soon
as its delay is R; with `rest="ignore"` algorithm 4, which waits for it and discards it.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.references.problem import Problem, Version

OPTIONS = {"lr": 0.1, "delay_bound": 3}


def train(problem: Problem, lr: float, delay_bound: float, rest: str = "cancel") -> Iterator[Version]:
    """Apply gradients for ever. Who is stopped leaves that mini-batch out."""
    x = problem.initial
    workers = range(problem.num_workers)
    step = [0 for _ in workers]
    ready = [problem.seconds(i, 0) for i in workers]
    point, started_at = [x for _ in workers], [0 for _ in workers]
    k = 0
    while True:
        now = min(ready)
        i = ready.index(now)
        again = [i]
        delay = k - started_at[i]
        if delay < delay_bound:
            x = x - lr * problem.gradient(i, step[i], point[i])
            k += 1
            yield Version(now, k, x)
            if rest == "cancel":
                again += [j for j in workers if j != i and k - started_at[j] >= delay_bound]
        for j in again:
            step[j] += 1
            point[j], started_at[j] = x, k
            ready[j] = now + problem.seconds(j, step[j])
