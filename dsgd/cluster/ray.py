"""A cluster of Ray actors in wall time.

Workers are carried by hosts, which are actors (`ray_host.py`). The driver keeps, for each task in flight,
what it sent; so when a host is lost, another gets the same bytes again.

What is sent is chosen for speed (benchmarks/README.md): small vectors travel as plain `bytes` inside
the call, which Ray does not have to pickle; large ones are put into the object store once a version.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from dsgd.cluster.ray_connection import Connection, connect, last_line, resources

# isort: split
import numpy as np
import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from dsgd.cluster import ClusterError, Done, TimeUp
from dsgd.cluster.capacity import num_processes, shortage
from dsgd.cluster.clocks import Clocks
from dsgd.cluster.fault_book import FaultBook, OpenFault
from dsgd.cluster.hosts import Hosts
from dsgd.cluster.ledger import Idle, Ledger
from dsgd.cluster.ray_host import INLINE_BYTES, REPLY, REQUEST
from dsgd.cluster.ray_nodes import Nodes
from dsgd.cluster.ray_processes import HostProcess, HostProcesses, room_for
from dsgd.cluster.state import ClusterState
from dsgd.cluster.timing import ComputeTimes
from dsgd.config import TrainConfig
from dsgd.data import Workload
from dsgd.faults.fault import Fault
from dsgd.faults.plan import Plan
from dsgd.faults.seen import FaultSeen
from dsgd.work import rules
from dsgd.work.rules import Rule
from dsgd.work.shard import Shard
from dsgd.work.tasks import Task
from dsgd.work.weights import Vector, Weights

_POLL_S = 1.0  # how often waiting looks for what Ray does not report by an answer
_LOOK_S = 0.02  # the same while no task is in flight


class _Flight(NamedTuple):
    """A task that was handed out, and all that is needed to send it again."""

    ticket: int
    task: Task
    w: Weights
    started_s: float
    pickled: bytes
    small: bytes
    large: Any


class _Sent(NamedTuple):
    """A task in flight as one process has it."""

    worker: int
    process: HostProcess
    state: Any
    """Refers to what the task will hand on, if it keeps state."""


class RayCluster:
    """Runs the workers on as many actors as there are hosts and spares; use it as a context manager.

    A start barrier: it returns once every host has imported what it needs and holds its shards. The clock
    starts with the first task.
    Raises ValueError for a device that is not there, ClusterError when the hosts cannot be started
    within cfg.ray.start_timeout_s. `connection` is closed with it.
    """

    def __init__(self, cfg: TrainConfig, workload: Workload, connection: Connection | None = None) -> None:
        num_workers = len(workload.shards)
        fault = cfg.fault
        self._cfg, self._objective = cfg, workload.objective
        self._ledger = Ledger[_Flight](num_workers)
        self._hosts = Hosts(
            num_workers,
            fault.hosts or num_workers,
            fault.spares,
            on_loss=fault.on_loss,
            min_workers=fault.min_workers,
            max_restarts=fault.max_restarts,
            window_s=fault.restart_window_s,
            seed=cfg.seed,
        )
        self._plan = Plan(fault.fault_list, seed=cfg.seed, hosts=self._hosts.num_hosts)
        self._book = FaultBook()
        self.restarts = [0] * num_workers
        self._deadline_s = cfg.stop.max_seconds
        self._times = ComputeTimes(cfg.timing.compute_law, cfg.seed, cfg.timing.slowdowns)
        self._padding = np.zeros(cfg.timing.padding_bytes // 4, np.float32)
        self._message_bytes = 4 * workload.objective.num_weights + self._padding.nbytes
        self._tickets = 0
        self._version = 0
        self._num_ready = 0
        # Oldest first: of several finished tasks, ray.wait takes the first in this order, so none starves.
        self._refs: dict[Any, _Sent] = {}
        self._readying: dict[Any, HostProcess] = {}
        self._running: dict[int, HostProcess] = {}  # by host
        # What is to be done, by `time.perf_counter`: (when, serial number, what).
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()
        self._members_changed = False
        self._pickled: dict[Task, bytes] = {}
        self._packed: tuple[Vector | None, bytes, Any] = (None, b"", None)  # the last vector, as it is sent
        self._connection = connection or connect(cfg.ray.start_timeout_s)
        self._nodes: Nodes | None = None
        self._processes: HostProcesses | None = None
        try:
            self.device = self._choose_device()
            self._start_hosts(workload.shards)
        except BaseException:
            self.close()
            raise
        self._began_s: float | None = None
        self._last_s = 0.0  # when the last task came in

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def workers(self) -> Sequence[int]:
        return self._ledger.workers

    @property
    def idle(self) -> Idle:
        return self._ledger.idle

    @property
    def in_flight(self) -> Mapping[int, float]:
        return self._ledger.in_flight

    @property
    def clocks(self) -> Clocks:
        return self._ledger.clocks

    @property
    def given(self) -> int:
        return self._ledger.given

    @property
    def cancelled(self) -> Sequence[int]:
        return self._ledger.cancelled

    @property
    def cancelled_s(self) -> Sequence[float]:
        return self._ledger.cancelled_s

    @property
    def faults_seen(self) -> Sequence[FaultSeen]:
        return self._book.seen

    @property
    def now_s(self) -> float:
        return self._last_s

    @property
    def pids(self) -> Sequence[int]:
        return [self._pids[host] for host in self._hosts.carrier]

    def reading(self, worker: int) -> Weights:
        return self._ledger.flights[worker].w

    def came_in_s(self, worker: int) -> tuple[float, float]:
        return self._ledger.came_in_s[worker]

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        return rules.combine(rule, w, dones)

    def start(self, worker: int, task: Task, w: Weights) -> None:
        if self._began_s is None:
            self._begin(0.0)
        self._version = w.version
        flight = self._flight(task, w, self._elapsed_s())
        self._ledger.start(worker, flight)
        self._send(worker)

    def cancel(self, worker: int) -> None:
        flight = self._ledger.flights[worker]
        self._ledger.cancel(worker, self._elapsed_s() - flight.started_s)
        self._stop_copies(worker, flight.ticket)

    def next_done(self) -> Done | None:
        while True:
            self._look()
            if self._members_changed:
                self._members_changed = False
                return None
            left_s = self._next_s() - self._elapsed_s()
            refs = [*self._refs, *self._readying] if self._readying else list(self._refs)
            ready: list[Any] = []
            if refs:
                ready, _ = ray.wait(refs, num_returns=1, timeout=max(0.0, min(_POLL_S, left_s)))
            else:
                assert left_s < math.inf, "no worker has a task: nothing can finish"
                time.sleep(max(0.0, min(_LOOK_S, left_s)))
            if left_s < _POLL_S and self._elapsed_s() > self._deadline_s:
                raise TimeUp
            if ready:
                done = self._take(ready[0])
                if done:
                    return done

    def reached(self, version: int) -> None:
        self._version = version
        for fault in self._plan.at_update(version):
            self._carry_out(fault)

    def state(self) -> ClusterState:
        """Return the cluster between two updates; the workers' states are fetched from their machines."""
        states: dict[int, Vector] = {w: ray.get(ref) for w, ref in self._ledger.states.items()}
        return replace(
            self._ledger.state(self.now_s),
            states=states,
            restarts=list(self.restarts),
            hosts=self._hosts.state(),
            faults=self._plan.position(),
        )

    def restore(self, state: ClusterState) -> None:
        """Go back, or on, to a state; its tasks in flight are sent again, with the same steps and weights."""
        for worker, flight in self._ledger.flights.items():
            self._stop_copies(worker, flight.ticket)
        self.restarts = list(state.restarts)
        refs: dict[int, Any] = {worker: ray.put(vector) for worker, vector in state.states.items()}
        self._ledger = Ledger.restored(
            replace(state, states=refs),
            {f.worker: self._flight(f.task, f.origin, f.started_s) for f in state.flights},
        )
        if state.faults is not None:
            self._plan.go_to(state.faults)
        self._begin(state.now_s)
        if state.hosts is not None:
            self._hosts.restore(state.hosts)
            for host in range(len(self._hosts.alive)):
                lives = host in self._running and self._running[host].ready not in self._readying
                if lives and not self._hosts.alive[host]:
                    self._back(host)
                self._hosts.alive[host] = lives
        self._send_unsent()

    def close(self) -> None:
        """Stop the workers, and the cluster if this run started it."""
        if self._processes:
            self._processes.close()
        if self._nodes:
            self._nodes.close()
        self._connection.close()

    # --- tasks ----------------------------------------------------------------------------------------------

    def _elapsed_s(self) -> float:
        return 0.0 if self._began_s is None else time.perf_counter() - self._began_s

    def _begin(self, now_s: float) -> None:
        """Set the clock, and what it triggers."""
        self._began_s, self._last_s = time.perf_counter() - now_s, now_s

    def _flight(self, task: Task, w: Weights, started_s: float) -> _Flight:
        pickled = self._pickled.get(task)
        if pickled is None:
            pickled = self._pickled[task] = ray.cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
        if self._packed[0] is not w.vector:
            padded = np.concatenate([w.vector, self._padding]) if len(self._padding) else w.vector
            small = padded.nbytes <= INLINE_BYTES
            self._packed = (w.vector, *((padded.tobytes(), None) if small else (b"", ray.put(padded))))
        self._tickets += 1
        return _Flight(self._tickets, task, w, started_s, pickled, *self._packed[1:])

    def _send(self, worker: int) -> None:
        """Send the task of a worker to the host that carries it, if that is there; else it waits."""
        host = self._hosts.carrier[worker]
        if self._hosts.alive[host]:
            self._send_to(self._running[host], worker)

    def _send_to(self, process: HostProcess, worker: int) -> None:
        if worker not in process.carried:
            assert self._processes
            self._processes.carry(process, worker)
        flight = self._ledger.flights[worker]
        _, task, _, _, pickled, small, large = flight
        header = REQUEST.pack(worker, flight.ticket, self._ledger.steps[worker], len(pickled), 1.0)
        request = b"".join((header, pickled, small))
        state = None
        if task.state_rows and self._objective.num_weights:
            ref, state = process.actor.run.options(num_returns=2).remote(
                request, large, self._ledger.states.get(worker)
            )
        elif large is not None:
            ref = process.actor.run.remote(request, large)
        else:
            ref = process.actor.run.remote(request)
        self._refs[ref] = _Sent(worker, process, state)

    def _send_unsent(self) -> None:
        """Send every task in flight that no process has."""
        sent = {copy.worker for copy in self._refs.values()}
        for worker in self._ledger.flights:
            if worker not in sent:
                self._send(worker)

    def _stop_copies(self, worker: int, ticket: int) -> None:
        """Stop the task of a worker wherever it is computed: its answers are not read."""
        for ref, sent in list(self._refs.items()):
            if sent.worker == worker:
                del self._refs[ref]
                sent.process.actor.stop.remote(worker, ticket)

    def _take(self, ref: Any) -> Done | None:
        """Return the finished task; None if it was lost, or if a host is ready."""
        if ref in self._readying:
            self._take_ready(ref)
            return None
        worker, process, state = self._refs[ref]
        try:
            result = ray.get(ref)
        except RayActorError:
            self._lose(process)
            return None
        except RayTaskError as error:
            raise ClusterError(
                f"worker {worker} failed in its task: {error.cause!r}; try --engine sim, which shows where"
            ) from error
        except ObjectLostError as error:
            raise ClusterError(f"worker {worker} lost its state with its node; run again") from error
        del self._refs[ref]
        if state is not None:
            self._ledger.states[worker] = state
        finished_s = self._last_s = self._elapsed_s()
        if isinstance(result, bytes):
            loss, compute_s = REPLY.unpack_from(result)
            value: Vector = np.frombuffer(result, np.float32, offset=REPLY.size)
        else:
            loss, compute_s, value = result
        step = self._ledger.steps[worker]
        flight = self._ledger.finish(worker, finished_s)
        num_weights = self._objective.num_weights
        return Done(
            worker,
            step,
            flight.task.batches,
            flight.w.version,
            loss if num_weights else None,
            value[:num_weights],
            flight.started_s,
            finished_s,
            compute_s,
            self._message_bytes,
            self._message_bytes,
            flight.w,
        )

    # --- hosts ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Do what is due, and see which processes have ended without an answer that says so."""
        while self._plan.next_s <= self._elapsed_s():
            self._carry_out(self._plan.pop_timed()[1])
        while self._timers and self._timers[0][0] <= time.perf_counter():
            heapq.heappop(self._timers)[2]()
        assert self._processes
        while not self._processes.heard.empty():
            process, _ = self._processes.heard.get()
            self._lose(process)

    def _next_s(self) -> float:
        """Return when, in engine seconds, waiting must end: something is to be done then."""
        timer_s = self._timers[0][0] - time.perf_counter() + self._elapsed_s() if self._timers else math.inf
        return min(self._deadline_s, self._plan.next_s, timer_s)

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.perf_counter() + delay_s, next(self._serials), action))

    def _lose(self, process: HostProcess) -> None:
        """Enter that a process has ended, carry out what follows, and record it."""
        host = process.host
        if self._running.get(host) is not process:
            return  # known already
        assert self._processes
        del self._running[host]
        self._processes.end(process)  # it may only be out of reach
        self._readying.pop(process.ready, None)
        now_s, carried = self._elapsed_s(), self._hosts.carried(host)
        stranded = [ref for ref, sent in self._refs.items() if sent.process is process]
        repeated = [self._refs.pop(ref).worker for ref in stranded]
        fault = self._book.expected(host)
        if fault is None:
            fault = OpenFault(
                now_s, "kill", tuple(carried), False, self._version, self._ledger.came_in, {host}
            )
            self._book.begin(fault)
        fault.hosts.discard(host)
        fault.detected_s = now_s - fault.t_s
        fault.repeated += sum(self._ledger.flights[worker].task.batches for worker in repeated)
        for worker in carried:
            self.restarts[worker] += 1
        loss = self._hosts.lose(host, now_s, self.workers)
        if loss.restart_s is not None:
            held_s = fault.t_s + fault.lasts_s - now_s
            self._after(max(loss.restart_s, held_s), lambda: self._start_again(host))
        elif loss.waiting:
            count = self._cfg.fault.max_restarts + 1
            raise ClusterError(
                f"worker {loss.waiting[0]} died {count} times, more than --max-restarts "
                f"{self._cfg.fault.max_restarts} within --restart-window-s "
                f"{self._cfg.fault.restart_window_s:g}; look for the reason in its log, or allow more"
            )
        for worker, to in loss.moved.items():
            fault.words.append(f"worker {worker} moved to host {to}")
        for worker in loss.leaving:
            flight = self._ledger.leave(worker)
            fault.wasted += flight.task.batches if flight else 0
            self._members_changed = True
            fault.words.append(f"worker {worker} left")
        fault.words += [f"worker {worker} waits for a new process" for worker in loss.waiting]
        fault.waiting.update(loss.waiting)
        self._send_unsent()
        if not fault.waiting and not fault.hosts:
            self._book.end(fault, self._elapsed_s())

    def _start_again(self, host: int) -> None:
        """Start a new process for a host that was lost."""
        assert self._processes
        process = self._running[host] = self._processes.start(host, self._hosts.carried(host))
        self._readying[process.ready] = process

        def require() -> None:
            if process.ready in self._readying:
                workers = ", ".join(map(str, self._hosts.carried(host)))
                raise ClusterError(self._lacking(f"worker {workers}, which died,"))

        self._after(self._cfg.ray.start_timeout_s, require)

    def _take_ready(self, ref: Any) -> None:
        process = self._readying.pop(ref)
        try:
            process.pid, process.node_id = ray.get(ref)
        except RayActorError:
            self._lose(process)
        else:
            self._pids[process.host] = process.pid
            self._back(process.host)

    def _back(self, host: int) -> None:
        """Enter that a host can compute; its workers' tasks are sent, and those that had left join."""
        carried, joining = self._hosts.back(host)
        for worker in joining:
            self._ledger.join(worker)
            self._members_changed = True
        self._send_unsent()
        self._book.computing(carried, self._elapsed_s())

    # --- faults ---------------------------------------------------------------------------------------------

    def _carry_out(self, fault: Fault) -> None:
        """Make a fault that is due happen."""
        now_s = self._elapsed_s()
        if fault.kind == "kill":
            hosts = {self._hosts.home(worker) for worker in fault.workers}
            living = {host for host in hosts if self._hosts.alive[host]}
            opened = OpenFault(
                now_s,
                fault.kind,
                fault.workers,
                True,
                self._version,
                self._ledger.came_in,
                living,
                fault.lasts_s or 0.0,
            )
            self._book.begin(opened)
            if not living:
                opened.words.append("no process was there")
                self._book.end(opened, now_s)
            for host in living:
                self._running[host].actor.end_process.remote()

    # --- the start ------------------------------------------------------------------------------------------

    def _start_hosts(self, shards: Sequence[Shard]) -> None:
        """Start all hosts, and wait until every one is ready.

        A thread does it, because no call of Ray may prolong the wait: on an overloaded machine each of them
        may take far longer than its own time-out.
        """
        until_s = time.monotonic() + self._cfg.ray.start_timeout_s
        self._await_room(until_s)
        answer: SimpleQueue[list[HostProcess] | BaseException] = SimpleQueue()
        given_up = threading.Event()
        count = num_processes(self._cfg)

        def start() -> None:
            try:
                self._nodes = Nodes(self._cfg.fault.nodes if self._connection.private else 1)
                self._processes = HostProcesses(
                    self._cfg, self._objective, self._times, self._connection, self._nodes, self.device
                )
                self._processes.put(shards)
                started = []
                for host in range(count):
                    if given_up.is_set():
                        return
                    started.append(self._processes.start(host, self._hosts.carried(host)))
                waiting = [process.ready for process in started]
                while waiting and not given_up.is_set():
                    ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
                    ray.get(ready)  # raises the error of a host that died
                    self._num_ready += len(ready)
                for process in started:
                    process.pid, process.node_id = ray.get(process.ready)
                answer.put(started)
            except BaseException as error:  # the other thread raises it
                answer.put(error)

        threading.Thread(target=start, daemon=True).start()
        try:
            found = answer.get(timeout=max(0.0, until_s - time.monotonic()))
        except Empty:
            raise ClusterError(self._lacking(f"{count - self._num_ready} of {count} workers")) from None
        finally:
            given_up.set()
        if isinstance(found, RayActorError):
            raise ClusterError(
                f"a worker died while it started: {last_line(found)}; look for the reason in its "
                "log, or lower --num-workers if memory ran out"
            ) from found
        if isinstance(found, BaseException):
            raise found
        self._running = dict(enumerate(found))
        self._pids = {process.host: process.pid for process in found}

    def _await_room(self, until_s: float) -> None:
        """Wait until the cluster that the environment names, which may still grow, has enough memory."""
        if self._connection.private:  # this machine's was looked at before anything started
            return
        while True:
            has = resources()
            # Ray counts apart what it keeps for objects, which is taken only as objects come.
            memory = has.get("memory", 0.0) + has.get("object_store_memory", 0.0)
            lacking = shortage(self._cfg, memory, "the cluster has")
            if lacking is None:
                return
            if time.monotonic() > until_s:
                raise ClusterError(lacking)
            time.sleep(0.1)

    def _choose_device(self) -> str:
        wanted, share, count = self._cfg.ray.device, self._cfg.ray.gpus_per_worker, num_processes(self._cfg)
        room = room_for(share)
        if wanted == "auto":
            return "cuda" if room >= count else "cpu"
        if wanted == "cuda" and room < count and self._connection.private:  # no GPU will come
            raise ValueError(
                f"--device cuda: {count} workers x {share:g} GPU are asked for and this machine has "
                f"{resources().get('GPU', 0.0):g}; use --device cpu or a smaller --gpus-per-worker"
            )
        return wanted

    def _lacking(self, who: str) -> str:
        gpus = self._cfg.ray.gpus_per_worker if self.device == "cuda" else 0
        have = ", ".join(
            f"{name} {amount:g}" for name, amount in sorted(resources().items()) if name in ("CPU", "GPU")
        )
        return (
            f"{who} could not be started within --start-timeout-s {self._cfg.ray.start_timeout_s:g}: asked "
            f"for {gpus:g} GPU and 0 CPU each, the cluster has {have or 'nothing'} in all; free some, "
            f"lower --num-workers{' or --gpus-per-worker' * bool(gpus)}, or wait longer"
        )
