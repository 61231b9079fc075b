"""A module of which a mini-batch reaches a part: a head for each of two tasks, and one that no task has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dsgd import DataConfig, Problem


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    runs: int = 2
    """Samples of one task in a row."""

    used: bool = False
    """Whether the loss depends on the spare layer."""


class Heads(nn.Module):
    def __init__(self, used: bool) -> None:
        super().__init__()
        self.used = used
        self.body, self.spare = nn.Linear(4, 6), nn.Linear(4, 3)
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        hidden = self.body(x).tanh()
        found: Tensor = hidden.new_zeros(len(x))
        for number, head in enumerate(self.heads):
            if (here := task == number).any():
                found = found + here * head(hidden)[:, 0]
        if self.used:
            found = found + self.spare(x).sum(1)
        return found


def loss(module: nn.Module, x: Tensor, task: Tensor, y: Tensor) -> Tensor:
    found: Tensor = (module(x, task) - y).square().mean()
    return found


def make(cfg: Config) -> Problem:
    x, y = torch.randn(64, 4), torch.randn(64)
    data: Any = x, torch.arange(64) // cfg.runs % 2, y
    return Problem(Heads(cfg.used), loss, data, data)
