"""A network whose width is an option: what a user's file with options looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import nn

from dsgd import DataConfig, Problem


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """The network."""

    width: Annotated[int, Ge(1)] = 4
    """Units of the hidden layer."""

    curve: Literal["relu", "tanh"] = "relu"
    """What follows it."""


def make(cfg: Config) -> Problem:
    x = torch.linspace(-1, 1, 256)[:, None]
    curve = nn.ReLU() if cfg.curve == "relu" else nn.Tanh()
    module = nn.Sequential(nn.Linear(1, cfg.width), curve, nn.Linear(cfg.width, 1))
    return Problem(module, lambda module, x: (module(x) - x * x).square().mean(), (x,), (x,))
