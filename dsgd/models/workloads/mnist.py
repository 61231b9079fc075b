"""5,000 images of MNIST's handwritten digits, 28 x 28 pixels, ten classes; a tenth of them to test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsgd.models.workloads._images import ImageConfig, image_problem

if TYPE_CHECKING:
    from dsgd.core.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Config(ImageConfig):
    """The digits."""


def make(cfg: Config) -> Problem:
    """Return the problem."""
    from dsgd.models.datasets import mnist

    return image_problem(cfg, mnist)
