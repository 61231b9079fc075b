"""The members, what each has done and what it is doing: decided in one place for every engine.

The ledger is plain data. It has no clock, starts nothing and never waits: an engine carries out what is
decided here, and reports what happened. So what happens to a task when its worker is cancelled, leaves or
joins is tested without Ray and without time (tests/core/test_ledger.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from dsgd.core.clocks import Clocks
from dsgd.core.cluster_state import ClusterState, InFlight
from dsgd.core.tasks import Task
from dsgd.core.traffic import Traffic
from dsgd.core.weights import Weights


class Flight(Protocol):
    """A task that has been handed out; an engine adds what it needs to carry it out."""

    @property
    def task(self) -> Task:
        """What is computed."""

    @property
    def w(self) -> Weights:
        """The weights it reads."""

    @property
    def started_s(self) -> float:
        """When the worker got it, on the engine's clock."""


F = TypeVar("F", bound=Flight)


class Started(Mapping[int, float]):
    """When each worker in flight got its task, in seconds on the engine's clock; the oldest task comes
    first.
    """

    def __init__(self, flights: Mapping[int, Flight]) -> None:
        self._flights = flights

    def __getitem__(self, worker: int) -> float:
        return self._flights[worker].started_s

    def __iter__(self) -> Iterator[int]:
        return iter(self._flights)

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, worker: object) -> bool:
        return worker in self._flights


class Idle:
    """The members without a task: the latest finisher first, then the others, longest wait first.

    Adding and removing one costs O(1). Members are kept by clock, so finding those that are at most `ahead`
    of the slowest costs as much as there are such members and different clocks, however many others wait.
    """

    def __init__(self, clocks: Clocks, members: Iterable[int]) -> None:
        self._clocks = clocks
        self._latest: int | None = None
        self._serial = 0
        self._since: dict[int, tuple[int, int]] = {}  # by member: serial number of its waiting, its clock
        self._at: dict[int, dict[int, int]] = {}  # by clock: serial number by member, in the order of waiting
        for worker in members:
            self._wait(worker)

    def __len__(self) -> int:
        return len(self._since) + (self._latest is not None)

    def __contains__(self, worker: object) -> bool:
        return worker == self._latest or worker in self._since

    def __iter__(self) -> Iterator[int]:
        return iter(self.within(math.inf))

    def within(self, ahead: float) -> Sequence[int]:
        """Return the idle members whose clock is at most `ahead` mini-batches above the slowest."""
        latest, limit = self._latest, self._clocks.slowest + ahead
        first = () if latest is None or self._clocks[latest] > limit else (latest,)
        if not self._since:
            return first
        ready = [waiting for clock, waiting in self._at.items() if clock <= limit]
        if len(ready) < 2:
            return (*first, *ready[0]) if ready else first
        return (*first, *(w for _, w in sorted((n, w) for waiting in ready for w, n in waiting.items())))

    def add(self, worker: int) -> None:
        """Put a member that has just finished ahead of all others."""
        if self._latest is not None:
            self._wait(self._latest)
        self._latest = worker

    def join(self, worker: int) -> None:
        """Put a member that has just joined behind all others."""
        self._wait(worker)

    @property
    def order(self) -> tuple[int | None, Sequence[int]]:
        """The member that finished last, if it is idle, and the others, the longest waiting first."""
        return self._latest, list(self._since)

    def remove(self, worker: int) -> None:
        """Take a member out: it has a task, or has left."""
        if worker == self._latest:
            self._latest = None
            return
        try:
            _, clock = self._since.pop(worker)
        except KeyError:
            raise AssertionError(
                f"worker {worker} is not idle: it is leaving, or no member; start only those in `idle`"
            ) from None
        waiting = self._at[clock]
        del waiting[worker]
        if not waiting:
            del self._at[clock]

    def _wait(self, worker: int) -> None:
        self._serial += 1
        clock = self._clocks[worker]
        self._since[worker] = self._serial, clock
        self._at.setdefault(clock, {})[worker] = self._serial


class Ledger(Generic[F]):
    """The books of a cluster whose first members are 0 to `num_workers` - 1."""

    def __init__(self, num_workers: int) -> None:
        self.workers: Sequence[int] = range(num_workers)
        self.clocks = Clocks(self.workers)
        self.idle = Idle(self.clocks, self.workers)
        self.flights: dict[int, F] = {}
        """By worker, in the order in which they were started: what was read grows from first to last."""
        self.in_flight = Started(self.flights)
        self.steps = [0] * num_workers
        """By worker: the number of its next mini-batch. It survives a departure, so none is
        given twice.
        """
        self.came_in_s = [(0.0, 0.0)] * num_workers
        """By worker: when the last two of its tasks came in, in seconds on the engine's clock."""
        self.given = 0
        """Mini-batches handed out, those lost or cancelled excepted."""
        self.lost = 0
        """Mini-batches that were handed out to members that left before they finished."""
        self.came_in = 0
        """Tasks that have come in."""
        self.leaving: set[int] = set()
        """Members that get no further task: they leave once theirs has come in."""
        self.cancelled, self.cancelled_s = [0] * num_workers, [0.0] * num_workers
        """By worker: mini-batches whose task was cancelled, and the seconds it had computed for them."""
        self.states: dict[int, Any] = {}
        """By worker: what its last finished task hands on to its next one, in the engine's form."""
        self.traffic = Traffic(num_workers)
        """What the engine has sent; it counts that itself, as it sends."""

    def start(self, worker: int, flight: F) -> None:
        """Enter that `worker` has got a task."""
        assert worker not in self.flights, f"worker {worker} already has a task"
        self.idle.remove(worker)
        self.flights[worker] = flight
        self.given += flight.task.batches

    def finish(self, worker: int, now_s: float) -> F:
        """Enter that the task of `worker` has come in, and return it."""
        flight = self.flights.pop(worker)
        batches = flight.task.batches
        self.came_in += 1
        self.steps[worker] += batches
        self.came_in_s[worker] = self.came_in_s[worker][1], now_s
        self.clocks.tick(worker, batches)
        if not self.leaving or worker not in self.leaving:
            self.idle.add(worker)
        return flight

    def cancel(self, worker: int, computed_s: float) -> F:
        """Enter that the task of `worker` was stopped after `computed_s` seconds of computing; return it.

        Its mini-batches are skipped: neither the clock nor `given` counts them, and none is given out again.
        """
        flight = self.flights.pop(worker)
        batches = flight.task.batches
        self.cancelled[worker] += batches
        self.cancelled_s[worker] += computed_s
        self.steps[worker] += batches
        self.given -= batches
        if worker not in self.leaving:
            self.idle.add(worker)
        return flight

    def come(self, worker: int) -> bool:
        """Have a worker join, or stay if it was to leave; return whether either was needed."""
        if worker in self.leaving:
            self.stay(worker)
        elif worker in self.workers:
            return False
        else:
            self.join(worker)
        return True

    def join(self, worker: int) -> None:
        """Enter a new member, or one that has come back: its clock starts at the slowest."""
        assert worker not in self.workers, f"worker {worker} is a member already"
        self.workers = tuple(sorted((*self.workers, worker)))
        new = worker + 1 - len(self.steps)
        self.steps += [0] * new
        self.came_in_s += [(0.0, 0.0)] * new
        self.cancelled += [0] * new
        self.cancelled_s += [0.0] * new
        self.traffic.join(len(self.steps))
        self.clocks.join(worker)
        self.idle.join(worker)

    def leave(self, worker: int) -> F | None:
        """Take a member out and return the task that is lost with it, if it had one.

        The lost mini-batches count neither as given nor as done: the budget is spent on others. A worker that
        comes back has its state, and begins with the mini-batch that was lost.
        """
        assert worker in self.workers, f"worker {worker} is no member"
        flight = self.flights.pop(worker, None)
        if flight:
            self.given -= flight.task.batches
            self.lost += flight.task.batches
        elif worker in self.idle:
            self.idle.remove(worker)
        self.leaving.discard(worker)
        self.workers = tuple(other for other in self.workers if other != worker)
        self.clocks.leave(worker)
        return flight

    def retire(self, worker: int) -> None:
        """Have a member leave in good order: it gets no further task, and `depart` takes it out once its own
        has come in.
        """
        assert worker in self.workers, f"worker {worker} is no member"
        self.leaving.add(worker)
        if worker in self.idle:
            self.idle.remove(worker)

    def stay(self, worker: int) -> None:
        """Have a member that was to leave stay."""
        self.leaving.remove(worker)
        if worker not in self.flights:
            self.idle.join(worker)

    def depart(self) -> Sequence[int]:
        """Take out the members that are to leave and have no task; return them.

        An engine does so when it is asked for the next task: only then has the strategy seen their last one.
        """
        gone = sorted(worker for worker in self.leaving if worker not in self.flights)
        for worker in gone:
            self.leave(worker)
        return gone

    def state(self, now_s: float) -> ClusterState:
        """Return all of it, between two updates; engines add what is theirs.

        The workers' states are in the engine's form.
        """
        latest, waiting = self.idle.order
        return ClusterState(
            now_s=now_s,
            workers=tuple(self.workers),
            clocks=self.clocks.by_member(),
            slowest=self.clocks.slowest,
            fastest=self.clocks.fastest,
            latest=latest,
            waiting=waiting,
            flights=[InFlight(w, f.task, f.w, f.started_s) for w, f in self.flights.items()],
            steps=list(self.steps),
            came_in_s=list(self.came_in_s),
            given=self.given,
            lost=self.lost,
            cancelled=list(self.cancelled),
            cancelled_s=list(self.cancelled_s),
            came_in=self.came_in,
            leaving=sorted(self.leaving),
            states=dict(self.states),
            traffic=self.traffic.state(),
        )

    @classmethod
    def restored(cls, state: ClusterState, flights: Mapping[int, F]) -> Ledger[F]:
        """Return the books as they were; flights: the engine's form of those in `state`, in that order."""
        ledger = cls(len(state.steps))
        ledger.workers = tuple(state.workers)
        ledger.clocks = Clocks.at(state.clocks, state.slowest, state.fastest)
        ledger.idle = Idle(ledger.clocks, state.waiting)
        if state.latest is not None:
            ledger.idle.add(state.latest)
        ledger.flights.update(flights)
        ledger.steps = list(state.steps)
        ledger.came_in_s = [(first, last) for first, last in state.came_in_s]
        ledger.given, ledger.lost, ledger.came_in = state.given, state.lost, state.came_in
        ledger.cancelled, ledger.cancelled_s = list(state.cancelled), list(state.cancelled_s)
        ledger.states, ledger.leaving = dict(state.states), set(state.leaving)
        ledger.traffic.restore(state.traffic)
        return ledger


def with_new_processes(
    state: ClusterState, start: ClusterState, now: ClusterState, *, now_s: float
) -> ClusterState:
    """Return a state as it is after all processes were lost and new ones started, at `now_s`: nothing is in
    flight, those that were leaving have left, and those that had left with their process are back.

    start: the state at the run's beginning. now: the present one: faults have happened, bytes were sent.
    """
    ledger = Ledger[Any].restored(state, {flight.worker: flight for flight in state.flights})
    for worker in state.leaving:
        ledger.leave(worker)
    for worker, flight in ledger.flights.items():
        ledger.given -= flight.task.batches
        ledger.idle.join(worker)
    ledger.flights.clear()
    for worker in (state.hosts or {}).get("dropped", ()):
        ledger.come(worker)
    latest, waiting = ledger.idle.order
    return replace(
        ledger.state(now_s),
        latest=None,
        waiting=[worker for worker in (latest, *waiting) if worker is not None],
        restarts=state.restarts,
        held=state.held,
        hosts=start.hosts,
        faults=now.faults,
        traffic=now.traffic,
        # Its future is over; answers are counted on.
        engine={**start.engine, **{name: n for name, n in state.engine.items() if name == "answers"}},
    )
