"""A linear model of the samples in a folder: what a user's file with --data looks like."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dsgd import DataConfig, Problem
from dsgd.models.datasets import labelled


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """The samples."""

    data: str | None = None
    """A file or folder of samples with three features and four classes."""


def loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(module(x), y)


def make(cfg: Config) -> Problem:
    assert cfg.data
    train, test = labelled(cfg.data)
    return Problem(nn.Linear(3, 4), loss, train, test)
