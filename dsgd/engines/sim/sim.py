"""A deterministic cluster in virtual time: no threads to wait for, no sleeping, thousands of workers.

Only time is simulated; gradients are real (`values`). A topology (`star`) says when messages arrive.

The future is a heap of (time, serial number, worker): tasks that finish computing. The serial number makes
ties deterministic: what was started first happens first. Where only the server's link takes time, results
come in in the order in which they were computed, and whatever a strategy starts after taking a finished task
finishes later still: so the task to come in next is the one that is computed first, and its way through the
server's link and service is worked out when it is taken. Where workers have links too, a result may overtake
another: it is in the heap twice, first with the time at which it leaves its worker, then with that at which
it has passed all links.

Here every worker has its own process, and none fails; `sim_with_faults` adds hosts and faults.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from dsgd.core.cluster_state import ClusterState
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.ledger import Ledger
from dsgd.core.ledger_views import LedgerViews
from dsgd.core.model import Workload
from dsgd.core.protocol import ClusterError, Done, TimeUp
from dsgd.core.tasks import Task
from dsgd.core.timing import ComputeTimes
from dsgd.core.traffic import MessageSizes
from dsgd.core.weights import Weights
from dsgd.engines.task_values import LazyValues
from dsgd.scenario.links import PeerLinks
from dsgd.scenario.star import Network, Star

_done = partial(tuple.__new__, Done)
NOTHING_RUNS = "no worker has a task: nothing can finish"


def overflow(worker: int) -> ClusterError:
    """Return the error for a task that would finish after more seconds than there are numbers for."""
    return ClusterError(
        f"the virtual clock overflowed at worker {worker}; choose smaller times (--compute-time, "
        "--slowdown, --latency-s, --server-time) or a faster --server-bytes-per-s"
    )


def as_started(results: list[tuple[Any, ...]], until_s: float) -> list[tuple[Any, ...]]:
    """Return a heap of results (s, serial number, …), of which those that wait come in as they were started:
    without a server no record says which was there first.
    """
    return sorted((max(at_s, until_s), *result) for at_s, *result in results)


class SimFlight(NamedTuple):
    """A task in flight, and when it was started, reaches its worker, and how long (s) it computes."""

    serial: int
    task: Task
    w: Weights
    started_s: float
    arrived_s: float
    compute_s: float


class SimCluster(LedgerViews[SimFlight]):
    """Simulates `len(workload.shards)` workers; see the module's text for the model.

    times: compute times. deadline_s: virtual seconds after which `next_done` raises TimeUp.
    threads: for chunks of the batched computation; results do not depend on it. device: of torch.

    It can be pickled between two calls, and goes on from there bit for bit.
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
        network = network or Network()
        self.now_s = 0.0
        self.device = device
        self.pids: Sequence[int] = ()
        self.restarts = [0] * len(workload.shards)
        self.faults_seen: list[FaultSeen] = []
        self._keep(Ledger[SimFlight](len(workload.shards)))
        self._times, self._deadline_s = times, deadline_s
        self._star = Star(network)
        self._sizes = MessageSizes(workload.objective.num_weights, network.padding_bytes, peers=network.peers)
        self._peers = PeerLinks(network.latency_s, network.links) if network.peers else None
        self._whole_bytes = self._sizes.of_whole
        self._task: Task | None = None  # the last one that came in
        self._task_bytes = 0  # of the message that has its value
        self._has_backups = network.replicas > 1
        self._instant, self._many_links = self._star.instant, self._star.many_links
        # By task's serial number: results that have passed the links. They are in the heap once more, with
        # the time at which they come in.
        self._passed: set[int] = set()
        # A task's serial number also distinguishes it from a cancelled one of its worker that is still in the
        # heap.
        self._computing: list[tuple[float, int, int]] = []
        self._serial = 0
        self._version_of: dict[int, int] = {}  # by worker: of the weights that it has, where that matters
        self._values = LazyValues(workload, device, threads) if workload.objective.num_weights else None

    @property
    def lost(self) -> int:
        """Mini-batches handed out to members that left before they finished."""
        return self._ledger.lost

    def reached(self, version: int) -> None:
        pass

    def ended(self) -> Sequence[str]:
        return ()

    def start(self, worker: int, task: Task, w: Weights) -> None:
        ledger, now_s = self._ledger, self.now_s
        step = ledger.steps[worker]
        if task.batches == 1:
            compute_s = self._times.seconds(worker, step)
        else:
            compute_s = self._times.total(worker, step, task.batches)
        if w.changes is not None:
            w, self._version_of[worker] = w.changes.since(w, self._version_of.get(worker)), w.version
        to_worker = self._whole_bytes if w.wire_bytes is None else self._sizes.to_worker(w)
        arrived_s = now_s if self._instant else self._star.send(now_s, to_worker, worker)
        ledger.traffic.to_worker[worker] += to_worker
        if self._peers:
            arrived_s = self._peers.begin(worker, arrived_s)
        self._serial = serial = self._serial + 1
        ledger.start(worker, SimFlight(serial, task, w, now_s, arrived_s, compute_s))
        heapq.heappush(self._computing, (arrived_s + compute_s, serial, worker))
        if self._values:
            self._values.add(worker, task, step, w.vector)

    def travel(self, source: int, target: int, num_bytes: int | None = None) -> None:
        if self._peers:
            num_bytes = self._sizes.vector if num_bytes is None else num_bytes
            self._peers.travel(source, target, num_bytes, self.now_s)
            self._ledger.traffic.to_peers[source] += num_bytes
            self._ledger.traffic.from_peers[target] += num_bytes

    def cancel(self, worker: int) -> None:
        flight = self._ledger.flights[worker]
        self._ledger.cancel(worker, min(flight.compute_s, max(0.0, self.now_s - flight.arrived_s)))
        if self._values:
            self._values.drop(worker)

    def next_done(self) -> Done | None:
        ledger, computing = self._ledger, self._computing
        flights = ledger.flights
        while True:
            if not computing:
                raise AssertionError(NOTHING_RUNS)
            computed_s, serial, worker = heapq.heappop(computing)
            if worker in flights and flights[worker][0] == serial:
                task = flights[worker][1]
                if task is not self._task:  # most are the same object as the one before
                    self._task, self._task_bytes = task, self._sizes.to_server(task)
                to_server = self._task_bytes
                if not self._many_links or self._is_through(computed_s, serial, worker, to_server):
                    break
            elif self._many_links:  # cancelled or lost
                self._passed.discard(serial)
        finished_s = computed_s if self._instant else self._star.collect(computed_s, to_server)
        if not finished_s < math.inf:
            raise overflow(worker)
        if finished_s > self._deadline_s:
            self.now_s = self._deadline_s
            raise TimeUp
        if finished_s < self.now_s:  # the server stood still
            finished_s = self.now_s
        else:
            self.now_s = finished_s
        step = ledger.steps[worker]
        ledger.traffic.to_server[worker] += to_server
        if self._has_backups:
            ledger.traffic.to_backups[worker] += to_server
        _, _, w, started_s, _, compute_s = ledger.finish(worker, finished_s)
        loss, value = self._values.take(worker) if self._values else (None, w.vector)
        to_worker = self._whole_bytes if w.wire_bytes is None else self._sizes.to_worker(w)
        times = started_s, finished_s, compute_s
        # As Done(...), in half the time.
        return _done((worker, step, task.batches, w.version, loss, value, *times, to_worker, to_server, w))

    def _is_through(self, computed_s: float, serial: int, worker: int, num_bytes: int) -> bool:
        """Return whether a result has passed the links; if not, let it pass them: another may overtake it."""
        if serial in self._passed:
            self._passed.remove(serial)
            return True
        self._passed.add(serial)
        through_s = self._star.pass_links(computed_s, num_bytes, worker)
        heapq.heappush(self._computing, (through_s, serial, worker))
        return False

    def stand_still(self, seconds: float) -> None:
        """Have the server do nothing for so long: workers compute meanwhile, and results wait."""
        self.now_s += seconds
        if self._peers:
            self._computing = as_started(self._computing, self.now_s)

    def state(self) -> ClusterState:
        """Return the cluster between two updates: `restore` goes on from there, bit for bit."""
        flights = self._ledger.flights
        return replace(
            self._ledger.state(self.now_s),
            states=self._values.states() if self._values else {},
            restarts=list(self.restarts),
            heard=dict(self._version_of),
            engine={
                "serial": self._serial,
                "flights": [[f.serial, f.arrived_s, f.compute_s] for f in flights.values()],
                "star": self._star.state(),
                "passed": [[at_s, n] for at_s, n, w in self._computing if self._has_passed(w, n)],
                **({"peers": self._peers.state()} if self._peers else {}),
            },
        )

    def restore(self, state: ClusterState) -> None:
        """Go back, or on, to a state, also one of another cluster of the same run."""
        flights = self._restore_books(state)
        passed = {serial: at_s for at_s, serial in state.engine.get("passed", ())}
        self._passed = set(passed)
        self._computing = [
            (passed.get(f.serial, f.arrived_s + f.compute_s), f.serial, w) for w, f in flights.items()
        ]
        heapq.heapify(self._computing)

    def _has_passed(self, worker: int, serial: int) -> bool:
        flight = self._ledger.flights.get(worker)
        return serial in self._passed and flight is not None and flight.serial == serial

    def _restore_books(self, state: ClusterState) -> Mapping[int, SimFlight]:
        """Restore all but the future; return the tasks in flight."""
        flights = {
            f.worker: SimFlight(serial, f.task, f.origin, f.started_s, float(arrived_s), float(compute_s))
            for f, (serial, arrived_s, compute_s) in zip(state.flights, state.engine["flights"], strict=True)
        }
        self._keep(Ledger.restored(state, flights))
        self.now_s, self.restarts = state.now_s, list(state.restarts)
        self._version_of = dict(state.heard)
        self._serial = int(state.engine["serial"])
        self._star.restore(state.engine["star"])
        if self._peers:
            self._peers.restore(state.engine["peers"])
        if self._values:
            self._values.restart(state.states)
            for worker, flight in flights.items():
                self._values.add(worker, flight.task, self._ledger.steps[worker], flight.w.vector)
        return flights
