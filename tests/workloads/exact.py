"""A linear classifier by least absolute deviations, whose sums lose nothing in whatever order they are made:
features are -1, 0 and 1, weights multiples of a power of two, and gradients, means of signs, too.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import one_hot

from dsgd import Problem

CLASSES = 4


def make() -> Problem:
    numbers = torch.Generator().manual_seed(0)
    x = torch.randint(-1, 2, (320, 6), generator=numbers).float()
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] * x[:, 2] > 0).long()
    module = nn.Linear(6, CLASSES)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.arange(parameter.numel()).remainder(5).sub(2).div(8).view_as(parameter))
    return Problem(module, loss, (x[:256], y[:256]), (x[256:], y[256:]), score)


def loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    return (module(x) - one_hot(y, CLASSES)).abs().mean()


def score(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    return ((module(x) > 0.5) == (one_hot(y, CLASSES) > 0)).float().mean()
