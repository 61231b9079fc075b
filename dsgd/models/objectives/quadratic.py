"""A quadratic for each worker, whose gradients and losses are known exactly: theory is tested on it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.core.model import Evaluation, Objective
from dsgd.core.weights import CHUNK, Vector

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.shards import Shard

_kept = threading.local()  # by thread: the first touch of new memory takes longer than what is computed


@dataclass(frozen=True)
class Quadratic(Objective):
    """Worker i minimises a_i/2 |w - x_i|^2; the objective is the mean over workers.

    A gradient is a_i (w - x_i) plus noise; the losses reported are exact.
    """

    num_dims: int

    @property
    def num_weights(self) -> int:
        return self.num_dims

    def initial_weights(self, seed: int) -> Vector:
        """Ones, whatever the seed."""
        return np.ones(self.num_weights, np.float32)

    def loss(self, w: Any, *batch: Any) -> Any:
        curvature, optimum = batch
        distance = w - optimum
        return curvature[:, 0] * (distance * distance).sum(-1) / 2

    def loss_and_gradient(
        self, w: Tensor, shards: Sequence[Shard], steps: Sequence[int], out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        import torch

        curvature, optimum, noise = shards[0].batches(shards, steps)
        gradient = torch.empty_like(w) if out is None else out

        def compute(w: Tensor, gradient: Tensor, squares: Tensor) -> None:
            distance = torch.sub(w, optimum, out=gradient)
            torch.mul(distance, distance, out=squares)
            distance.mul_(curvature)

        if self.num_dims <= CHUNK or w.is_cuda:
            compute(w, gradient, squares := torch.empty_like(w))
        else:  # in parts that stay in the cache; the sum is that of the whole, for its bits
            squares = getattr(_kept, "squares", w[:0])
            if squares.shape != w.shape:
                squares = _kept.squares = torch.empty_like(w)
            for low in range(0, self.num_dims, CHUNK):
                compute(*(x[:, low : low + CHUNK] for x in (w, gradient, squares)))
        if noise is not None:
            gradient += noise
        return curvature[:, 0] * squares.sum(-1) / 2, gradient

    def evaluate(self, w: Vector, *test: Vector) -> Evaluation | None:
        """Evaluate the exact objective, from all curvatures (P, 1) and optima (P, 1)."""
        return Evaluation(float(self.loss(w, *test).mean()), None)
