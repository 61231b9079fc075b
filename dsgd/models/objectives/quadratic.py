"""A quadratic for each worker, whose gradients and losses are known exactly: theory is tested on it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.core.model import Evaluation, Objective, Workload
from dsgd.core.rng import Purpose, at
from dsgd.core.weights import CHUNK, Vector

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.config import TrainConfig
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


@dataclass(frozen=True)
class QuadraticShard:
    """One worker's a_i and x_i, the same in each of `dim` coordinates: row `row` of curvatures (N, 1) and
    optima (N, 1), shared like samples.

    grad_noise: the standard deviation of its gradients' noise in each coordinate.
    """

    worker: int
    row: int
    curvatures: Any
    optima: Any
    dim: int
    grad_noise: float
    seed: int

    @staticmethod
    def batches(
        shards: Sequence[QuadraticShard], steps: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return curvatures (P, 1), optima (P, 1) and gradient noise, (P, D) if there is any."""
        import torch

        first, noise = shards[0], None
        rows = [shard.row for shard in shards] if len(shards) > 1 else slice(first.row, first.row + 1)
        if first.grad_noise:
            draws = np.stack([s._noise(step) for s, step in zip(shards, steps, strict=True)])
            noise = torch.from_numpy(draws).to(first.optima.device)
        return first.curvatures[rows], first.optima[rows], noise

    def _noise(self, step: int) -> Vector:
        rng = at(self.seed, Purpose.GRAD_NOISE, self.worker, step)
        noise: Vector = self.grad_noise * rng.standard_normal(self.dim, np.float32)
        return noise

    def alone(self) -> QuadraticShard:
        own = slice(self.row, self.row + 1)
        return replace(self, row=0, curvatures=self.curvatures[own], optima=self.optima[own])

    @staticmethod
    def on_device(shards: Sequence[QuadraticShard], device: str) -> Sequence[QuadraticShard]:
        import torch

        curvatures, optima = (
            torch.tensor(a, device=device) for a in (shards[0].curvatures, shards[0].optima)
        )
        return [replace(shard, curvatures=curvatures, optima=optima) for shard in shards]


def quadratic_workload(cfg: TrainConfig) -> Workload:
    """Return the quadratics of a run, one for each worker."""

    def by_worker(values: tuple[float, ...]) -> Vector:
        each = values if len(values) > 1 else values * cfg.num_workers
        return np.array(each, np.float32)[:, None]

    curvatures, optima = by_worker(cfg.data.curvature_values), by_worker(cfg.data.optimum_values)
    shards = [
        QuadraticShard(i, i, curvatures, optima, cfg.data.num_dims, cfg.data.grad_noise, cfg.seed)
        for i in range(cfg.num_workers)
    ]
    return Workload(Quadratic(cfg.data.num_dims), shards, (curvatures, optima), 1)
