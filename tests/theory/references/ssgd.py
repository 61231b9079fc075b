"""Synchronous SGD as torch has it: DistributedDataParallel, one process a worker, gradients averaged by gloo.

Li et al. 2020, "PyTorch distributed: experiences on accelerating data parallel training" (arXiv 2006.15704).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from references.problem import Problem, Version, weights
from references.published import (
    EXPONENTIAL,
    SEEDS,
    Group,
    Published,
    Run,
    Series,
    harmonic,
    s_per_update,
)

PROCESSES = True
OPTIONS = {"lr": 0.2, "momentum": 0.5}


def train(problem: Problem, lr: float, momentum: float = 0.0) -> Iterator[Version]:
    """Train in a process of a group; all processes end with the same weights."""
    rank, num_workers = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(problem.model())
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    now = 0.0
    for step in range(problem.steps):
        x, y = problem.batch(rank, step)
        sgd.zero_grad()
        cross_entropy(model(x), y).backward()
        sgd.step()
        now += max(problem.seconds(i, step) for i in range(num_workers))
        yield Version(now, (step + 1) * num_workers, weights(model))


def published(run: Run) -> Published:
    """Dutta et al. 2018 (arXiv 1803.01113): E[T] = H_P/mu, the mean of the largest of P exponential times."""
    return Published(
        title="Seconds per update against P",
        series=[
            Series(
                "H_P = 1 + 1/2 + … + 1/P",
                [
                    Group(
                        p,
                        harmonic(p),
                        [s_per_update(run(seed=s, num_workers=p, steps=800, **EXPONENTIAL)) for s in SEEDS],
                    )
                    for p in (1, 2, 4, 8, 16, 32)
                ],
            )
        ],
    )
