"""Convolutional networks for grey images of 28 x 28 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.flop_counter import FlopCounterMode


class Grey(nn.Module):
    """Turns images of bytes (B, H, W) into features (B, 1, H, W), -1 to 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1).float() / 127.5 - 1


def small_cnn(classes: int) -> nn.Sequential:
    """Return two convolutions with pooling, then two linear layers; 206,922 weights with ten classes."""
    return nn.Sequential(
        *(Grey(), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, classes)),
    )


def small_resnet(classes: int) -> nn.Sequential:
    """Return three stages of one residual block, on 28, 14 and 7 pixels (He et al. 2016, arXiv 1512.03385);
    77,754 weights with ten classes.
    """
    return nn.Sequential(
        *(Grey(), nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(ResidualBlock(16, 16), ResidualBlock(16, 32, stride=2), ResidualBlock(32, 64, stride=2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)),
    )


class ResidualBlock(nn.Module):
    """Two convolutions whose output is added to their input, or to its projection where shapes differ."""

    def __init__(self, channels: int, out: int, *, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *(nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, out, H/stride, W/stride) of x (B, channels, H, W)."""
        return relu(self.shortcut(x) + self.residual(x))


def classification_loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of a mini-batch."""
    return cross_entropy(module(x), y)


def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the share of samples that are classified correctly."""
    guess: Tensor = module(x).argmax(1)
    return (guess == y).float().mean()


def flops_per_image(module: nn.Module) -> int:
    """Return the floating point operations of an image's gradient, as torch counts them."""
    x, y = torch.zeros(2, 28, 28, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        loss = classification_loss(module, x, y)
        torch.autograd.grad(loss, list(module.parameters()))
    return int(counter.get_total_flops()) // len(x)
