"""Streaming DiLoCo step by step, with torch's own optimizers: one for each worker, and outside an SGD with
Nesterov momentum for each fragment.

Douillard et al. 2025 (arXiv 2501.18512), algorithm 2, with all-reduces that take `overlap` inner steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

from references.problem import Problem, Version, in_torch_order, weights

# Twenty rounds: a momentum of 0.9 would average over half the run. AdamW, in a variant, turns the rounding of
# gradients near 0 into whole steps, so the comparison over eight seeds has SGD inside.
OPTIONS = {
    "inner": "sgd", "lr": 0.1, "momentum": 0.5, "local_steps": 5, "fragments": 2, "overlap": 1,
    "outer_lr": 0.7, "outer_momentum": 0.5,
}  # fmt: skip
ADAMW = {"inner": "adamw", "lr": 0.01, "momentum": 0.0}
VARIANTS = [{**ADAMW, "fragments": 3, "overlap": 0, "pattern": "sequential"}, {"local_share": 0.2}]
OTHER = {"local_share": 0.45}


def train(
    problem: Problem,
    inner: str,
    lr: float,
    momentum: float,
    local_steps: int,
    fragments: int,
    overlap: int,
    outer_lr: float,
    outer_momentum: float,
    pattern: str = "strided",
    local_share: float | None = None,
) -> Iterator[Version]:
    """Train until each worker has had its mini-batches."""
    share = local_share if local_share is not None else (0.5 if overlap else 0.0)
    parts = masks(problem, fragments, strided=pattern == "strided")
    theta = [nn.Parameter(problem.initial[part]) for part in parts]  # by fragment: the weights agreed upon
    outer = [torch.optim.SGD([p], lr=outer_lr, momentum=outer_momentum, nesterov=True) for p in theta]
    replicas = [Replica(problem, i, inner, lr, momentum) for i in range(problem.num_workers)]
    # When each fragment's outer step is made: each H steps after its last one, H/N after that of another.
    due = {(k + 1) * local_steps // fragments: k % fragments for k in range(fragments * problem.steps)}
    mean, now, last = torch.zeros(0), 0.0, 0
    for t in range(1, problem.steps + 1):
        for replica in replicas:
            replica.step(t - 1)
        if t + overlap in due:  # the outer gradients are sent
            sent = parts[due[t + overlap]]
            mean = torch.stack([weights(replica.model)[sent] for replica in replicas]).mean(0)
        if t in due:  # and have come in
            f = due[t]
            theta[f].grad = theta[f].detach() - mean
            outer[f].step()
            for replica in replicas:
                replica.mix(parts[f], theta[f].detach(), share)
            now += max(problem.seconds(i, last, t - last) for i in range(problem.num_workers))
            last = t
            w = problem.initial.clone()
            for part, p in zip(parts, theta, strict=True):
                w[part] = p.detach()
            yield Version(now, t * problem.num_workers, w)


def masks(problem: Problem, fragments: int, *, strided: bool) -> list[Tensor]:
    """Return which weights (D,) each fragment has; they are numbered as in dsgd, not as in torch."""
    dim = len(problem.initial)
    number = in_torch_order(torch.arange(dim))
    if strided:
        return [number % fragments == f for f in range(fragments)]
    cuts = [f * dim // fragments for f in range(fragments + 1)]
    return [(cuts[f] <= number) & (number < cuts[f + 1]) for f in range(fragments)]


class Replica:
    """A worker: its own weights, and an optimizer whose moments outlive the exchanges."""

    def __init__(self, problem: Problem, worker: int, inner: str, lr: float, momentum: float) -> None:
        self.problem, self.worker = problem, worker
        self.model = problem.model()
        own = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(own, lr=lr, weight_decay=0.01)
            if inner == "adamw"
            else torch.optim.SGD(own, lr=lr, momentum=momentum)
        )

    def step(self, number: int) -> None:
        """Take the inner step on the mini-batch with this number."""
        x, y = self.problem.batch(self.worker, number)
        self.optimizer.zero_grad()
        cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def mix(self, part: Tensor, agreed: Tensor, share: float) -> None:
        """Keep a share of the own weights of a fragment, and take the rest from those agreed upon."""
        own = weights(self.model)
        own[part] = share * own[part] + (1 - share) * agreed
        with torch.no_grad():
            vector_to_parameters(own, self.model.parameters())
