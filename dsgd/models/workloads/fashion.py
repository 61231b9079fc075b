"""Fashion-MNIST: 60,000 images of clothes, 28 x 28 pixels, ten classes; 10,000 more to test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsgd.models.workloads._images import ImageConfig, image_problem

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """Fashion-MNIST."""


def decode(output: Tensor) -> list[str]:
    """Return the class with the largest logit, of each row of logits (B, 10)."""
    names = (
        "T-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    )
    return [names[i] for i in output.argmax(1)]


def make(cfg: Config) -> Problem:
    """Return the problem."""
    from dsgd.models.datasets import fashion

    return image_problem(cfg, fashion)._replace(decode=decode)
