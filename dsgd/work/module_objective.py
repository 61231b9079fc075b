"""The loss of any torch module, computed worker by worker on views into one flat vector.

A module is called as its author calls it: hooks, checkpointing, autocast, tied weights and shapes that depend
on the data all work, which neither `functional_call` nor `vmap` gives.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dsgd.work.model import Evaluation, Objective
from dsgd.work.problem import Problem, length, part, take
from dsgd.work.reshuffled import Indices, Reshuffled
from dsgd.work.rng import Purpose, at
from dsgd.work.weights import Vector

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.work.shard import Shard

_EVALUATED_AT_ONCE = 256  # samples
_ESTIMATED_FROM = 1024  # samples


class ProblemShard(Reshuffled):
    """One worker's samples of a problem's training data."""

    def __init__(self, worker: int, data: Any, rows: Indices, *, batch_size: int, seed: int) -> None:
        super().__init__(worker, rows, batch_size=batch_size, seed=seed)
        self.data, self.device = data, "cpu"

    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Return the mini-batch number `step`: tensors, samples first."""
        return tuple(tensor.to(self.device) for tensor in take(self.data, self.batch_rows(step)))

    def torch_seed(self, step: int) -> int:
        """Return what torch's generator is seeded with for a gradient, so that dropout repeats with it."""
        return int(at(self.seed, Purpose.DROPOUT, self.worker, step).integers(2**63))

    @staticmethod
    def batches(shards: Sequence[ProblemShard], steps: Sequence[int]) -> tuple[Any, ...]:
        raise AssertionError("a module takes one worker's mini-batch at a time")

    def alone(self) -> ProblemShard:
        data, rows = self.data, self.rows
        if isinstance(data, torch.utils.data.TensorDataset):
            data = data.tensors
        if isinstance(data, tuple):  # a dataset of another kind is not known to have parts
            data, rows = tuple(part(array, rows) for array in data), np.arange(len(rows))
        return ProblemShard(self.worker, data, rows, batch_size=self.batch_size, seed=self.seed)

    @staticmethod
    def on_device(shards: Sequence[ProblemShard], device: str) -> Sequence[ProblemShard]:
        for shard in shards:
            shard.device = device
        return shards


class Replica:
    """A copy of the module whose trained parameters, and their gradients, are views into one vector each."""

    def __init__(self, module: torch.nn.Module, device: str) -> None:
        self.module = copy.deepcopy(module).to(device).train()
        parameters = trained(self.module)
        sizes = [parameter.numel() for parameter in parameters]
        self.w = torch.empty(sum(sizes), device=device)
        self.g = torch.zeros_like(self.w)
        for parameter, w, g in zip(
            parameters, torch.split(self.w, sizes), torch.split(self.g, sizes), strict=True
        ):
            parameter.data, parameter.grad = w.view_as(parameter), g.view_as(parameter)


def trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that are trained, in the order of the flat vector; those that are tied once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _seed(device: torch.device, seed: int) -> None:
    """Seed the generator of one device alone: `torch.manual_seed` takes 70 times as long."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


class ModuleObjective(Objective):
    """The mean loss of a problem's module over its data.

    Its buffers never travel, and do not count: before an evaluation the running statistics of batch
    normalization are estimated anew, from the first training samples, so that an evaluation is a function of
    the weights (Wu & Johnson 2021, "Rethinking batch in BatchNorm", section 3).
    """

    row_by_row: ClassVar[bool] = True

    def __init__(self, problem: Problem) -> None:
        self.problem = problem._replace(module=problem.module.float())
        self._num_weights = sum(parameter.numel() for parameter in trained(problem.module))
        self._replicas = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_replicas": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._replicas = threading.local()

    @property
    def num_weights(self) -> int:
        return self._num_weights

    def initial_weights(self, seed: int) -> Vector:
        """Return the weights with which the module was made, from this seed."""
        parts = [parameter.detach().flatten() for parameter in trained(self.problem.module)]
        return cast(Vector, torch.cat(parts).cpu().numpy().copy())

    def loss(self, w: Any, *batch: Any) -> Any:
        raise AssertionError("a module's loss is computed with its gradient")

    def _replica(self, device: str) -> Replica:
        replicas = self._replicas.__dict__
        if device not in replicas:
            replicas[device] = Replica(self.problem.module, device)
        return cast(Replica, replicas[device])

    def try_out(self, shard: ProblemShard) -> None:
        """Compute one loss; raise ValueError for one that cannot be minimised. See whether it is random."""
        mine = self._replica("cpu")
        mine.w.copy_(torch.from_numpy(self.initial_weights(0)))
        before = torch.default_generator.get_state()
        loss = self.problem.loss(mine.module, *shard.batch(0))
        self.one_thread = not torch.equal(before, torch.default_generator.get_state())
        if not isinstance(loss, torch.Tensor) or loss.dim():
            shape = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ValueError(f"its loss has {shape}; return one number, the mean over the mini-batch")
        if not torch.isfinite(loss):
            raise ValueError(
                f"its loss is {loss.item()} at the start; look at the data and the initial weights"
            )

    def loss_and_gradient(
        self, w: Tensor, shards: Sequence[Shard], steps: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        mine = self._replica(str(w.device))
        losses, gradients = w.new_empty(len(w)), torch.empty_like(w)
        for p, (shard, step) in enumerate(zip(cast("Sequence[ProblemShard]", shards), steps, strict=True)):
            _seed(w.device, shard.torch_seed(step))
            mine.w.copy_(w[p])
            mine.g.zero_()
            loss = self.problem.loss(mine.module, *shard.batch(step))
            loss.backward()  # type: ignore[no-untyped-call]
            losses[p], gradients[p] = loss.detach(), mine.g
        return losses, gradients

    def evaluate(self, w: Vector, *test: Any) -> Evaluation | None:
        problem, mine = self.problem, self._replica("cpu")
        mine.w.copy_(torch.from_numpy(np.array(w)))
        n, loss, score = length(problem.test), 0.0, 0.0
        self._estimate_statistics(mine.module)
        mine.module.eval()
        with torch.no_grad():
            for rows in np.array_split(np.arange(n), -(-n // _EVALUATED_AT_ONCE)):
                batch = take(problem.test, rows)
                loss += len(rows) / n * float(problem.loss(mine.module, *batch))
                if problem.score:
                    score += len(rows) / n * float(problem.score(mine.module, *batch))
        mine.module.train()
        bits = loss / math.log(2) / problem.bytes_per_token if problem.bytes_per_token else None
        return Evaluation(loss, score if problem.score else None, bits)

    def module_at(self, w: Vector) -> torch.nn.Module:
        """Return a copy of the module with the weights w (D,), as an evaluation has it."""
        module = copy.deepcopy(self.problem.module).train()
        parameters = trained(module)
        sizes = [parameter.numel() for parameter in parameters]
        parts = torch.split(torch.from_numpy(np.array(w)), sizes)
        with torch.no_grad():
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))
        with torch.random.fork_rng(devices=[]):
            self._estimate_statistics(module)
        return module.eval()

    def _estimate_statistics(self, module: torch.nn.Module) -> None:
        """Set the running statistics to the means over some training samples at the present weights."""
        layers = [
            layer
            for layer in module.modules()
            if isinstance(layer, _BatchNorm) and layer.running_mean is not None
        ]
        if not layers:
            return
        momenta = [layer.momentum for layer in layers]
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # then each of the mini-batches counts the same
        samples = np.arange(min(length(self.problem.train), _ESTIMATED_FROM))
        torch.default_generator.manual_seed(0)  # for dropout before such a layer
        with torch.no_grad():
            for rows in np.array_split(samples, -(-len(samples) // _EVALUATED_AT_ONCE)):
                self.problem.loss(module, *take(self.problem.train, rows))
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
