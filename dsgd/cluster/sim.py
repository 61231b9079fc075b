"""A deterministic cluster in virtual time: no threads to wait for, no sleeping, thousands of workers.

Only time is simulated; gradients are real. A task's inputs are frozen when it starts, so nothing has
to be computed before its result is needed, and then everything in flight is computed in one batch.

A task passes through these stations, each with virtual seconds of its own:

    server's outgoing link -> latency -> compute -> latency -> server's incoming link -> service

The links and the service are first come, first served. Tasks pass the stations behind their computing
in the order in which they finish computing, and whatever a strategy starts after taking a finished
task finishes later still. So one heap, ordered by the end of computing, is the whole event queue.
"""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dsgd.cluster import ClusterError, Done, TimeUp
from dsgd.cluster.timing import ComputeTimes
from dsgd.data import Workload
from dsgd.work.optim import Vector, Weights
from dsgd.work.tasks import Task

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK_BYTES = 1 << 20  # of weights in one batched computation: more no longer fit the cache


class Network(NamedTuple):
    """What stands between the server and its workers."""

    latency_s: float = 0.0
    """Seconds a message travels, each way."""
    bytes_per_s: float = math.inf
    """Of the server's link, in each direction."""
    service: ComputeTimes | None = None
    """Seconds the server takes for one finished task."""
    padding_bytes: int = 0
    """Added to each message."""


class SimCluster:
    """Simulates `len(workload.shards)` workers; see the module's text for the model.

    times: compute times. deadline_s: virtual seconds after which `next_done` raises TimeUp.
    threads: for chunks of the batched computation; results do not depend on it. device: of torch.
    """

    def __init__(
        self,
        workload: Workload,
        times: ComputeTimes,
        network: Network | None = None,
        *,
        deadline_s: float = math.inf,
        threads: int | None = None,
        device: str = "cpu",
    ) -> None:
        num_workers = len(workload.shards)
        network = network or Network()
        self.workers = range(num_workers)
        self.now_s = 0.0
        self.in_flight: dict[int, float] = {}
        self.restarts = [0] * num_workers
        self.cancelled, self.cancelled_s = [0] * num_workers, [0.0] * num_workers
        self.device = device
        self.pids: Sequence[int] = ()
        self._steps = [0] * num_workers
        self._times, self._network, self._deadline_s = times, network, deadline_s
        self._message_bytes = 4 * workload.objective.num_weights + network.padding_bytes
        self._transfer_s = self._message_bytes / network.bytes_per_s
        self._instant = network.service is None and not network.latency_s and not self._transfer_s
        self._out_free_s = self._in_free_s = self._server_free_s = 0.0  # when each is next idle
        self._served = 0
        # (end of computing, serial number, worker): the serial number makes ties deterministic, first started
        # first, and tells a worker's task from one that was cancelled and is still in the heap.
        self._heap: list[tuple[float, int, int]] = []
        self._serial = 0
        # By worker: serial number, task, weights, when it has them (s), seconds of computing.
        self._flights: dict[int, tuple[int, Task, Weights, float, float]] = {}
        self._values = _LazyValues(workload, device, threads) if workload.objective.num_weights else None

    def start(self, worker: int, task: Task, w: Weights) -> None:
        assert worker not in self.in_flight, f"worker {worker} already has a task"
        now_s = self.now_s
        self.in_flight[worker] = now_s
        step = self._steps[worker]
        if task.batches == 1:
            compute_s = self._times.seconds(worker, step)
        else:
            compute_s = self._times.total(worker, step, task.batches)
        arrived_s = now_s
        if not self._instant:
            self._out_free_s = max(now_s, self._out_free_s) + self._transfer_s
            arrived_s = self._out_free_s + self._network.latency_s
        self._serial += 1
        self._flights[worker] = (self._serial, task, w, arrived_s, compute_s)
        heapq.heappush(self._heap, (arrived_s + compute_s, self._serial, worker))
        if self._values:
            self._values.add(worker, task, step, w.vector)

    def cancel(self, worker: int) -> None:
        _, task, _, arrived_s, compute_s = self._flights.pop(worker)
        del self.in_flight[worker]
        self._steps[worker] += task.batches
        self.cancelled[worker] += task.batches
        self.cancelled_s[worker] += min(compute_s, max(0.0, self.now_s - arrived_s))
        if self._values:
            self._values.drop(worker)

    def next_done(self) -> Done:
        assert self.in_flight, "no worker has a task: nothing can finish"
        flights = self._flights
        computed_s, serial, worker = heapq.heappop(self._heap)
        while worker not in flights or flights[worker][0] != serial:  # cancelled
            computed_s, serial, worker = heapq.heappop(self._heap)
        _, task, w, _, compute_s = flights.pop(worker)
        finished_s = computed_s if self._instant else self._deliver(computed_s)
        if not finished_s < math.inf:
            raise ClusterError(
                f"the virtual clock overflowed at worker {worker}; choose smaller times (--compute-time, "
                "--slowdown, --latency-s, --server-time) or a faster --server-bytes-per-s"
            )
        if finished_s > self._deadline_s:
            self.now_s = self._deadline_s
            raise TimeUp
        self.now_s = finished_s
        step = self._steps[worker]
        self._steps[worker] = step + task.batches
        loss, value = self._values.take(worker) if self._values else (None, w.vector)
        return Done(
            worker,
            step,
            task.batches,
            w.version,
            loss,
            value,
            self.in_flight.pop(worker),
            finished_s,
            compute_s,
            self._message_bytes,
            self._message_bytes,
        )

    def _deliver(self, computed_s: float) -> float:
        """Return when the server has a result that was computed at `computed_s`."""
        arrived_s = computed_s + self._network.latency_s
        self._in_free_s = max(arrived_s, self._in_free_s) + self._transfer_s
        if self._network.service is None:
            return self._in_free_s
        service_s = self._network.service.seconds(0, self._served)
        self._served += 1
        self._server_free_s = max(self._in_free_s, self._server_free_s) + service_s
        return self._server_free_s


class _LazyValues:
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
        num_threads = threads or os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(num_threads) if num_threads > 1 else None

    def add(self, worker: int, task: Task, step: int, vector: Vector) -> None:
        self._waiting[worker] = (task, step, vector)

    def drop(self, worker: int) -> None:
        self._waiting.pop(worker, None)
        self._computed.pop(worker, None)

    def take(self, worker: int) -> tuple[float, Vector]:
        if worker in self._waiting:
            self._compute_waiting()
        loss, value, state = self._computed.pop(worker)
        if state is not None:
            self._states[worker] = state
        return loss, value

    def _compute_waiting(self) -> None:
        by_task: dict[Task, list[int]] = {}
        for worker, (task, _, _) in self._waiting.items():
            by_task.setdefault(task, []).append(worker)
        chunks = [
            (task, workers[i : i + self._chunk])
            for task, workers in by_task.items()
            for i in range(0, len(workers), self._chunk)
        ]
        run = self._pool.map if self._pool and len(chunks) > 1 else map
        for (_, workers), computed in zip(chunks, run(self._compute, chunks), strict=True):
            self._computed.update(zip(workers, zip(*computed, strict=True), strict=True))
        self._waiting.clear()

    def _compute(self, chunk: tuple[Task, list[int]]) -> tuple[list[float], Vector, Sequence[Tensor | None]]:
        import torch

        task, workers = chunk
        waiting = [self._waiting[worker] for worker in workers]
        w = torch.from_numpy(np.stack([vector for _, _, vector in waiting])).to(self._device)
        shards = [self._shards[worker] for worker in workers]
        state = w.new_zeros(len(workers), task.state_rows, w.shape[1])
        if task.state_rows:
            for row, worker in enumerate(workers):
                if worker in self._states:
                    state[row] = self._states[worker]
        losses, values, state = task(self._objective, shards, [step for _, step, _ in waiting], w, state)
        array: Vector = values.cpu().numpy()
        array.setflags(write=False)
        return losses.tolist(), array, state.unbind() if task.state_rows else [None] * len(workers)
