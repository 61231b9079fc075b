"""Small modules that carry more than their trained parameters, one for each name of `--carries`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from dsgd import DataConfig, Problem


class Tuned(nn.Module):
    """A pretrained layer, frozen in eval mode, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)
        pretrained = {"mean": torch.tensor([1.0, -2, 3, 0.5]), "var": torch.tensor([4.0, 0.25, 9, 1])}
        statistics = {f"running_{name}": value for name, value in pretrained.items()}
        self.norm.load_state_dict(statistics, strict=False)
        self.norm.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(x))
        return found


class TunedByTrain(Tuned):
    """The same, frozen each time that the module's mode is set."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.train()

    def train(self, mode: bool = True) -> TunedByTrain:
        super().train(mode)
        self.norm.eval()
        return self


class Centred(nn.Module):
    """A moving average of what comes in, and how often it was updated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("centre", torch.zeros(4))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.centre: Tensor
        self.updates: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.updates += 1
            self.centre = self.centre + (x.mean(0) - self.centre) / self.updates
        found: Tensor = self.layer(x - self.centre)
        return found


class Typed(nn.Module):
    """Buffers of all types, as views of another order, empty and without dimensions; each gradient changes
    them by what their type alone can hold.
    """

    TYPES: ClassVar = [
        torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bfloat16,
        torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        for number, kind in enumerate(self.TYPES):
            self.register_buffer(f"of_{number}", torch.zeros(3, 2, dtype=kind).t())
            self.register_buffer(f"alone_{number}", torch.zeros((), dtype=kind))
            self.register_buffer(f"empty_{number}", torch.zeros(0, 3, dtype=kind))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        for buffer in self.buffers():
            if self.training and buffer.dtype == torch.bool:
                buffer.logical_not_()
            elif self.training:
                buffer.add_(
                    1 / 3 + 1j / 7 if buffer.is_complex() else 1 / 3 if buffer.is_floating_point() else 5
                )
            found = found + buffer.to(torch.complex128).abs().sum().float() / 64
        return found


class Taught(nn.Module):
    """A layer, and a frozen copy that follows it slowly."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.slow = nn.Linear(4, 1), nn.Linear(4, 1).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for slow, fast in zip(self.slow.parameters(), self.layer.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
        found: Tensor = self.layer(x) + 0.5 * self.slow(x)
        return found


def squared(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = (module(x) - y).square().mean()
    return found


def frozen_in_the_loss(module: Any, x: Tensor, y: Tensor) -> Tensor:
    module.norm.eval()
    return squared(module, x, y)


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """What the module carries."""

    carries: str = "frozen"
    """frozen, frozen-by-train, frozen-by-loss, spectral, average, types, teacher."""


def make(cfg: Config) -> Problem:
    x = 3 + 2 * torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)
    module: nn.Module = Tuned()
    if cfg.carries == "frozen-by-train":
        module = TunedByTrain().train()
    elif cfg.carries == "frozen-by-loss":
        module.train()
    elif cfg.carries == "spectral":
        module = nn.Sequential(spectral_norm(nn.Linear(4, 16)), nn.Tanh(), spectral_norm(nn.Linear(16, 1)))
    elif cfg.carries == "average":
        module = Centred()
    elif cfg.carries == "types":
        module = Typed()
    elif cfg.carries == "teacher":
        module = Taught()
    loss = frozen_in_the_loss if cfg.carries == "frozen-by-loss" else squared
    return Problem(module, loss, (x[:384], y[:384]), (x[384:], y[384:]))
