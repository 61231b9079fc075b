"""A network whose activations take a megabyte a sample."""

import torch
from torch import nn

from dsgd import Problem


def make() -> Problem:
    x = torch.randn(4096, 4, generator=torch.Generator().manual_seed(0))
    module = nn.Sequential(nn.Linear(4, 250_000), nn.Sigmoid(), nn.Linear(250_000, 1, bias=False))
    return Problem(
        module, lambda module, x, y: (module(x) - y).square().mean(), (x, x[:, :1]), (x[:8], x[:8, :1])
    )
