"""What the workloads of grey images share: the choice of a network, and the problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from dsgd.config import DataConfig

if TYPE_CHECKING:
    from dsgd.datasets import Split
    from dsgd.work.problem import Problem

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class ImageConfig(DataConfig):
    """The network."""

    network: Literal["cnn", "resnet"] = "cnn"
    """cnn: two convolutions. resnet: three residual blocks with batch normalization."""

    eval_images: Annotated[int | None, Ge(1)] = None
    """Held-out images that an evaluation reads, the first ones. None: all."""


def image_problem(cfg: ImageConfig, images: Split[tuple[Any, ...]]) -> Problem:
    """Return the problem of x (N, 28, 28) uint8 and y (N,) int64."""
    from dsgd.models.convnets import accuracy, classification_loss, flops_per_image, small_cnn, small_resnet
    from dsgd.work.problem import Problem

    module = small_cnn(CLASSES) if cfg.network == "cnn" else small_resnet(CLASSES)
    about = {"flops_per_sample": flops_per_image(module)}
    test = tuple(array[: cfg.eval_images] for array in images.test)
    return Problem(module, classification_loss, images.train, test, score=accuracy, about=about)
