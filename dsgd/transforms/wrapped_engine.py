"""An engine around an engine: what an option changes on the way between a strategy and any engine; with
`--aggregate` and `--filter`, how results become one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from dsgd.core.aggregators import Aggregation
from dsgd.core.protocol import Cluster, ClusterError, Done, Engine
from dsgd.core.rules import Chain, Rule
from dsgd.core.tasks import Task
from dsgd.core.weights import Weights
from dsgd.transforms.filters import Filter


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
    profile = _passed_on("profile")
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


class Aggregating(WrappedEngine):
    """Has every rule of a strategy aggregate, and filter, as the options say.

    text: the option, for messages. by_speed: whether a result counts as the mini-batches a second that it was
    computed at: those of its own task, so a run that goes on needs to know of no earlier one.
    """

    def __init__(
        self,
        inner: Engine,
        aggregation: Aggregation | None,
        filtering: Filter | None,
        text: str,
        *,
        by_speed: bool = False,
    ) -> None:
        super().__init__(inner)
        self._by_speed = by_speed
        self._aggregation, self._filter, self._text = aggregation, filtering, text
        self._rule: Rule | None = None

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        """Aggregate; raises ClusterError for too few results, and for a rule that is no chain of parts."""
        needed = self._aggregation.least if self._aggregation else 1
        if len(dones) < needed:
            raise ClusterError(
                f"--{self._text}: needs {needed} results an update, and update {w.version + 1} has "
                f"{len(dones)}, as members are missing; keep more (--on-loss, --min-workers), or lower F"
            )
        if rule is not self._rule:
            if not isinstance(rule, Chain):
                raise ClusterError(
                    f"--{self._text}: the strategy's rule, a {type(rule).__name__}, is no chain of "
                    "parts; make it with dsgd.core.rules.chain"
                )
            if self._filter and rule.of_weights:
                raise ClusterError(
                    f"--{self._text}: looks at gradients, and this strategy's rule is of weights"
                )
            self._rule = self._changed = rule
            if self._aggregation:
                self._changed = self._changed.aggregated(self._aggregation)
            if self._filter:
                self._changed = self._changed.preceded_by(self._filter)
        changed = self._changed
        if self._by_speed and (speeds := speeds_of(dones)):
            changed = changed.aggregated(Aggregation(samples=speeds))
        return self.inner.combine(changed, w, dones)


def speeds_of(dones: Sequence[Done]) -> tuple[float, ...] | None:
    """Return, by worker, the mini-batches a second at which its results were computed; 0 where there is none.

    None where computing takes no time.
    """
    if any(done.compute_s <= 0 for done in dones):
        return None
    speeds = [0.0] * (1 + max(done.worker for done in dones))
    for worker in {done.worker for done in dones}:
        own = [done for done in dones if done.worker == worker]
        speeds[worker] = sum(done.batches for done in own) / sum(done.compute_s for done in own)
    return tuple(speeds)
