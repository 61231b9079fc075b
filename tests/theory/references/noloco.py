"""NoLoCo: the outer step of the authors' code, on pairs, after local steps of plain SGD or torch's AdamW.

Kolehmainen et al. 2025 (arXiv 2506.10911). Pairs are drawn as the strategy draws them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from references.problem import Problem, Version, weights
from references.published import Group, Published, Run, Series, s_per_update

OPTIONS: dict[str, Any] = {"lr": 0.003, "local_steps": 5}
VARIANTS = [{"lr": 0.1, "inner": "sgd"}]
OTHER = {"local_steps": 10}
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.5


def train(problem: Problem, lr: float, local_steps: int, inner: str = "adamw") -> Iterator[Version]:
    """Train for a budget of steps; the weights are the mean of the workers' slow weights."""
    p = problem.num_workers
    models = [problem.model() for _ in range(p)]
    kind = torch.optim.AdamW if inner == "adamw" else torch.optim.SGD
    optimizers = [kind(model.parameters(), lr=lr) for model in models]
    slow = [problem.initial for _ in range(p)]
    momentum = [torch.zeros_like(problem.initial) for _ in range(p)]
    begins = [0.0] * p
    for t in range(problem.steps // local_steps):
        first = t * local_steps
        for i in range(p):
            torch.nn.utils.vector_to_parameters(slow[i].clone(), models[i].parameters())
            for step in range(first, first + local_steps):
                x, y = problem.batch(i, step)
                optimizers[i].zero_grad()
                cross_entropy(models[i](x), y).backward()
                optimizers[i].step()
        moved = [weights(models[i]) - slow[i] for i in range(p)]
        ends = [begins[i] + problem.seconds(i, first, local_steps) for i in range(p)]
        groups = problem.pairs(t)
        for i, group in enumerate(groups):
            both = sum(slow[j] for j in group) / len(group)
            direction = sum(moved[j] for j in group) / len(group)
            momentum[i] = OUTER_MOMENTUM * momentum[i] + OUTER_LR * direction + OUTER_LR * (both - slow[i])
        slow = [slow[i] + momentum[i] for i in range(p)]
        begins = [max(ends[j] for j in group) for group in groups]
        yield Version(max(ends), (t + 1) * local_steps * p, torch.stack(slow).mean(dim=0))


def published(run: Run) -> Published:
    """Kolehmainen et al. 2025: a worker waits for its pair alone. With constant times and one worker F times
    slower the others are soon as slow as it is, so a round of H steps takes F H seconds in the long run.
    """

    def measured(factor: float) -> float:
        slow = {"workload": "none", "compute_time": "constant:1", "slowdown": f"0={factor}"}
        return s_per_update(run(num_workers=8, local_steps=4, steps=200, **slow))

    return Published(
        title="Seconds per round against one worker's slowness",
        series=[Series("4 F", [Group(f, 4.0 * f, [measured(f)]) for f in (1, 2, 4, 8)])],
    )
