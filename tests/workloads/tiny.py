"""A small network with dropout on made-up data: what a user's file looks like."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dsgd import Problem


def make() -> Problem:
    x = torch.randn(320, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long()
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    return Problem(
        module,
        lambda module, x, y: cross_entropy(module(x), y),
        (x[:256], y[:256]),
        (x[256:], y[256:]),
        lambda module, x, y: (module(x).argmax(1) == y).float().mean(),
    )
