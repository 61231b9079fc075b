"""Local SGD as torch has it: PostLocalSGDOptimizer, one process a worker, parameters averaged by gloo.

Its averager averages at the steps warmup, warmup + period, ..., counted from 0: a warm-up of H - 1 steps
makes that every H-th step. Before, it means to synchronise gradients; without DistributedDataParallel it does
not.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import cross_entropy

from references.problem import Problem, Version, weights
from references.published import EXPONENTIAL, SEEDS, Group, Published, Run, Series, s_per_update

PROCESSES = True
OPTIONS = {"lr": 0.5, "local_steps": 5}


def train(problem: Problem, lr: float, local_steps: int) -> Iterator[Version]:
    """Train in a process of a group; all processes have the same weights after each averaging."""
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    model = problem.model()
    averager = PeriodicModelAverager(period=local_steps, warmup_steps=local_steps - 1)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=lr), averager)
    now = 0.0
    for step in range(problem.steps):
        x, y = problem.batch(rank, step)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if (step + 1) % local_steps == 0:
            first = step + 1 - local_steps
            now += max(problem.seconds(i, first, local_steps) for i in range(num_workers))
            yield Version(now, (step + 1) * num_workers, weights(model))


def published(run: Run) -> Published:
    """Wang and Joshi 2018 (arXiv 1810.08313), section 3: the largest of P means of H compute times, here
    exponential.
    """

    def seconds(seed: int, p: int, h: int) -> float:
        return s_per_update(run(seed=seed, num_workers=p, local_steps=h, steps=400 * h, **EXPONENTIAL)) / h

    return Published(
        title="Seconds per local step against H",
        series=[
            Series(
                f"P = {p}",
                [
                    Group(h, largest_mean(p, h), [seconds(seed, p, h) for seed in SEEDS])
                    for h in (1, 2, 4, 8, 16, 32)
                ],
            )
            for p in (2, 8)
        ],
    )


def largest_mean(p: int, h: int) -> float:
    """Return the expected largest of p means of h exponential times of mean 1: the integral of 1 - F(t)^p."""
    t = torch.linspace(0, 30 if h < 4 else 10, 300_001, dtype=torch.float64)
    below = torch.special.gammainc(torch.full_like(t, h), h * t)
    return torch.trapezoid(1 - below**p, t).item()
