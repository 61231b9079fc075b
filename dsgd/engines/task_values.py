"""The values of tasks: of one alone, as on Ray, and of simulated ones, computed late and many at once.

A task's inputs are frozen when it starts, so nothing has to be computed before its result is needed, and then
everything in flight is computed in one batch.

On a CPU a value of a built-in model has the same bits either way. On a GPU, or in a task of a user's own,
its last bit may depend on how many are computed at once: so a replay computes a record's tasks as the engine
that made the record did.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsgd.core.model import Objective, Workload
from dsgd.core.shards import Shard
from dsgd.core.tasks import Elastic, Gradient, LocalAdamW, LocalSGD, Task
from dsgd.core.weights import Vector

if TYPE_CHECKING:
    from torch import Tensor

# Tasks that never write to the weights that they are given: one of a user's own may.
_ONLY_READ = frozenset({Gradient, LocalSGD, LocalAdamW, Elastic})
_CHUNK_BYTES = 1 << 20  # of weights in one batched computation: more no longer fit the cache


def compute_alone(
    task: Task,
    objective: Objective,
    shard: Shard,
    step: int,
    vector: Vector,
    state: Vector | None,
    device: str,
    out: NDArray[np.uint8] | None = None,
) -> tuple[float, NDArray[Any], Tensor]:
    """Return the loss, the value (D,) and the state (rows, D) of a task that is computed alone, in one row.

    vector: the weights (D,); read where they lie if the memory is writable, as torch wants it. state: what
    the worker's last such task left, None in its first. out: the bytes where the value is written; it is then
    what is returned. A plain gradient on a CPU is computed there, anything else is copied.
    """
    import torch

    in_place = device == "cpu" and vector.flags.writeable and type(task) in _ONLY_READ
    w = torch.from_numpy(vector[None]) if in_place else to_device([vector], device)
    kept = w.new_zeros(1, task.state_rows, w.shape[1]) if state is None else to_device([state], device)
    if out is not None and device == "cpu" and type(task) is Gradient:
        g = torch.from_numpy(out.view(np.float32)[None])
        losses, _, kept = task(objective, [shard], [step], w, kept, g)
        return losses.item(), out, kept[0]
    losses, values, kept = task(objective, [shard], [step], w, kept)
    value = from_device(values[0])
    if out is None:
        return losses.item(), value, kept[0]
    out[:] = value.view(np.uint8)
    return losses.item(), out, kept[0]


def to_device(rows: Sequence[NDArray[Any]], device: str) -> Tensor:
    """Return N float32 arrays (...) as (N, ...); to a GPU through pinned memory, three times as fast."""
    import torch

    shape = (len(rows), *rows[0].shape)
    here = torch.empty(shape, dtype=torch.float32, pin_memory=device != "cpu")
    np.stack(rows, out=here.numpy())
    return here.to(device, non_blocking=True)


def from_device(values: Tensor) -> NDArray[Any]:
    """Return values where they lie, or from a GPU in pinned memory: fresh pages take 14 times as long."""
    if values.device.type == "cpu":
        return values.numpy()
    return values.new_empty(values.shape, device="cpu", pin_memory=True).copy_(values).numpy()


def _pool(threads: int) -> ThreadPoolExecutor | None:
    import torch

    if threads == 1:
        return None
    # The setting holds for one thread: in others MKL would divide a Fourier transform, with other last bits.
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))


class LoneValues:
    """Computes the value of each task alone, when it is asked for, bit for bit as a worker on Ray does."""

    def __init__(self, workload: Workload, device: str) -> None:
        import torch

        torch.set_num_threads(1)  # as Ray has it set in a worker
        self._objective, self._device = workload.objective, device
        self._shards = [shard.on_device([shard.alone()], device)[0] for shard in workload.shards]
        self._waiting: dict[int, tuple[Task, int, Vector]] = {}
        self._states: dict[int, Vector] = {}  # (state_rows, D) by worker, after its last finished task

    def add(self, worker: int, task: Task, step: int, vector: Vector) -> None:
        self._waiting[worker] = (task, step, vector)

    def drop(self, worker: int) -> None:
        self._waiting.pop(worker, None)

    def take(self, worker: int) -> tuple[float, Vector]:
        task, step, vector = self._waiting.pop(worker)
        state = self._states.get(worker) if task.state_rows else None
        loss, value, left = compute_alone(
            task, self._objective, self._shards[worker], step, vector, state, self._device
        )
        value.setflags(write=False)
        if task.state_rows:
            self._states[worker] = left.cpu().numpy()
        return loss, value

    def states(self) -> dict[int, Vector]:
        """Return what each worker's last finished task hands on, shape (rows, D)."""
        return dict(self._states)

    def restart(self, states: Mapping[int, Vector]) -> None:
        """Forget all tasks, and give the workers these states."""
        self._waiting.clear()
        self._states = dict(states)


class LazyValues:
    """Computes the values of started tasks, all that wait at once, when the first is asked for."""

    def __init__(self, workload: Workload, device: str, threads: int | None) -> None:
        import torch

        # torch's own threads only slow down operations this small: threads serve whole chunks instead.
        torch.set_num_threads(1)
        self._objective, self._device = workload.objective, device
        self._shards = workload.shards[0].on_device(workload.shards, device)
        self._chunk = max(64, min(1024, _CHUNK_BYTES // (4 * workload.objective.num_weights)))
        self._waiting: dict[int, tuple[Task, int, Vector]] = {}
        self._computed: dict[int, tuple[float, Vector, Tensor | None]] = {}
        self._states: dict[int, Tensor] = {}  # (state_rows, D) by worker, after its last finished task
        self._threads = 1 if workload.objective.one_thread else threads or os.cpu_count() or 1
        self._at_once: int | None = None
        """Tasks that are computed when one is asked for; None: all that wait."""
        if workload.objective.row_by_row:
            # Threads share the work, and few values wait to be taken: each may be as large as memory allows.
            self._chunk = 1
            self._at_once = 1 if self._threads == 1 else 4 * self._threads
        self._pool = _pool(self._threads)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pool = _pool(self._threads)

    def add(self, worker: int, task: Task, step: int, vector: Vector) -> None:
        self._waiting[worker] = (task, step, vector)

    def drop(self, worker: int) -> None:
        self._waiting.pop(worker, None)
        self._computed.pop(worker, None)

    def take(self, worker: int) -> tuple[float, Vector]:
        if worker in self._waiting:
            self._compute_with(worker)
        loss, value, state = self._computed.pop(worker)
        if state is not None:
            self._states[worker] = state
        return loss, value

    def _compute_with(self, worker: int) -> None:
        """Compute the task of a worker, and others that wait, the oldest first."""
        if self._at_once is None:
            chosen = list(self._waiting)
        else:
            others = (other for other in self._waiting if other != worker)
            chosen = [worker, *islice(others, self._at_once - 1)]
        by_task: dict[Task, list[int]] = {}
        for number in chosen:
            by_task.setdefault(self._waiting[number][0], []).append(number)
        chunks = [
            (task, workers[i : i + self._chunk])
            for task, workers in by_task.items()
            for i in range(0, len(workers), self._chunk)
        ]
        run = self._pool.map if self._pool and len(chunks) > 1 else map
        for (_, workers), computed in zip(chunks, run(self._compute, chunks), strict=True):
            self._computed.update(zip(workers, zip(*computed, strict=True), strict=True))
        for number in chosen:
            del self._waiting[number]

    def _compute(self, chunk: tuple[Task, list[int]]) -> tuple[list[float], Vector, Sequence[Tensor | None]]:
        task, workers = chunk
        waiting = [self._waiting[worker] for worker in workers]
        w = to_device([vector for _, _, vector in waiting], self._device)
        shards = [self._shards[worker] for worker in workers]
        state = w.new_zeros(len(workers), task.state_rows, w.shape[1])
        if task.state_rows:
            for row, worker in enumerate(workers):
                if worker in self._states:
                    state[row] = self._states[worker]
        losses, values, state = task(self._objective, shards, [step for _, step, _ in waiting], w, state)
        array = from_device(values)
        array.setflags(write=False)
        states = state.unbind() if task.state_rows else [None] * len(workers)
        return losses.tolist(), array, states

    def states(self) -> dict[int, Vector]:
        """Return what each worker's last finished task hands on, shape (rows, D)."""
        return {worker: state.cpu().numpy() for worker, state in self._states.items()}

    def restart(self, states: Mapping[int, Vector]) -> None:
        """Forget all tasks, and give the workers these states."""
        import torch

        self._waiting.clear()
        self._computed.clear()
        self._states = {w: torch.tensor(state, device=self._device) for w, state in states.items()}
