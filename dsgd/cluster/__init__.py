"""What a strategy sees of the machines: workers that are given tasks, and the queue of finished ones.

Two engines implement `Cluster`: `cluster.ray` (actors, wall seconds) and `cluster.sim` (virtual
seconds). A strategy runs unchanged on both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from dsgd.work.optim import Vector, Weights
from dsgd.work.tasks import Task


class Done(NamedTuple):
    """A finished task. All times are seconds on the engine's clock, 0 at the start barrier."""

    worker: int
    step: int
    """The worker's clock when it started: its first mini-batch has this number, counted from 0."""
    batches: int
    """Mini-batches in the task; the worker's clock is now step + batches."""
    read: int
    """The version of the weights it read."""
    loss: float | None
    """Mean mini-batch loss, None where there are no weights."""
    value: Vector
    """What the task computed (D,): a gradient, or local weights."""
    started_s: float
    finished_s: float
    compute_s: float
    """Seconds the worker computed or, as a straggler, slept; the rest was transfer and waiting."""
    bytes_to_worker: int
    bytes_to_server: int


class Update(NamedTuple):
    """A new version of the weights, and the tasks whose values made it."""

    weights: Weights
    dones: Sequence[Done]
    ignored: Sequence[Done] = ()
    """Finished tasks that were thrown away since the update before."""
    measured: Mapping[str, float] = {}
    """What the strategy has measured of this update, by the names of rows in dsgd/metrics.py, like drift."""

    @property
    def finished_s(self) -> float:
        """When the last of its tasks came in, on the engine's clock."""
        return self.dones[0].finished_s if len(self.dones) == 1 else max(d.finished_s for d in self.dones)

    @property
    def loss(self) -> float | None:
        """Mean of its tasks' losses; None where there are no weights."""
        if len(self.dones) == 1:
            return self.dones[0].loss
        losses = [done.loss for done in self.dones if done.loss is not None]
        return sum(losses) / len(losses) if losses else None

    def staleness(self, done: Done) -> int:
        """How many updates came between `done`'s reading and this one, its own update excluded."""
        return self.weights.version - 1 - done.read


class Cluster(Protocol):
    """Workers that take one task at a time."""

    @property
    def workers(self) -> Sequence[int]:
        """The workers' numbers, from 0."""

    @property
    def now_s(self) -> float:
        """Seconds since the start barrier: wall seconds on Ray, virtual seconds in the simulator."""

    @property
    def in_flight(self) -> Mapping[int, float]:
        """The workers that have a task, and when (s) each got it."""

    @property
    def restarts(self) -> Sequence[int]:
        """How often each worker was lost and started again."""

    @property
    def cancelled(self) -> Sequence[int]:
        """Mini-batches that each worker had begun when their task was cancelled."""

    @property
    def cancelled_s(self) -> Sequence[float]:
        """Seconds each worker computed for tasks that were cancelled."""

    @property
    def device(self) -> str:
        """Where gradients are computed: cpu or cuda."""

    @property
    def pids(self) -> Sequence[int]:
        """The workers' processes at the start barrier; empty in the simulator."""

    def start(self, worker: int, task: Task, w: Weights) -> None:
        """Give `worker` a task on the weights `w`, which are frozen here; it must be idle."""

    def cancel(self, worker: int) -> None:
        """Stop the task of `worker`: its result never comes, and the worker is idle at once.

        Its mini-batches are skipped, not repeated: the next task draws new ones, and new times.
        """

    def next_done(self) -> Done:
        """Wait for the task that finishes first.

        Raises TimeUp when the run's `--max-seconds` pass before, and ClusterError when a worker cannot
        be kept alive.
        """


class TimeUp(Exception):
    """The engine's clock has reached `--max-seconds`."""


class ClusterError(Exception):
    """The cluster cannot do what was asked: resources missing, a worker lost for good."""


def start_all(cluster: Cluster, task: Task, w: Weights) -> None:
    """Give every idle worker the same task."""
    for worker in cluster.workers:
        if worker not in cluster.in_flight:
            cluster.start(worker, task, w)


def run_all(cluster: Cluster, task: Task, w: Weights) -> list[Done]:
    """Give every worker the same task and wait for all: a barrier.

    The result is in worker order, so that sums do not depend on the order of arrival.
    """
    start_all(cluster, task, w)
    return sorted(cluster.next_done() for _ in cluster.workers)
