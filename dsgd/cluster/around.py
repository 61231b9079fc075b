"""An engine around an engine: what an option changes on the way between a strategy and any engine.

A subclass overrides the few members that it changes, `start` and `combine` mostly; all others are passed on.
So what it does is written once, and is the same on Ray, in the simulator and in a replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsgd.cluster import Cluster, Done, Engine, IdleMembers
from dsgd.cluster.clocks import Clocks
from dsgd.cluster.state import ClusterState
from dsgd.cluster.traffic import Traffic
from dsgd.faults.seen import FaultSeen
from dsgd.work.model import Evaluation
from dsgd.work.rules import Rule
from dsgd.work.tasks import Task
from dsgd.work.weights import Vector, Weights

if TYPE_CHECKING:
    from dsgd.data import Workload


class AroundCluster:
    """Passes on to `inner` what a strategy sees of it."""

    def __init__(self, inner: Cluster) -> None:
        self.inner = inner

    @property
    def workers(self) -> Sequence[int]:
        return self.inner.workers

    @property
    def idle(self) -> IdleMembers:
        return self.inner.idle

    @property
    def in_flight(self) -> Mapping[int, float]:
        return self.inner.in_flight

    @property
    def clocks(self) -> Clocks:
        return self.inner.clocks

    @property
    def given(self) -> int:
        return self.inner.given

    @property
    def now_s(self) -> float:
        return self.inner.now_s

    def reading(self, worker: int) -> Weights:
        return self.inner.reading(worker)

    def came_in_s(self, worker: int) -> tuple[float, float]:
        return self.inner.came_in_s(worker)

    def start(self, worker: int, task: Task, w: Weights) -> None:
        self.inner.start(worker, task, w)

    def travel(self, source: int, target: int, num_bytes: int | None = None) -> None:
        self.inner.travel(source, target, num_bytes)

    def cancel(self, worker: int) -> None:
        self.inner.cancel(worker)

    def next_done(self) -> Done | None:
        return self.inner.next_done()

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        return self.inner.combine(rule, w, dones)

    def spread(self, dones: Sequence[Done]) -> float:
        return self.inner.spread(dones)


class Around(AroundCluster):
    """Passes every member of `Engine` on to `inner`, which this class may wrap in turn."""

    inner: Engine

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)

    def start_again(self, worker: int, task: Task, w: Weights) -> None:
        """Give a worker a task of a state, as `start` made it then: what was decided of it stays so."""
        start_again(self.inner, worker, task, w)

    @property
    def traffic(self) -> Traffic:
        return self.inner.traffic

    @property
    def restarts(self) -> Sequence[int]:
        return self.inner.restarts

    @property
    def cancelled(self) -> Sequence[int]:
        return self.inner.cancelled

    @property
    def cancelled_s(self) -> Sequence[float]:
        return self.inner.cancelled_s

    @property
    def device(self) -> str:
        return self.inner.device

    @property
    def pids(self) -> Sequence[int]:
        return self.inner.pids

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return self.inner.memory_bytes

    def process_logs(self, *, wait: bool) -> Mapping[str, str]:
        return self.inner.process_logs(wait=wait)

    @property
    def faults_seen(self) -> Sequence[FaultSeen]:
        return self.inner.faults_seen

    def note(self, fault: FaultSeen) -> None:
        self.inner.note(fault)

    def evaluate(
        self, workload: Workload, w: Vector, models: Mapping[int, Vector] | None = None
    ) -> Evaluation | None:
        return self.inner.evaluate(workload, w, models)

    def fetch(self, w: Weights, *, slots: bool = False) -> None:
        self.inner.fetch(w, slots=slots)

    def values(self, dones: Sequence[Done]) -> Mapping[int, Vector]:
        return self.inner.values(dones)

    def reached(self, version: int) -> None:
        self.inner.reached(version)

    def ended(self) -> None:
        self.inner.ended()

    def stand_still(self, seconds: float) -> None:
        self.inner.stand_still(seconds)

    def state(self) -> ClusterState:
        return self.inner.state()

    def restore(self, state: ClusterState) -> None:
        self.inner.restore(state)


def start_again(engine: Engine, worker: int, task: Task, w: Weights) -> None:
    """Give a worker a task that a state had in flight: what is around the engine changes it no more."""
    (engine.start_again if isinstance(engine, Around) else engine.start)(worker, task, w)
