"""What follows when a process is lost, silent or back, and when a member leaves or joins: for every engine.

An engine says what has happened. The supervisor enters it in the books (`Ledger`, `Hosts`, `FaultBook`) and
answers with orders, which the engine carries out one by one, as they are given. It reads the engine's clock,
starts nothing and never waits: so the random schedules that run through the simulator test what Ray runs.

A worker is a shard, a clock and a state. A *host* is a process, or a group of them, that carries workers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from dsgd.core.ledger import Ledger
from dsgd.scenario.fault_book import FaultBook, OpenFault
from dsgd.scenario.hosts import Hosts, Loss

_WHAT = {"pause": "stood still", "slow": "computed slower", "cut": "was cut off"}


class Send(NamedTuple):
    """Send the task that a worker has in flight to a host."""

    worker: int
    host: int


class Stop(NamedTuple):
    """Stop the task of a worker, wherever it is, and report `task_over`."""

    worker: int


class Ask(NamedTuple):
    """Ask a host for an answer, which comes when its tasks are done or stopped."""

    host: int


class LookAgain(NamedTuple):
    """Report `silent` at this time, if the host has the worker's task then."""

    worker: int
    host: int
    at_s: float


class StartAgain(NamedTuple):
    """Start a new process for a host, and report `back` when it can compute."""

    host: int
    backoff_s: float
    """Not before so many seconds, since it was lost often."""
    held_s: float
    """Nor before so many, as the fault says."""


class BringState(NamedTuple):
    """Have the state of a worker where its new carrier can reach it."""

    worker: int


class GiveUp(NamedTuple):
    """End the run: a member waits for a host that was lost too often to be started again."""

    worker: int


Order: TypeAlias = Send | Stop | Ask | LookAgain | StartAgain | BringState | GiveUp
Orders: TypeAlias = Iterator[Order]


class Stranded(NamedTuple):
    """A task that was on a host when that was lost."""

    batches: int
    """Mini-batches that had been begun, as far as the engine knows."""
    elsewhere: bool
    """Whether another process has the task too."""


class Supervisor:
    """Decides for the members of a ledger, which these hosts carry.

    Methods that return orders have to be iterated to the end: each goes on when its order was carried out.
    clock_s: return the engine's seconds. suspect_after_s: how long a host with a task may be silent.
    """

    def __init__(
        self, ledger: Ledger[Any], hosts: Hosts, clock_s: Callable[[], float], suspect_after_s: float | None
    ) -> None:
        self.hosts, self.book = hosts, FaultBook(clock_s, lambda: self._ledger.came_in)
        self.restarts = [0] * len(hosts.carrier)
        """By worker: how often its process was lost."""
        self.changed = False
        """Whether members have changed; cleared by whoever says so to the strategy."""
        self._ledger, self._clock_s, self._suspect_after_s = ledger, clock_s, suspect_after_s
        self._suspected: dict[int, OpenFault] = {}  # by worker in flight: a second host has its task

    # --- hosts ----------------------------------------------------------------------------------------------

    def lost(
        self, hosts: Sequence[int], tasks: Mapping[int, Stranded], fault: OpenFault | None = None
    ) -> Orders:
        """Enter that the processes of hosts have ended, all at once.

        tasks: by worker, those that were there, in the order in which they are to be sent again. fault: what
        has ended them; None: the one that was expected to, or nobody has asked for it.
        """
        for host in hosts:
            self.hosts.alive[host] = False
            fault = fault or self.book.expecting(host)
        fault = fault or self.book.begin("kill", asked=False)
        fault.expected.difference_update(hosts)
        self.book.detect(fault)
        left = yield from self._decide(hosts, fault)
        not_again = [task for worker, task in tasks.items() if worker in left or task.elsewhere]
        wasted = sum(task.batches for task in not_again)
        fault.add(repeated=sum(task.batches for task in tasks.values()) - wasted, wasted=wasted)
        for worker in left:
            yield from self._drop(worker)
        for worker, task in tasks.items():
            if worker not in left and not task.elsewhere:
                yield from self._send_to_carrier(worker)
        for other in list(self.book.open):
            if other.seen.kind == "pause" and {*other.passing} <= {*hosts}:
                self.book.end(other)  # a new process does not stand still
        if not fault.words and not fault.expected:
            fault.words.append("it carried nobody")
        self._settle()

    def asked_to_end(self, host: int, unsent: Sequence[int]) -> Orders:
        """Enter that a process was asked to end: it finishes its tasks; its workers go on as after a loss.

        unsent: the workers in flight whose tasks no process has, in the order in which they are sent.
        """
        words = [f"host {host} was asked to end"]
        fault = self.book.begin("kill", asked=False, words=words, notice=True)
        for worker in (yield from self._decide([host], fault)):
            self._ledger.retire(worker)
            text = f"worker {worker} leaves with its process"
            self.book.note("leave", (worker,), text, asked=False, notice=True)
        for worker in unsent:
            yield from self._send_to_carrier(worker)
        self._settle()

    def back(self, host: int, unsent: Sequence[int]) -> Orders:
        """Enter that a host has a new process that can compute; unsent: as for `asked_to_end`."""
        carried, joining = self.hosts.back(host, self._clock_s())
        for worker in carried:
            yield BringState(worker)
        for worker in unsent:
            if worker in carried:
                yield from self._send_to_carrier(worker)
        for worker in joining:
            self.changed |= self._ledger.come(worker)
            self.book.note("join", (worker,), f"worker {worker} joins with its new process", asked=False)
        self._settle()

    def _decide(self, hosts: Sequence[int], fault: OpenFault) -> Generator[Order, None, Sequence[int]]:
        """Decide what becomes of the workers of lost hosts; return those that are to leave."""
        members, leaving, now_s = self._ledger.workers, list[int](), self._clock_s()
        for host in hosts:
            carried = [worker for worker in self.hosts.carried(host) if worker in members]
            loss = self.hosts.lose(host, now_s, [worker for worker in members if worker not in leaving])
            for worker in carried:
                self.restarts[worker] += 1
            fault.words += _words(loss, carried)
            fault.waiting.update(loss.waiting)
            leaving += loss.leaving
            fault.seen = fault.seen._replace(workers=tuple(sorted({*fault.seen.workers, *carried})))
            if loss.restart_s is not None:
                yield StartAgain(host, loss.restart_s, fault.held_s - (now_s - fault.seen.t_s))
            elif loss.waiting:
                fault.words.append(self.hosts.gave_up(host))
                yield GiveUp(loss.waiting[0])
            else:
                self.book.note("given-up", carried, self.hosts.gave_up(host), asked=False, recovered_s=None)
            for worker in loss.moved:
                yield BringState(worker)
        return leaving

    def _drop(self, worker: int) -> Orders:
        """Have a member leave at once, its task with it."""
        if worker in self._ledger.leaving:
            self.hosts.dropped.discard(worker)
        if worker in self._ledger.flights:
            yield Stop(worker)
        self._ledger.leave(worker)
        self.changed = True
        self.book.note("leave", (worker,), f"worker {worker} left with its process", asked=False)

    def _send_to_carrier(self, worker: int) -> Orders:
        carrier = self.hosts.carrier[worker]
        if self.hosts.alive[carrier]:
            yield Send(worker, carrier)

    def _settle(self) -> None:
        """Enter that orders were carried out: losses for which no worker waits any longer are over."""
        alive, carrier, members = self.hosts.alive, self.hosts.carrier, self._ledger.workers
        for fault in list(self.book.open):
            if fault.seen.kind in ("kill", "node") and not fault.expected:
                fault.waiting = {w for w in fault.waiting if w in members and not alive[carrier[w]]}
                if not fault.waiting:
                    self.book.end(fault)

    def server_lost(self, number: int, what: str, fault: OpenFault) -> None:
        """Enter that a process of a server has ended, and what follows; as for `Hosts.lose_server`."""
        fault.words.append(f"server {number}: {what}")
        self.hosts.lose_server(number, self._clock_s())

    # --- members --------------------------------------------------------------------------------------------

    def leave(self, worker: int) -> None:
        """Have a member leave in good order, with the next `depart`."""
        ledger, dropped = self._ledger, self.hosts.dropped
        if worker in ledger.workers:
            text = "leaves when its task has come in" if worker in ledger.flights else "leaves"
            ledger.retire(worker)
        else:
            text = "does not come back" if worker in dropped else "was not a member"
            dropped.discard(worker)
        self.book.note("leave", (worker,), f"worker {worker} {text}")

    def join(self, worker: int) -> None:
        """Have a worker join, or stay; one whose host is lost joins when that is back."""
        ledger, hosts = self._ledger, self.hosts
        outside = worker not in ledger.workers
        if outside and (worker in hosts.dropped or not hosts.alive[hosts.carrier[worker]]):
            hosts.dropped.add(worker)  # it joins, and that is recorded, with its new process
            return
        if changes := ledger.come(worker):
            self.changed = True
        text = "joins" if outside else "stays" if changes else "was a member already"
        self.book.note("join", (worker,), f"worker {worker} {text}")

    def depart(self) -> None:
        """Have those leave that are to, and have no task any more: the strategy has seen their last one."""
        if self._ledger.leaving and self._ledger.depart():
            self.changed = True
            self._settle()

    # --- silence --------------------------------------------------------------------------------------------

    def silent(self, worker: int, host: int) -> Orders:
        """Enter that a living host may have been silent for too long: it was sent a worker's task so long
        ago, and has it still. Then it is suspected, and a second host gets the task too, once.
        """
        assert self._suspect_after_s is not None
        now_s = self._clock_s()
        if (silent_s := self.hosts.heard_s(host) + self._suspect_after_s) > now_s:
            yield LookAgain(worker, host, silent_s)  # it computes other tasks first
            return
        carried = self.hosts.carried(host)
        if self.hosts.suspect(host, now_s):
            yield Ask(host)
            for other in carried:
                yield BringState(other)
        second = self.hosts.second(worker, host)
        if second is None or worker in self._suspected:
            return
        for fault in self.book.open:
            if host in fault.passing and fault.seen.detected_s is None:
                self.book.detect(fault)
        words = [f"worker {worker} was silent on host {host}: host {second} got its task too"]
        self._suspected[worker] = self.book.begin("suspect", (worker,), asked=False, words=words)
        yield Send(worker, second)

    def doubts(self, worker: int) -> bool:
        """Whether a second host has the task of a worker."""
        return worker in self._suspected

    def task_over(self, worker: int, wasted: int, first: int | None = None) -> None:
        """Enter that a task has come in from host `first`, or is no more, and closes a suspicion about it.

        wasted: mini-batches that others had computed of it, too.
        """
        if suspicion := self._suspected.pop(worker, None):
            if first is not None:
                suspicion.words[-1] += f", and host {first} was first"
            suspicion.add(wasted=wasted)
            self.book.end(suspicion)

    def disturb(self, kind: str, hosts: Sequence[int]) -> OpenFault:
        """Enter that hosts are stopped, slowed or cut off; return that."""
        carried = [worker for worker in self._ledger.workers if self.hosts.carrier[worker] in hosts]
        names = ", ".join(f"host {host}" for host in hosts) or "no host"
        return self.book.begin(kind, carried, words=[f"{names} {_WHAT[kind]}"], passing=hosts)

    # --- state ----------------------------------------------------------------------------------------------

    def keep(self, ledger: Ledger[Any], restarts: list[int]) -> None:
        """Go on with other books."""
        self._ledger, self.restarts, self.changed = ledger, restarts, False

    @property
    def waits(self) -> int | None:
        """How often the strategy has waited when it goes on from here, knowing who the members are."""
        waits = self.book.answers
        return None if waits is None else waits + self.changed

    def state(self) -> Mapping[str, Any]:
        """Return, as JSON values, the faults that are not over; `Hosts` keeps its own."""
        return {
            "suspected": [[worker, fault.state()] for worker, fault in self._suspected.items()],
            "open": [
                [fault.number, fault.state(), list(fault.passing), sorted(fault.waiting)]
                for fault in self.book.open
                if fault not in self._suspected.values()
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` returned; faults that are open now never end."""
        self.book.end_all()
        self.book.open = [
            OpenFault.restored(seen, number=number, passing=hosts, waiting={*waiting})
            for number, seen, hosts, waiting in state["open"]
        ]
        self._suspected = {worker: OpenFault.restored(seen) for worker, seen in state["suspected"]}
        self.book.open += self._suspected.values()


def _words(loss: Loss, carried: Sequence[int]) -> list[str]:
    """Return what becomes of the members that a lost host carried."""
    return [
        *(f"worker {w} moved to host {host}" for w, host in loss.moved.items() if w in carried),
        *(f"worker {w} waits for a new process" for w in loss.waiting),
        *(f"worker {w} left" for w in loss.leaving),
    ]
