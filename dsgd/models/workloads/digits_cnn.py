"""A small convolutional network with dropout on scikit-learn's handwritten digits."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dsgd.core.problem import Problem


def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of a mini-batch."""
    return cross_entropy(module(x), y)


def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the share of digits that are recognised."""
    guess: Tensor = module(x).argmax(1)
    return (guess == y).float().mean()


def make() -> Problem:
    """Return the network and the data: 1,400 digits to train on, 397 to test."""
    x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x = x.float().view(-1, 1, 8, 8) / 16
    features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    module = nn.Sequential(features, nn.Dropout(0.1), nn.Linear(128, 10))
    return Problem(module, loss, train=(x[:1400], y[:1400]), test=(x[1400:], y[1400:]), score=accuracy)
