"""A cluster that keeps separate books on all that passes through it, and finds where the engine's differ.

The books are short and slow on purpose: they are what the ledger of every engine is compared with.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dsgd.conformance.strategy_on_trial import Broken
from dsgd.core.cluster_state import ClusterState
from dsgd.core.protocol import Cluster, Done
from dsgd.core.tasks import Task
from dsgd.core.weights import Weights
from dsgd.transforms.wrapped_engine import WrappedCluster

_MOST_LOOKS = 1000


class _Given(NamedTuple):
    """A task that was handed out, as its result must come in."""

    step: int
    batches: int
    w: Weights


class Audit(WrappedCluster):
    """Passes everything on to a cluster in a given state; raises Broken where its books disagree.

    Its laws: started = done + lost + cancelled + in flight; each mini-batch of a worker comes in once, in
    order, and only cancelled ones are skipped; each result is of the weights that its task was given; clocks
    count what came in, and a worker that joins starts at the slowest; every member has a task or is idle.
    """

    def __init__(self, cluster: Cluster, state: ClusterState, joins: int = 0) -> None:
        super().__init__(cluster)
        self.cancelled = list(state.cancelled)
        """Mini-batches by worker."""
        self.lost = state.lost
        """Mini-batches of members that left before they finished."""
        self.joins = joins
        """How often a worker joined."""
        self._next = list(state.steps)  # by worker: the number of its next mini-batch
        self._clock = dict(state.clocks)
        self._given = {
            f.worker: _Given(self._next[f.worker], f.task.batches, f.origin) for f in state.flights
        }
        self._slowest, self._now_s = state.slowest, state.now_s
        self._done = state.given - self._in_flight
        self._started = state.given + self.lost + sum(self.cancelled)
        self._looks = 0  # since the last update

    def start(self, worker: int, task: Task, w: Weights) -> None:
        if worker not in self.idle:
            raise Broken(f"worker {worker} is given a task, and is not idle: {self._doing(worker)}")
        self.inner.start(worker, task, w)
        read = self.inner.reading(worker)  # with --compress-down, what the workers hold of that version
        if read.version != w.version:
            raise Broken(f"worker {worker} is given version {w.version}, and reads {read.version}")
        self._given[worker] = _Given(self._next[worker], task.batches, read)
        self._started += task.batches

    def travel(self, source: int, target: int, num_bytes: int | None = None) -> None:
        if source == target or target not in self.workers:  # who has left has sent before
            raise Broken(f"a vector travels from worker {source} to {target}, of {list(self.workers)}")
        self.inner.travel(source, target, num_bytes)

    def cancel(self, worker: int) -> None:
        self.inner.cancel(worker)
        step, batches, _ = self._given.pop(worker)
        self._next[worker] = step + batches
        self.cancelled[worker] += batches

    def next_done(self) -> Done | None:
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise Broken(f"next_done was called {_MOST_LOOKS} times, and no update was made")
        done = self.inner.next_done()
        if self.inner.now_s < self._now_s:
            raise Broken(f"time runs backwards, from {self._now_s:.6g} to {self.inner.now_s:.6g} s")
        self._now_s = self.inner.now_s
        if done:
            self._came_in(done)
        self.look_at_members()
        return done

    @property
    def _in_flight(self) -> int:
        return sum(given.batches for given in self._given.values())

    def _came_in(self, done: Done) -> None:
        given = self._given.pop(done.worker, None)
        what = f"worker {done.worker}'s result from its mini-batch {done.step}"
        if given is None:
            raise Broken(f"{what} came in, and it has no task")
        if (done.step, done.batches) != given[:2]:
            needed = f"{given.batches} from {given.step}"
            raise Broken(f"{what} came in with {done.batches} mini-batches, needed {needed}")
        if done.origin.vector is not given.w.vector or done.read != given.w.version:
            raise Broken(f"{what} read version {done.read}, and its task had version {given.w.version}")
        self._next[done.worker] = done.step + done.batches
        self._clock[done.worker] += done.batches
        self._done += done.batches

    def _doing(self, worker: int) -> str:
        if worker in self._given:
            return "it has one"
        return "it is about to leave" if worker in self.inner.workers else "it is no member"

    def look_at_members(self) -> None:
        """Enter who has left and joined since the last look, and what was lost with them."""
        members = self.inner.workers
        clocks = {worker: self.clocks[worker] for worker in members}
        if clocks == self._clock and self._given.keys() == self.in_flight.keys():
            return
        joined = [worker for worker in members if self._clock.get(worker) != clocks[worker]]
        before = min(self._clock.values(), default=self._slowest)
        after = min((self._clock[w] for w in members if w not in joined), default=math.inf)
        for worker in joined:  # or came back, since the last look
            if not before <= clocks[worker] <= max(before, after):
                slowest = f"{before}" if before >= after else f"{before} to {after}"
                raise Broken(f"worker {worker} has clock {clocks[worker]}, and the slowest is {slowest}")
        self.joins += len(joined)
        self._slowest = before
        self._clock = clocks
        for worker in self._given.keys() - self.in_flight.keys():
            self.lost += self._given.pop(worker).batches

    def balance(self, state: ClusterState) -> None:
        """Compare all books with the cluster's state, after an update; raises Broken where they disagree."""
        self._looks = 0
        self.look_at_members()
        cluster, idle = self.inner, set(self.idle)
        flights = set(self.in_flight)
        if flights != self._given.keys():
            raise Broken(f"tasks are in flight of workers {sorted(flights)}, needed {sorted(self._given)}")
        if idle & flights or ((idle | flights) ^ self._clock.keys()) - set(state.leaving):
            members = sorted(self._clock)
            raise Broken(f"idle are {sorted(idle)} and busy {sorted(flights)}, of the members {members}")
        in_flight, cancelled = self._in_flight, sum(self.cancelled)
        if self._started != self._done + self.lost + cancelled + in_flight:
            parts = f"{self._done} done, {self.lost} lost, {cancelled} cancelled, {in_flight} in flight"
            raise Broken(f"{self._started} mini-batches were started; {parts}")
        if cluster.given != self._done + in_flight:
            raise Broken(f"given is {cluster.given}, needed {self._done} done and {in_flight} in flight")
        if (state.lost, list(state.cancelled)) != (self.lost, self.cancelled):
            seen = f"{state.lost} mini-batches count as lost and {state.cancelled} by worker as cancelled"
            raise Broken(f"{seen}, needed {self.lost} and {self.cancelled}")
        if self._clock:
            ends = min(self._clock.values()), max(self._clock.values())
            if (self.clocks.slowest, self.clocks.fastest) != ends:
                seen = f"{self.clocks.slowest} and {self.clocks.fastest}"
                raise Broken(f"the slowest and fastest clocks are {seen}, needed {ends[0]} and {ends[1]}")
