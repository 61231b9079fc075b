"""What a strategy and its reference have in common: samples, mini-batches, initial weights, compute times,
and who is drawn to exchange with whom.

Everything else here is plain torch: the model, its loss and its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dsgd.config import DataConfig, TrainConfig
from dsgd.core.timing import ComputeTimes
from dsgd.data import DatasetShard, make_workload
from dsgd.scenario.graphs import Graph
from dsgd.scenario.timing_options import TimingConfig

INPUTS, HIDDEN, CLASSES = 64, 16, 10


class Version(NamedTuple):
    """The weights after an update of a reference."""

    seconds: float
    """When the update was made, on the virtual clock."""
    gradients: int
    """Mini-batches that went into the weights so far, those of all workers."""
    w: Tensor
    """The weights, shape (D,), in torch's order."""


class Problem:
    """Handwritten digits, split among workers whose compute times are random.

    steps: mini-batches per worker, on average. One worker, number 0, is `slowdown` times slower than the
    others.
    """

    def __init__(self, seed: int, *, num_workers: int = 4, steps: int = 100, slowdown: float = 3) -> None:
        cfg = TrainConfig(
            mode="reference",
            num_workers=num_workers,
            steps=steps,
            seed=seed,
            data=DataConfig(workload="digits", hidden=str(HIDDEN)),
            timing=TimingConfig(compute_time="exponential:1", slowdown=f"0={slowdown:g}"),
        )
        workload = make_workload(cfg)
        shards = workload.shards
        assert isinstance(shards[0], DatasetShard)
        self.num_workers, self.steps, self.seed = num_workers, steps, seed
        self.x, self.y = torch.from_numpy(shards[0].x), torch.from_numpy(shards[0].y).long()
        test_x, test_y = workload.test
        self.test_x, self.test_y = torch.from_numpy(test_x), torch.from_numpy(test_y).long()
        self.initial = in_torch_order(torch.from_numpy(workload.objective.initial_weights(seed)))
        self._shards = [shard for shard in shards if isinstance(shard, DatasetShard)]
        self._times = ComputeTimes(cfg.timing.compute_law, seed, cfg.timing.slowdowns)
        self._model = self.model()

    @property
    def options(self) -> dict[str, Any]:
        """Return the problem as options of a run, except for num_workers, steps and seed."""
        slowdown = self._times.factor(0)
        return {
            "workload": "digits",
            "hidden": str(HIDDEN),
            "compute_time": "exponential:1",
            "slowdown": f"0={slowdown:g}",
        }

    def model(self, w: Tensor | None = None) -> nn.Module:
        """Return a new network with weights `w` (D,), the initial ones if None."""
        model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        vector_to_parameters((self.initial if w is None else w).clone(), model.parameters())
        return model

    def batch(self, worker: int, step: int) -> tuple[Tensor, Tensor]:
        """Return mini-batch number `step` of a worker: x (B, F) and y (B,)."""
        rows = torch.from_numpy(self._shards[worker].batch_rows(step))
        return self.x[rows], self.y[rows]

    def gradient(self, worker: int, step: int, w: Tensor) -> Tensor:
        """Return the gradient (D,) of that mini-batch's mean loss at the weights w (D,)."""
        return self.loss_and_gradient(worker, step, w)[1]

    def loss_and_gradient(self, worker: int, step: int, w: Tensor) -> tuple[float, Tensor]:
        """Return that mini-batch's mean loss at the weights w (D,), and its gradient (D,)."""
        parameters = list(self._model.parameters())
        vector_to_parameters(w, parameters)
        x, y = self.batch(worker, step)
        loss = cross_entropy(self._model(x), y)
        return loss.item(), parameters_to_vector(torch.autograd.grad(loss, parameters))

    def seconds(self, worker: int, step: int, batches: int = 1) -> float:
        """Return how long a worker computes for its mini-batches [step, step + batches)."""
        return self._times.total(worker, step, batches)

    def peer(self, worker: int, step: int) -> int:
        """Return with which of its neighbours on a ring a worker averages after its mini-batch `step`."""
        found = Graph("ring").peer(worker, step, range(self.num_workers), self.seed)
        assert found is not None
        return found

    def pairs(self, t: int) -> Sequence[Sequence[int]]:
        """Return, for each worker, itself and with whom it is paired in round t."""
        mixing = Graph("random").mixing(t, range(self.num_workers), self.seed)
        return [[worker, *row] for worker, row in mixing.items()]

    def held_out_loss(self, w: Tensor) -> float:
        """Return the mean loss of the weights w (D,) on samples that no worker has."""
        with torch.no_grad():
            return cross_entropy(self.model(w)(self.test_x), self.test_y).item()


def weights(model: nn.Module) -> Tensor:
    """Return a copy of a network's weights, shape (D,)."""
    return parameters_to_vector(model.parameters()).detach().clone()


def in_torch_order(w: Tensor) -> Tensor:
    """Return weights (D,) of dsgd, whose matrices are (inputs, outputs), in the order of torch's modules."""
    sizes = [INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES]
    matrix1, bias1, matrix2, bias2 = torch.split(w, sizes)
    matrices = [matrix1.view(INPUTS, HIDDEN).T, bias1, matrix2.view(HIDDEN, CLASSES).T, bias2]
    return torch.cat([part.reshape(-1) for part in matrices])
