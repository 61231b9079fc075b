"""A tiny language model whose tokens are the letters of its text: what sample and evaluate --on need."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dsgd import DataConfig, Problem
from dsgd.models.datasets import Tokens, Windows, split_text
from dsgd.models.networks.sampling import Sampler


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """The text."""

    data: str | None = None
    """A text file."""


class Words(nn.Module):
    """Predicts a letter from the one before it."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.table = nn.Embedding(letters, letters)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.table(ids)
        return logits


def loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(module(x).flatten(0, 1), y.flatten())


def make(cfg: Config) -> Problem:
    text = Path(cfg.data).read_text() if cfg.data else "abcd" * 400
    letters = sorted(set(text))

    def encode(some: str) -> list[int]:
        return [letters.index(letter) for letter in some if letter in letters]

    whole = Tokens(ids=np.array(encode(text)), vocabulary=len(letters))
    train, test = split_text(whole)
    sample = Sampler(context=16, encode=encode, decode=lambda ids: "".join(letters[i] for i in ids))
    data = Windows(train.ids, 16), Windows(test.ids, 16)
    return Problem(Words(len(letters)), loss, *data, bytes_per_token=1.0, sample=sample)
