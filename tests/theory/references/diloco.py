"""DiLoCo with torch's own optimizers: AdamW inside, SGD with Nesterov momentum outside.

Douillard et al. 2023 (arXiv 2311.08105), algorithm 1. `exchange="async"`: Liu et al. 2024 (arXiv 2401.09135),
delayed Nesterov as printed in its algorithm 3, with buffer Delta and activation c = 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from references.problem import Problem, Version, weights
from references.published import Group, Published, Run, Series

# Twenty rounds: a momentum of 0.9 would average over half the run.
OPTIONS = {"lr": 0.01, "local_steps": 5, "outer_lr": 0.7, "outer_momentum": 0.5}
VARIANTS = [{"exchange": "async"}]
OTHER = {"outer_momentum": 0.45}


def train(
    problem: Problem,
    lr: float,
    local_steps: int,
    outer_lr: float,
    outer_momentum: float,
    exchange: str = "sync",
) -> Iterator[Version]:
    """Train until each worker has had its mini-batches."""
    how = synchronous if exchange == "sync" else asynchronous
    return how(
        problem,
        [Replica(problem, i, lr) for i in range(problem.num_workers)],
        local_steps,
        outer_lr,
        outer_momentum,
    )


class Replica:
    """A worker: its copy of the model, and an AdamW whose moments outlive a round."""

    def __init__(self, problem: Problem, worker: int, lr: float) -> None:
        self.problem, self.worker, self.steps = problem, worker, 0
        self.model = problem.model()
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.01)

    def moved(self, theta: Tensor, steps: int) -> Tensor:
        """Take inner steps from theta (D,); return theta minus where they lead, the outer gradient (D,)."""
        with torch.no_grad():
            vector_to_parameters(theta.clone(), self.model.parameters())
        for _ in range(steps):
            x, y = self.problem.batch(self.worker, self.steps)
            self.adamw.zero_grad()
            cross_entropy(self.model(x), y).backward()
            self.adamw.step()
            self.steps += 1
        return theta - weights(self.model)


def synchronous(
    problem: Problem, replicas: list[Replica], h: int, outer_lr: float, outer_momentum: float
) -> Iterator[Version]:
    """Average the outer gradients of all replicas, and take one outer step."""
    theta = nn.Parameter(problem.initial.clone())
    outer = torch.optim.SGD([theta], lr=outer_lr, momentum=outer_momentum, nesterov=True)
    now = 0.0
    for t in range(0, problem.steps, h):
        moved = [replica.moved(theta.detach(), h) for replica in replicas]
        theta.grad = torch.stack(moved).mean(0)
        outer.step()
        now += max(problem.seconds(i, t, h) for i in range(problem.num_workers))
        yield Version(now, (t + h) * problem.num_workers, theta.detach().clone())


def asynchronous(
    problem: Problem, replicas: list[Replica], h: int, outer_lr: float, outer_momentum: float
) -> Iterator[Version]:
    """Take each outer gradient as it comes; the momentum joins in with every N-th, N the workers' number."""
    n = problem.num_workers
    theta = problem.initial
    momentum, delta = torch.zeros_like(theta), torch.zeros_like(theta)
    read = [theta for _ in replicas]
    ready = [(problem.seconds(i, 0, h), i) for i in range(n)]
    heapq.heapify(ready)
    update, left = 0, n * (problem.steps - h)
    while ready:
        now, i = heapq.heappop(ready)
        g = replicas[i].moved(read[i], h)
        delta = delta + g
        update += 1
        theta = theta - outer_lr * g / n
        if update % n == 0:
            momentum = outer_momentum * momentum + delta / n
            theta = theta - outer_lr * outer_momentum * momentum
            delta = torch.zeros_like(theta)
        yield Version(now, update * h, theta)
        if left > 0:
            left -= h
            read[i] = theta
            heapq.heappush(ready, (now + problem.seconds(i, replicas[i].steps, h), i))


def published(run: Run) -> Published:
    """Count the bytes of float32: each worker gets and sends a vector (D,) every H mini-batches.

    The paper communicates 500 times less than data parallelism with H = 500.
    """
    dim, p = 1000, 4

    def sent(h: int) -> float:
        result = run(num_workers=p, local_steps=h, steps=64, workload="quadratic", dim=dim, eval_every=0)
        return float(result.evaluations["bytes"][-1]) / (p * 64)

    return Published(
        title="Bytes per mini-batch against H",
        series=[Series("8 D/H", [Group(h, 8 * dim / h, [sent(h)]) for h in (1, 2, 4, 8, 16, 32, 64)])],
    )
