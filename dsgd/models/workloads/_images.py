"""What the workloads of grey images share: the choice of a network, and the problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from dsgd.config import DataConfig

if TYPE_CHECKING:
    from dsgd.core.problem import Problem
    from dsgd.models.datasets import Split

CLASSES, SIDE = 10, 28


@dataclass(frozen=True, kw_only=True)
class ImageConfig(DataConfig):
    """The network."""

    data: str | None = None
    """Other images of the same form, bytes of 28 x 28 pixels in ten classes: a .npz, .npy, .parquet or idx
    file, or a folder of idx files. None: those of the workload."""

    network: Literal["cnn", "resnet"] = "cnn"
    """cnn: two convolutions. resnet: three residual blocks with batch normalization."""

    eval_samples: Annotated[int | None, Ge(1)] = None
    """Held-out images that an evaluation reads, drawn from all, alike for each seed. None: all."""


def image_problem(cfg: ImageConfig, shipped: Callable[[], Split[tuple[Any, ...]]]) -> Problem:
    """Return the problem of x (N, 28, 28) uint8 and y (N,) int64; `shipped` gives those of the workload."""
    from dsgd.core.problem import Problem, length, part
    from dsgd.models.datasets import labelled
    from dsgd.models.networks.convnets import (
        accuracy,
        classification_loss,
        flops_per_image,
        small_cnn,
        small_resnet,
    )

    images = shipped() if cfg.data is None else labelled(cfg.data)
    for samples in images:
        _require_images(samples, cfg.data)
    module = small_cnn(CLASSES) if cfg.network == "cnn" else small_resnet(CLASSES)
    about = {"flops_per_sample": flops_per_image(module)}
    test = images.test
    if cfg.eval_samples is not None:
        n = length(test)
        draws = np.random.Generator(np.random.PCG64(0))
        mixed = np.arange(n) if cfg.edition == 1 else draws.permutation(n)
        test = tuple(part(array, mixed[: cfg.eval_samples]) for array in test)
    return Problem(module, classification_loss, images.train, test, score=accuracy, about=about)


def _require_images(samples: tuple[Any, ...], path: str | None) -> None:
    from dsgd.core.problem import labels
    from dsgd.models.datasets import DataError

    x, classes = samples[0], labels(samples)
    if x.shape[1:] != (SIDE, SIDE) or x.dtype != "uint8":
        found = f"{' x '.join(map(str, x.shape[1:])) or 'no pixels'}, {x.dtype}"
        raise DataError(f"{path}: has samples of {found}; give images of {SIDE} x {SIDE} bytes (uint8)")
    if classes is None or not 0 <= classes.min() <= classes.max() < CLASSES:
        raise DataError(f"{path}: has other labels than 0 to {CLASSES - 1}; give whole numbers of that range")
