"""Small modules whose file draws from each generator that a process has, and sets what it has once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dsgd import DataConfig, Problem

AT_THE_TOP = np.random.normal(size=4).astype("f4")


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    draws: str = "numpy"
    """numpy, python or torch."""


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples that get other noise at each look, with numpy's generator or Python's."""

    def __init__(self, draws: str) -> None:
        self.x = torch.from_numpy(np.random.normal(size=(96, 4)).astype("f4") + AT_THE_TOP)
        self.draws = draws

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = {
            "numpy": lambda: torch.from_numpy(np.random.normal(0, 0.1, 4).astype("f4")),
            "python": lambda: torch.tensor([random.gauss(0, 0.1) for _ in range(4)]),
            "torch": lambda: 0.1 * torch.randn(4),
        }[self.draws]()
        return self.x[i] + noise, self.x[i].sum()[None]


class Skipping(nn.Module):
    """A layer that is left out of one gradient in two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        if random.random() < 0.5:
            x = self.first(x)
        found: Tensor = self.second(x)
        return found


def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = (module(x) - y).square().mean()
    return found


def make(cfg: Config) -> Problem:
    data = Noisy(cfg.draws)
    return Problem(Skipping(), loss, data, data)
