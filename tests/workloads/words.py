"""A tiny language model of bytes on a text that repeats: what --sample needs, and an option --data."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dsgd import DataConfig, Problem
from dsgd.datasets import Windows, split_text, tokens
from dsgd.datasets.token_files import Tokens
from dsgd.models.sampling import Sampler, bytes_of, text_of


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """The text."""

    data: str | None = None
    """A text file."""


class Words(nn.Module):
    """Predicts a byte from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(256, 256)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.table(ids)
        return logits


def loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(module(x).flatten(0, 1), y.flatten())


def make(cfg: Config) -> Problem:
    own = Tokens(ids=np.frombuffer(b"abcd" * 400, np.uint8))
    train, test = split_text(tokens(cfg.data) if cfg.data else own)
    sample = Sampler(context=16, encode=bytes_of, decode=text_of)
    data = Windows(train.ids, 16), Windows(test.ids, 16)
    return Problem(Words(), loss, *data, bytes_per_token=test.bytes_per_token, sample=sample)
