"""D-PSGD: the paper's algorithm 1 with a matrix W, and the times at which a worker has what it needs.

Lian et al. 2017 (arXiv 1705.09056): X <- X W - gamma G(X), here on the ring with weights 1/3; with
`mixing="after"`, (X - gamma G(X)) W.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from references.problem import Problem, Version
from references.published import Published, Run, consensus

OPTIONS = {"lr": 0.2}
VARIANTS = [{"mixing": "after"}]
OTHER = {"lr": 0.3}


def train(problem: Problem, lr: float, mixing: str = "before") -> Iterator[Version]:
    """Train for a budget of steps; the weights are the mean of the workers'."""
    p = problem.num_workers
    near = {i: {(i - 1) % p, i, (i + 1) % p} for i in range(p)}
    w = torch.zeros(p, p)
    for i in range(p):
        w[i, list(near[i])] = 1 / len(near[i])
    x = problem.initial.repeat(p, 1)
    begins = [0.0] * p
    for t in range(problem.steps):
        step = lr * torch.stack([problem.gradient(i, t, x[i]) for i in range(p)])
        x = w @ x - step if mixing == "before" else w @ (x - step)
        ends = [begins[i] + problem.seconds(i, t) for i in range(p)]
        there = begins if mixing == "before" else ends
        begins = [max(ends[i], *(there[j] for j in near[i])) for i in range(p)]
        yield Version(max(ends), (t + 1) * p, x.mean(dim=0))


def published(run: Run) -> Published:
    """Lian et al. 2017, section 4, bound the workers' distance by the spectral gap; on one quadratic it
    follows from all eigenvalues of the ring (dsgd/theory/mixing.py).
    """
    lr = 0.2

    def law(n: int) -> float:
        mu = (1 + 2 * torch.cos(2 * torch.pi * torch.arange(1, n) / n)) / 3
        return float((lr**2 / (1 - (mu - lr) ** 2)).sum() / n)

    return consensus(run, law, "eigenvalues of the ring", "Consensus distance on a ring against N")
