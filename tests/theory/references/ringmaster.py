"""Ringmaster ASGD: ASGD that leaves out gradients with a delay of R or more.

Maranjyan, Tyurin and Richtarik 2025 (arXiv 2501.16168), algorithm 5, which stops the computation of a
gradient as soon as its delay is R; with `rest="ignore"` algorithm 4, which waits for it and discards it.
"""

from __future__ import annotations

from collections.abc import Iterator

from references.problem import Problem, Version
from references.published import Group, Published, Run, Series

OPTIONS = {"lr": 0.1, "delay_bound": 3}
VARIANTS = [{"rest": "ignore"}]
OTHER = {"rest": "ignore"}


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


def published(run: Run) -> Published:
    """Maranjyan et al. 2025, lemma 4.1: R updates in a row take at most t(R), if worker i takes tau_i s,
    always.

    t(R) = 2 min over m of (m + R)/(1/tau_1 + ... + 1/tau_m); here tau_i = i. Nothing is random.
    """
    p = 8
    rates = [1 / i for i in range(1, p + 1)]
    slowdown = ",".join(f"{i}={i + 1}" for i in range(p))

    def longest(r: int) -> float:
        result = run(
            delay_bound=r, num_workers=p, steps=40 * r // p + 20, workload="none", compute_time="constant:1",
            slowdown=slowdown,
        )  # fmt: skip
        at = [0.0, *result.updates["t_s"]]
        return float(max(after - before for before, after in zip(at, at[r:], strict=False)))

    sizes = (1, 2, 4, 8, 16, 32, 64)
    return Published(
        title=f"Longest time of R updates, P = {p}",
        series=[
            Series(
                "bound t(R)",
                [
                    Group(r, 2 * min((m + r) / sum(rates[:m]) for m in range(1, p + 1)), [longest(r)])
                    for r in sizes
                ],
                bound=True,
            )
        ],
    )
