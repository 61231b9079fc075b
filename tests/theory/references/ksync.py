"""K-sync SGD: all workers start at the same weights, the K that finish first count, the others are stopped.

Dutta et al. 2018, "Slow and stale gradients can win the race" (arXiv 1803.01113), section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from references.problem import Problem, Version
from references.published import SEEDS, Group, Published, Run, Series, harmonic, s_per_update

OPTIONS = {"lr": 0.3, "k": 3}
OTHER = {"k": 2}


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


def published(run: Run) -> Published:
    """Dutta et al. 2018, theorems on runtime and error of K-sync: the trade-off between them.

    Exponential times, and a quadratic of curvature 1 whose gradients have noise of variance 1 in each
    coordinate. An update takes H_P - H_(P-K), and the loss cannot fall below lr/(2K(2 - lr)) a coordinate.
    The paper's bound for any strongly convex loss, lr/(2K), is (2 - lr) times that.
    """
    p, lr, dim, updates = 8, 0.1, 200, 600
    problem = {"workload": "quadratic", "dim": dim, "grad_noise": 1.0, "compute_time": "exponential:1"}

    def group(k: int) -> Group:
        runs = [run(seed=s, k=k, num_workers=p, steps=updates * k // p, lr=lr, **problem) for s in SEEDS]
        floors = [fmean(result.updates["loss"][updates // 4 :]) / dim for result in runs]
        seconds = harmonic(p) - harmonic(p - k)
        at = [s_per_update(result) for result in runs]
        return Group(seconds, lr / (2 * k * (2 - lr)), floors, at)

    groups = [group(k) for k in (1, 2, 3, 4, 6, 8)]
    return Published(
        title=f"Error against time, K = 1 … {p} of P = {p}",
        series=[
            Series("floor", groups),
            Series("bound of the paper", [Group(g.x, g.law * (2 - lr), ()) for g in groups]),
        ],
    )
