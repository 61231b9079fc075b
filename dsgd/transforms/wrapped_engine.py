"""An engine around an engine: what an option changes on the way between a strategy and any engine.

A subclass overrides the few members that it changes, `start` and `combine` mostly; all others are passed on.
So what it does is written once, and is the same on Ray, in the simulator and in a replay.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from dsgd.core.protocol import Cluster, Engine
from dsgd.core.tasks import Task
from dsgd.core.weights import Weights


def _passed_on(name: str) -> Any:
    """Return a member that is that of `inner`."""
    return property(attrgetter(f"inner.{name}"))


class WrappedCluster:
    """Passes on to `inner` what a strategy sees of it."""

    def __init__(self, inner: Cluster) -> None:
        self.inner = inner

    workers = _passed_on("workers")
    idle = _passed_on("idle")
    in_flight = _passed_on("in_flight")
    clocks = _passed_on("clocks")
    given = _passed_on("given")
    now_s = _passed_on("now_s")
    reading = _passed_on("reading")
    came_in_s = _passed_on("came_in_s")
    start = _passed_on("start")
    travel = _passed_on("travel")
    cancel = _passed_on("cancel")
    next_done = _passed_on("next_done")
    combine = _passed_on("combine")
    spread = _passed_on("spread")


class WrappedEngine(WrappedCluster):
    """Passes every member of `Engine` on to `inner`, which this class may wrap in turn."""

    inner: Engine

    def __init__(self, inner: Engine) -> None:
        super().__init__(inner)

    def start_again(self, worker: int, task: Task, w: Weights) -> None:
        """Give a worker a task of a state, as `start` made it then: what was decided of it stays so."""
        start_again(self.inner, worker, task, w)

    traffic = _passed_on("traffic")
    restarts = _passed_on("restarts")
    cancelled = _passed_on("cancelled")
    cancelled_s = _passed_on("cancelled_s")
    device = _passed_on("device")
    pids = _passed_on("pids")
    memory_bytes = _passed_on("memory_bytes")
    process_logs = _passed_on("process_logs")
    faults_seen = _passed_on("faults_seen")
    note = _passed_on("note")
    evaluate = _passed_on("evaluate")
    fetch = _passed_on("fetch")
    values = _passed_on("values")
    reached = _passed_on("reached")
    ended = _passed_on("ended")
    stand_still = _passed_on("stand_still")
    state = _passed_on("state")
    restore = _passed_on("restore")


def start_again(engine: Engine, worker: int, task: Task, w: Weights) -> None:
    """Give a worker a task that a state had in flight: what is around the engine changes it no more."""
    (engine.start_again if isinstance(engine, WrappedEngine) else engine.start)(worker, task, w)
