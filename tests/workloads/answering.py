"""A module of the kind that hubs have: words and numbers go in by name, and labels where a loss is wanted."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dsgd import Problem

WORDS = ("left", "right", "straight")


class Answering(nn.Module):
    """Gives a score a word, from the word before it and two numbers; waits while the file $HOLD is there."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 8)
        self.numbers = nn.Linear(2, 8)
        self.scores = nn.Linear(8, len(WORDS))

    def forward(self, words: list[str], numbers: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        while Path(os.environ.get("HOLD", "none")).exists():
            time.sleep(0.01)
        ids = torch.tensor([WORDS.index(word) for word in words])
        scores = self.scores((self.words(ids) + self.numbers(numbers)).relu())
        return {"scores": scores} | ({} if labels is None else {"loss": cross_entropy(scores, labels)})


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, i: int) -> Any:
        return {"words": WORDS[i % 3], "numbers": torch.tensor([i / 96, i % 2]), "labels": (i + 1) % 3}


def loss(module: nn.Module, batch: dict[str, Any]) -> Tensor:
    found: Tensor = module(**batch)["loss"]
    return found


def said(output: dict[str, Tensor]) -> list[str]:
    return [WORDS[i] for i in output["scores"].argmax(1)]


def make() -> Problem:
    return Problem(Answering(), loss, Samples(), Samples(), decode=said)
