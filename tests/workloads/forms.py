"""One module and its samples in all forms that a data set may have, one for each name of `--form`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset

from dsgd import DataConfig, Problem

X = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
NAMES = [f"image-{i}.png" for i in range(96)]


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    form: str = "arrays"
    """arrays, swapped, double, texts, dict, nested, named, lone, unequal, packed, slope."""


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


class Items(Dataset[Any]):
    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        return self.item(i)


def squared(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = (module(x) - y).square().mean()
    return found


def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
    x = torch.zeros(len(items), 4)
    for row, (some, _) in zip(x, items, strict=True):
        row[: len(some)] = some
    return x, torch.stack([y for _, y in items])


def packed(items: list[Any]) -> dict[str, Any]:
    return {"x": pack_sequence([x[:, None] for x, _ in items]), "y": torch.stack([y for _, y in items])}


def unpacked(module: nn.Module, batch: dict[str, Any]) -> Tensor:
    x, _ = nn.utils.rnn.pad_packed_sequence(batch["x"], batch_first=True)
    return squared(module, x[:, :, 0], batch["y"])


def slope(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Compare the slope of the module by its input with that of y."""
    x = x.clone().requires_grad_(True)
    (found,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    return (found - 1).square().mean()


def named(module: nn.Module, x: Tensor, y: Tensor, names: list[str]) -> Tensor:
    assert all(name.endswith(".png") for name in names)
    return squared(module, x, y)


def make(cfg: Config) -> Problem:
    y = X.sum(1, keepdim=True)
    losses: dict[str, Any] = {
        "dict": lambda module, batch: squared(module, batch["x"], batch["y"]),
        "nested": lambda module, pair, y: squared(module, torch.cat(list(pair), 1), y),
        "lone": lambda module, row: squared(module, row[:, :4], row[:, 4:]),
        "packed": unpacked,
        "slope": slope,
        "texts": named,
    }
    items: dict[str, Callable[[int], Any]] = {
        "dict": lambda i: {"x": X[i], "y": y[i], "name": NAMES[i]},
        "nested": lambda i: ((X[i, :1], X[i, 1:]), y[i]),
        "named": lambda i: Pair(X[i], y[i]),
        "lone": lambda i: torch.cat((X[i], y[i])),
        "unequal": lambda i: (X[i, : 2 + i % 3], y[i]),
        "packed": lambda i: (X[i], y[i]),
    }
    data: Any = X, y
    if cfg.form == "swapped":
        data = X.numpy().astype(">f4"), y.numpy().astype(">f4")
    elif cfg.form == "double":
        data = X.double(), y.double().numpy()
    elif cfg.form == "texts":
        data = X, y, np.array(NAMES)
    elif cfg.form in items:
        data = Items(items[cfg.form])
    test = Items(lambda i: (X[i], y[i])) if cfg.form == "double" else data
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    collate = {"unequal": padded, "packed": packed}.get(cfg.form)
    return Problem(module, losses.get(cfg.form, squared), data, test, collate=collate)
