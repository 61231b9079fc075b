"""The cluster as a strategy sees it: members that are given tasks, and the queue of finished tasks.

Two engines implement `Cluster`: `engines.ray.driver.cluster` (actors, wall seconds) and `engines.sim.sim`
(virtual seconds). A strategy runs unchanged on both.

**The restart law.** A strategy keeps nothing between two updates: what it remembers is in `Weights` (vector,
version, slots, `kept`) or in the cluster (clocks, what is in flight and what it read, workers' states). So at
any update `train(cluster, w, cfg)`, started again, goes on as the old generator would have, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from dsgd.core.clocks import Clocks
from dsgd.core.cluster_state import ClusterState
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.model import Evaluation, Workload
from dsgd.core.rng import Purpose, at
from dsgd.core.rules import Rule
from dsgd.core.tasks import Task
from dsgd.core.traffic import Traffic
from dsgd.core.weights import Vector, Weights
from dsgd.process.outcomes import Failure

TraceEvents: TypeAlias = Sequence[dict[str, Any]]
"""Events in the Chrome trace-event format, at microseconds since 1970."""


class Done(NamedTuple):
    """A finished task. All times are seconds on the engine's clock, 0 at the start barrier."""

    worker: int
    step: int
    """The number of its first mini-batch among the worker's, counted from 0."""
    batches: int
    """Mini-batches in the task; the worker's next one has number step + batches."""
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
    """Of the message with its weights, once, however often it was sent."""
    bytes_to_server: int
    """Of the message with its value."""
    origin: Weights
    """The weights it read."""


class Update(NamedTuple):
    """A new version of the weights, and the tasks whose values made it."""

    weights: Weights
    dones: Sequence[Done]
    ignored: Sequence[Done] = ()
    """Finished tasks that were discarded since the previous update."""
    measured: Mapping[str, float] = {}
    """What the strategy has measured of this update, by the names of rows in dsgd/metrics.py, like drift."""
    extra: Mapping[str, float] = {}
    """Other numbers of the strategy's, by any names like "tau", to be seen: they are in the record, the
    metrics, the live page and the reports, and change nothing."""
    made_s: float = 0.0
    """When it was made (engine s), which may be after its last task came in: a strategy may wait for others,
    and combining results may take time. The run enters it, from the engine's clock."""

    @property
    def finished_s(self) -> float:
        """When the version was there, on the engine's clock: `made_s`, or as long as that is not known, when
        the last of its tasks had come in.
        """
        return self.made_s or max(done.finished_s for done in self.dones)

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


class Evaluated(NamedTuple):
    """An evaluation, and the weights that were evaluated."""

    version: int
    t_s: float
    gradients: int
    bytes: int
    found: Evaluation


class IdleMembers(Protocol):
    """The members without a task: the latest finisher first, then the others, longest wait first."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    def __contains__(self, worker: object, /) -> bool: ...

    def within(self, ahead: float) -> Iterable[int]:
        """Return those whose clock is at most `ahead` mini-batches above the slowest, in the same order."""


class Cluster(Protocol):
    """Members that take one task at a time: all that a strategy may know and do."""

    @property
    def workers(self) -> Sequence[int]:
        """The members' numbers, ascending; they may change between two calls."""

    @property
    def idle(self) -> IdleMembers:
        """The members without a task."""

    @property
    def in_flight(self) -> Mapping[int, float]:
        """The members that have a task, and when (s) each got it; the oldest task comes first."""

    @property
    def clocks(self) -> Clocks:
        """Finished mini-batches by member; one that joins starts at the slowest."""

    @property
    def given(self) -> int:
        """Mini-batches handed out, those lost or cancelled excepted: what the rest of the budget
        follows from.
        """

    @property
    def now_s(self) -> float:
        """Seconds since the start barrier at the last answer of `next_done`, or after a `combine` that takes
        time: wall seconds on Ray, virtual seconds in the simulator. An update that is yielded is made now.
        """

    def reading(self, worker: int) -> Weights:
        """Return the weights that the task of `worker` reads."""

    def came_in_s(self, worker: int) -> tuple[float, float]:
        """Return when (s) the last two tasks of `worker` came in; 0 where there were fewer."""

    def start(self, worker: int, task: Task, w: Weights) -> None:
        """Give `worker` a task on the weights `w`, which are frozen here; it must be idle."""

    def travel(self, source: int, target: int, num_bytes: int | None = None) -> None:
        """Send a vector from one worker to another: the next task of `target` begins once it is there.

        num_bytes: None is a whole vector. On Ray nothing is sent: the weights that `start` hands over hold
        what came from others already.
        """

    def cancel(self, worker: int) -> None:
        """Stop the task of `worker`: its result never comes, and the worker is idle at once.

        Its mini-batches are skipped, not repeated: the next task draws new ones, and new times.
        """

    def next_done(self) -> Done | None:
        """Wait for the task that finishes first; None means that the members have changed: look again.

        Raises TimeUp when the run's `--max-seconds` pass before, and ClusterError when a worker cannot
        be kept alive.
        """

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        """Return the version after `w`: aggregate the values, then take the rule's step, where the
        weights live.
        """

    def spread(self, dones: Sequence[Done]) -> float:
        """Return the mean Euclidean distance of the values that were combined to their mean, measured where
        they are.
        """


class Telemetry(Protocol):
    """What only the recording of a run needs of an engine; a strategy must not depend on it."""

    @property
    def traffic(self) -> Traffic:
        """The bytes that were sent."""

    @property
    def restarts(self) -> Sequence[int]:
        """By worker: how often it was lost and started again."""

    @property
    def cancelled(self) -> Sequence[int]:
        """By worker: mini-batches that it had begun when their task was cancelled."""

    @property
    def cancelled_s(self) -> Sequence[float]:
        """By worker: seconds it computed for tasks that were cancelled."""

    @property
    def device(self) -> str:
        """Where gradients are computed: cpu or cuda."""

    @property
    def pids(self) -> Sequence[int]:
        """By worker: the process that carries it, or did last; empty in the simulator."""

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """What the processes of its hosts have in memory, by name, shared pages included; empty in the
        simulator. Another thread may ask.
        """

    def process_logs(self, *, wait: bool) -> Mapping[str, str]:
        """Return, once, the end of the logs of its processes, by name; empty where all are on this machine.

        wait: for the last lines of processes that have just died, for a second or two at most.
        """

    def profile(self, begin: bool) -> Mapping[str, TraceEvents]:
        """Begin to profile what torch computes in the processes of its hosts, or end that and return their
        events (`TorchProfile`), by name; empty in the simulator.
        """

    @property
    def faults_seen(self) -> Sequence[FaultSeen]:
        """The faults that are over, in the order in which they ended; it only grows."""

    def note(self, fault: FaultSeen) -> None:
        """Add a fault that is over to `faults_seen`: one that something around the engine has seen."""

    def evaluate(
        self, workload: Workload, w: Vector, models: Mapping[int, Vector] | None = None
    ) -> Evaluation | None:
        """Return the evaluation of weights w (D,), off the clock; one thread at a time may call it.

        models: by worker, its own weights (D,), whose experts are compared with those of w.
        Raises EvaluationLost.
        """

    def fetch(self, w: Weights, *, slots: bool = False) -> None:
        """Have a version, and its slots if asked, brought to where evaluations and checkpoints are made."""

    def values(self, dones: Sequence[Done]) -> Mapping[int, Vector]:
        """Return, by worker, the values (D,) of tasks that the newest weights are made of, brought to where
        evaluations are made; of a worker whose value was lost since, none.
        """

    def reached(self, version: int) -> None:
        """Learn that the run has recorded this version of the weights: faults may be due with it, and happen
        when the strategy next waits.
        """

    def ended(self) -> Sequence[str]:
        """Add the faults that are not over to `faults_seen`, and return those that never happened."""

    def stand_still(self, seconds: float) -> None:
        """Have the simulated server do nothing for so long; a real one is never asked to."""

    def state(self) -> ClusterState:
        """Return the cluster as it is, between two updates."""

    def restore(self, state: ClusterState) -> None:
        """Go back, or on, to a state, also one of another cluster of the same run; tasks in flight are
        handed out again.
        """


class Engine(Cluster, Telemetry, Protocol):
    """Both views of a running cluster."""


class DriverLost(Exception):
    """A fault has ended the simulated driver: the run goes on from its last checkpoint."""

    def __init__(self, lasts_s: float) -> None:
        super().__init__("the driver was ended by --faults")
        self.lasts_s = lasts_s
        """Engine seconds until it is back."""


class EvaluationLost(Exception):
    """An evaluation was not made, and will not be; the run goes on without it."""


class TimeUp(Exception):
    """The engine's clock has reached `--max-seconds`."""


class ClusterError(Failure):
    """The cluster cannot do what was asked: resources missing, a worker lost for good."""


class WeightsLost(ClusterError):
    """All processes that held the weights were lost: the run goes on from its last checkpoint, if it has one.

    lasts_s: engine seconds until there are new ones, where the engine knows that.
    """

    def __init__(self, text: str, lasts_s: float = 0.0) -> None:
        super().__init__(text)
        self.lasts_s = lasts_s


def start_idle(cluster: Cluster, task: Task, w: Weights, ahead: float = math.inf) -> None:
    """Give the same task to every idle worker that is at most `ahead` mini-batches ahead of the slowest."""
    for worker in cluster.idle.within(ahead):
        cluster.start(worker, task, w)


def start_all(cluster: Cluster, task: Task, w: Weights, besides: Container[int] = ()) -> None:
    """Give the same task to every idle worker, in worker order; those in `besides` are left out."""
    for worker in sorted(cluster.idle):
        if worker not in besides:
            cluster.start(worker, task, w)


def run_all(
    cluster: Cluster, task: Task, w: Weights, *, clients: int | None = None, seed: int = 0
) -> list[Done]:
    """Give every worker the same task and wait for all: a barrier.

    clients: how many members take part, drawn for this version of the weights from the seed; None: all.
    The result is in worker order, so that sums do not depend on the order of arrival. Tasks of members that
    leave meanwhile are missing from it; those that join wait for the next round, unless no other is left.
    """
    dones: list[Done] = []
    while not dones:
        rests = set(cluster.workers) - set(_drawn(cluster.workers, clients, seed, w.version))
        start_all(cluster, task, w, besides=rests)
        if done := cluster.next_done():
            dones.append(done)
        while cluster.in_flight:
            if done := cluster.next_done():
                dones.append(done)
    return in_worker_order(dones)


def _drawn(members: Sequence[int], count: int | None, seed: int, version: int) -> Sequence[int]:
    """Return `count` of the members, all equally likely; all where there are no more."""
    if count is None or count >= len(members):
        return members
    chosen = at(seed, Purpose.CLIENTS, 0, version).choice(len(members), count, replace=False)
    return [members[n] for n in chosen.tolist()]


def next_round(cluster: Cluster, budget: int, most: int, clients: int | None = None) -> int:
    """Return how many mini-batches each member takes in the next round, or each of so many `clients` if not
    all take part: `most`, or what is left of the budget.

    The rest of the budget is shared equally, rounded up, or down among clients, of which the last round may
    then have fewer; 0 once it has all been handed out.
    """
    left, members = budget - cluster.given, len(cluster.workers)
    if clients is not None and left > 0:
        return min(most, max(1, left // max(1, min(clients, members))))
    return min(most, -(-left // max(1, members))) if left > 0 else 0


def start_portions(cluster: Cluster, task: Callable[[int], Task], w: Weights, budget: int, most: int) -> bool:
    """Give idle workers tasks of `most` mini-batches, the last one what is left; return whether any are in
    flight or still to be given, once there is a member.

    task: makes the task of so many mini-batches.
    """
    while (left := budget - cluster.given) > 0 and cluster.idle:
        cluster.start(next(iter(cluster.idle)), task(min(most, left)), w)
    return left > 0 or bool(cluster.in_flight)


def in_worker_order(dones: Iterable[Done]) -> list[Done]:
    """Return finished tasks by worker and step: sums over them do not depend on the order of arrival."""
    return sorted(dones, key=_worker_and_step)


def _worker_and_step(done: Done) -> tuple[int, int]:
    return done.worker, done.step
