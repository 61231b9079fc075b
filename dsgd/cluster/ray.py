"""A cluster of Ray actors in wall time.

Each worker is an actor that holds its shard and nothing else. The driver keeps, for each task in
flight, what it sent; so when an actor dies, another takes its place and gets the same bytes again.

What is sent is chosen for speed (benchmarks/README.md): small vectors travel as plain `bytes` inside
the call, which Ray does not have to pickle; large ones are put into the object store once a version.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

# Read when ray is imported. Under `uv run` it would rebuild the environment in every worker, which
# here run in the driver's. Its own messages (a worker died, …) are not for the terminal of a run that
# reports and handles these events itself: all of them are dropped here and stay in Ray's log files.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

import numpy as np
import ray
from ray._private import utils as ray_utils
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from dsgd.cluster import ClusterError, Done, TimeUp
from dsgd.cluster.capacity import shortage
from dsgd.cluster.clocks import Clocks
from dsgd.cluster.ledger import Idle, Ledger
from dsgd.cluster.processes import awaited, own_processes
from dsgd.cluster.state import ClusterState
from dsgd.cluster.timing import ComputeTimes, sleep_heterogeneity
from dsgd.cluster.values import compute_alone
from dsgd.config import TrainConfig
from dsgd.data import Workload
from dsgd.faults.seen import FaultSeen
from dsgd.work import rules
from dsgd.work.model import Objective
from dsgd.work.rules import Rule
from dsgd.work.shard import Shard
from dsgd.work.tasks import Task
from dsgd.work.weights import Vector, Weights

_INLINE_BYTES = 64_000  # below the size up to which Ray sends arguments and results inside the call
_REQUEST = struct.Struct("qqq")  # ticket, step, length of the pickled task
_REPLY = struct.Struct("dd")  # loss, seconds of computing
_SLIVER = 0.001  # of a CPU, the least that Ray counts
_POLL_S = 1.0  # how often waiting checks the deadline, and workers that do not restart


class Worker:
    """The actor: one shard, one device."""

    def __init__(
        self,
        worker: int,
        shard: Shard,
        objective: Objective,
        times: ComputeTimes,
        device: str,
        padding_bytes: int,
        delay_s: float,
    ) -> None:
        time.sleep(delay_s)
        self._worker, self._objective, self._times, self._device = worker, objective, times, device
        self._padding = np.zeros(padding_bytes // 4, np.float32)
        self._tasks: dict[bytes, Task] = {}
        self._stopped, self._stop = -1, threading.Condition()  # no task up to this ticket need go on
        if objective.num_weights:
            import torch  # noqa: F401 - before the start barrier: it takes a second

            self._shard = shard.on_device([shard], device)[0]

    def ready(self) -> int:
        """Return the process id, once the shard is on its device."""
        return os.getpid()

    def run(self, request: bytes, large: Vector | None = None, state: Vector | None = None) -> Any:
        """Compute a task; return the loss, the seconds it took, and the value.

        request: its ticket, the step, the pickled task and, unless it comes as `large`, the vector of
        weights. A task that is stopped ends at once if it sleeps; what it returns is not read.
        state: (rows, D), where a task before this left one. A task that keeps state returns it as well.
        """
        began_s = time.perf_counter()
        ticket, step, length = _REQUEST.unpack_from(request)
        if ticket <= self._stopped:
            return b""  # even where two values are expected: the result of a stopped task is not read
        end = _REQUEST.size + length
        pickled_task = request[_REQUEST.size : end]
        task = self._tasks.get(pickled_task)
        if task is None:
            task = self._tasks[pickled_task] = pickle.loads(pickled_task)
        # Not aligned to four bytes where the task's length is not: numpy copes, and torch gets a copy.
        vector = np.frombuffer(request, np.float32, offset=end) if large is None else large
        vector = vector[: self._objective.num_weights]
        loss, value = math.nan, vector
        if self._objective.num_weights:
            loss, value, kept = compute_alone(
                task, self._objective, self._shard, step, vector, state, self._device
            )
        computed_s = time.perf_counter() - began_s
        sleep_heterogeneity(self._times, self._worker, step, task.batches, computed_s, self._sleeper(ticket))
        if len(self._padding):
            value = np.concatenate([value, self._padding])
        compute_s = time.perf_counter() - began_s
        small = value.nbytes <= _INLINE_BYTES
        reply = _REPLY.pack(loss, compute_s) + value.tobytes() if small else (loss, compute_s, value)
        if task.state_rows and self._objective.num_weights:
            return reply, kept.cpu().numpy()
        return reply

    # In its own concurrency group, and so its own thread: it must be heard while a task runs.
    @ray.method(concurrency_group="control")
    def stop(self, ticket: int) -> None:
        """Stop the task with this ticket, whether it runs or has not begun."""
        with self._stop:
            self._stopped = max(self._stopped, ticket)
            self._stop.notify_all()

    def _sleeper(self, ticket: int) -> Callable[[float], object]:
        def sleep(seconds: float) -> None:
            with self._stop:
                self._stop.wait_for(lambda: ticket <= self._stopped, seconds)

        return sleep


class _Flight(NamedTuple):
    """A task that was sent, and all that is needed to send it again."""

    ticket: int
    task: Task
    w: Weights
    started_s: float
    request: bytes
    large: Any


class RayCluster:
    """Runs `len(workload.shards)` actors; use it as a context manager.

    A start barrier: it returns once every worker has imported what it needs and holds its shard. The clock
    starts with the first task.
    Raises ValueError for a device that is not there, ClusterError when the workers cannot be started
    within cfg.ray.start_timeout_s. `connection` is closed with it.
    """

    def __init__(self, cfg: TrainConfig, workload: Workload, connection: Connection | None = None) -> None:
        num_workers = len(workload.shards)
        self._ledger = Ledger[_Flight](num_workers)
        self.restarts = [0] * num_workers
        self.faults_seen: list[FaultSeen] = []
        self._cfg, self._objective = cfg, workload.objective
        self._deadline_s = cfg.stop.max_seconds
        self._times = ComputeTimes(cfg.timing.compute_law, cfg.seed, cfg.timing.slowdowns)
        self._padding = np.zeros(cfg.timing.padding_bytes // 4, np.float32)
        self._message_bytes = 4 * workload.objective.num_weights + self._padding.nbytes
        self._tickets = 0
        self._num_ready = 0
        # Where workers keep state the ledger holds a reference: the state stays on the worker's machine and
        # outlives the worker. This is what the task in flight will hand on.
        self._next_states: dict[int, Any] = {}
        # Oldest first: of several finished tasks, ray.wait takes the first in this order, so none starves.
        self._refs: dict[Any, int] = {}
        self._returning: dict[int, tuple[Any, float]] = {}  # restarted: when ready, and until when to wait
        self._pickled: dict[Task, bytes] = {}
        self._sent: tuple[Vector | None, bytes, Any] = (None, b"", None)  # the last vector, as it was sent
        self._actors: list[Any] = []
        self._shards: list[Any] = []
        self._connection = connection or connect(cfg.ray.start_timeout_s)
        try:
            self.device = self._choose_device()
            self.pids = self._start_workers(workload.shards)
        except BaseException:
            self.close()
            raise
        self._began_s: float | None = None
        self._now_s = 0.0

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

    def reading(self, worker: int) -> Weights:
        return self._ledger.flights[worker].w

    def came_in_s(self, worker: int) -> tuple[float, float]:
        return self._ledger.came_in_s[worker]

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        return rules.combine(rule, w, dones)

    @property
    def now_s(self) -> float:
        # It stands still between two answers: a replay, which knows when each came, decides the same by it.
        return self._now_s

    @property
    def _clock_s(self) -> float:
        return 0.0 if self._began_s is None else time.perf_counter() - self._began_s

    def start(self, worker: int, task: Task, w: Weights) -> None:
        if self._began_s is None:
            self._began_s = time.perf_counter()
        self._ledger.start(worker, self._flight(task, w, self._ledger.steps[worker], self._clock_s))
        self._send(worker)

    def _flight(self, task: Task, w: Weights, step: int, started_s: float) -> _Flight:
        pickled = self._pickled.get(task)
        if pickled is None:
            pickled = self._pickled[task] = ray.cloudpickle.dumps(task)  # type: ignore[no-untyped-call]
        if self._sent[0] is not w.vector:
            self._sent = (w.vector, *self._packed(w.vector))
        _, small, large = self._sent
        self._tickets += 1
        header = _REQUEST.pack(self._tickets, step, len(pickled))
        request = b"".join((header, pickled, small))
        return _Flight(self._tickets, task, w, started_s, request, large)

    def cancel(self, worker: int) -> None:
        flight = self._ledger.flights[worker]
        self._ledger.cancel(worker, self._clock_s - flight.started_s)
        self._next_states.pop(worker, None)
        ref = next(ref for ref, its_worker in self._refs.items() if its_worker == worker)
        del self._refs[ref]
        self._actors[worker].stop.remote(flight.ticket)

    def next_done(self) -> Done:
        assert self._refs, "no worker has a task: nothing can finish"
        while True:
            left_s = self._deadline_s - self._clock_s
            ready, _ = ray.wait(list(self._refs), num_returns=1, timeout=max(0.0, min(_POLL_S, left_s)))
            if left_s < _POLL_S and self._clock_s > self._deadline_s:
                raise TimeUp
            if self._returning:
                self._check_returning()
            if ready:
                done = self._take(ready[0])
                if done:
                    return done

    def reached(self, version: int) -> None:
        pass

    def ended(self) -> None:
        pass

    def state(self) -> ClusterState:
        """Return the cluster between two updates; the workers' states are fetched from their machines."""
        states: dict[int, Vector] = {w: ray.get(ref) for w, ref in self._ledger.states.items()}
        return replace(self._ledger.state(self.now_s), states=states, restarts=list(self.restarts))

    def restore(self, state: ClusterState) -> None:
        """Go back, or on, to a state; its tasks in flight are sent again, with the same steps and weights."""
        for worker in self._refs.values():
            self._actors[worker].stop.remote(self._ledger.flights[worker].ticket)
        self._refs.clear()
        self._next_states.clear()
        self._began_s, self._now_s = time.perf_counter() - state.now_s, state.now_s
        self.restarts = list(state.restarts)
        refs: dict[int, Any] = {worker: ray.put(vector) for worker, vector in state.states.items()}
        flights = {
            f.worker: self._flight(f.task, f.origin, state.steps[f.worker], f.started_s)
            for f in state.flights
        }
        self._ledger = Ledger.restored(replace(state, states=refs), flights)
        for worker in flights:
            self._send(worker)

    def close(self) -> None:
        """Stop the workers, and the cluster if this run started it."""
        for actor in self._actors:
            with contextlib.suppress(Exception):  # the cluster may be gone already
                ray.kill(actor)
        self._connection.close()

    def _take(self, ref: Any) -> Done | None:
        """Return the finished task, or None if its worker died and the task was sent again."""
        worker = self._refs.pop(ref)
        try:
            result = ray.get(ref)
        except RayActorError:
            self._restart(worker)
            return None
        except RayTaskError as error:
            raise ClusterError(
                f"worker {worker} failed in its task: {error.cause!r}; try --engine sim, which shows where"
            ) from error
        except ObjectLostError as error:
            raise ClusterError(f"worker {worker} lost its state with its node; run again") from error
        if worker in self._next_states:
            self._ledger.states[worker] = self._next_states.pop(worker)
        self._now_s = finished_s = self._clock_s
        if isinstance(result, bytes):
            loss, compute_s = _REPLY.unpack_from(result)
            value: Vector = np.frombuffer(result, np.float32, offset=_REPLY.size)
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

    def _packed(self, vector: Vector) -> tuple[bytes, Any]:
        """Return the vector, padded, as bytes if it is small, else in the object store."""
        padded = np.concatenate([vector, self._padding]) if len(self._padding) else vector
        return (padded.tobytes(), None) if padded.nbytes <= _INLINE_BYTES else (b"", ray.put(padded))

    def _send(self, worker: int) -> None:
        flight, actor = self._ledger.flights[worker], self._actors[worker]
        if flight.task.state_rows and self._objective.num_weights:
            ref, self._next_states[worker] = actor.run.options(num_returns=2).remote(
                flight.request, flight.large, self._ledger.states.get(worker)
            )
        elif flight.large is not None:
            ref = actor.run.remote(flight.request, flight.large)
        else:
            ref = actor.run.remote(flight.request)
        self._refs[ref] = worker

    def _spawn(self, worker: int, delay_s: float) -> Any:
        gpus = self._cfg.ray.gpus_per_worker if self.device == "cuda" else 0
        # No whole CPUs are asked for: more workers than cores is normal here, and asking would wait forever.
        # On a cluster of several machines, workers are spread over those that offer CPUs: the head need not.
        private = self._connection.private
        return (
            ray.remote(concurrency_groups={"control": 1})(Worker)  # type: ignore[call-overload]
            .options(
                num_cpus=0 if private else _SLIVER,
                num_gpus=gpus,
                scheduling_strategy="DEFAULT" if private else "SPREAD",
                enable_task_events=False,
            )
            .remote(
                worker,
                self._shards[worker],
                self._objective,
                self._times,
                self.device,
                self._padding.nbytes,
                delay_s,
            )
        )

    def _start_workers(self, shards: Sequence[Shard]) -> list[int]:
        """Start all workers, wait until every one is ready, and return their process ids.

        A thread does it, because no call of Ray may prolong the wait: on an overloaded machine each of them
        may take far longer than its own time-out.
        """
        until_s = time.monotonic() + self._cfg.ray.start_timeout_s
        self._await_room(until_s)
        answer: SimpleQueue[list[int] | BaseException] = SimpleQueue()
        given_up = threading.Event()

        def start() -> None:
            try:
                refs = []
                for worker, shard in enumerate(shards):
                    if given_up.is_set():
                        return
                    self._shards.append(ray.put(shard.alone()))
                    self._actors.append(self._spawn(worker, 0.0))
                    refs.append(self._actors[-1].ready.remote())
                waiting = refs
                while waiting and not given_up.is_set():
                    ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
                    ray.get(ready)  # raises the error of a worker that died
                    self._num_ready += len(ready)
                answer.put(ray.get(refs))
            except BaseException as error:  # the other thread raises it
                answer.put(error)

        threading.Thread(target=start, daemon=True).start()
        try:
            found = answer.get(timeout=max(0.0, until_s - time.monotonic()))
        except Empty:
            lacking = f"{len(shards) - self._num_ready} of {len(shards)} workers"
            raise ClusterError(self._lacking(lacking)) from None
        finally:
            given_up.set()
        if isinstance(found, RayActorError):
            raise ClusterError(
                f"a worker died while it started: {_one_line(found)}; look for the reason in its "
                "log, or lower --num-workers if memory ran out"
            ) from found
        if isinstance(found, BaseException):
            raise found
        return found

    def _await_room(self, until_s: float) -> None:
        """Wait until the cluster that the environment names, which may still grow, has enough memory."""
        if self._connection.private:  # this machine's was looked at before anything started
            return
        while True:
            resources = _resources()
            # Ray counts apart what it keeps for objects, which is taken only as objects come.
            memory = resources.get("memory", 0.0) + resources.get("object_store_memory", 0.0)
            lacking = shortage(self._cfg, memory, "the cluster has")
            if lacking is None:
                return
            if time.monotonic() > until_s:
                raise ClusterError(lacking)
            time.sleep(0.1)

    def _restart(self, worker: int) -> None:
        """Start a lost worker again, later each time, and send it its task again."""
        self.restarts[worker] += 1
        count, most = self.restarts[worker], self._cfg.fault.max_restarts
        if count > most:
            raise ClusterError(
                f"worker {worker} died {count} times, more than --max-restarts {most}; "
                "look for the reason in its log, or allow more"
            )
        # The new actor itself waits, so that the driver goes on serving the others.
        delay_s = 0.0 if count == 1 else min(30.0, 0.5 * 2.0 ** (count - 2))
        self._actors[worker] = self._spawn(worker, delay_s)
        until_s = self._clock_s + delay_s + self._cfg.ray.start_timeout_s
        self._returning[worker] = (self._actors[worker].ready.remote(), until_s)
        self._send(worker)

    def _check_returning(self) -> None:
        for worker, (ready, until_s) in list(self._returning.items()):
            if ray.wait([ready], timeout=0)[0]:
                del self._returning[worker]
            elif self._clock_s > until_s:
                raise ClusterError(self._lacking(f"worker {worker}, which died,"))

    def _choose_device(self) -> str:
        wanted = self._cfg.ray.device
        gpus, share = _resources().get("GPU", 0.0), self._cfg.ray.gpus_per_worker
        # Shares of different GPUs do not add up to one: .6 of a GPU fits once on each.
        room = int(gpus) * int(1 / share + 1e-9) if share < 1 else int(gpus / share)
        if wanted == "auto":
            return "cuda" if room >= len(self.workers) else "cpu"
        if wanted == "cuda" and room < len(self.workers) and self._connection.private:  # no GPU will come
            raise ValueError(
                f"--device cuda: {len(self.workers)} workers x {self._cfg.ray.gpus_per_worker:g} GPU are "
                f"asked for and this machine has {gpus:g}; use --device cpu or a smaller --gpus-per-worker"
            )
        return wanted

    def _lacking(self, who: str) -> str:
        gpus = self._cfg.ray.gpus_per_worker if self.device == "cuda" else 0
        have = ", ".join(
            f"{name} {amount:g}" for name, amount in sorted(_resources().items()) if name in ("CPU", "GPU")
        )
        return (
            f"{who} could not be started within --start-timeout-s {self._cfg.ray.start_timeout_s:g}: asked "
            f"for {gpus:g} GPU and 0 CPU each, the cluster has {have or 'nothing'} in all; free some, "
            f"lower --num-workers{' or --gpus-per-worker' * bool(gpus)}, or wait longer"
        )


class Connection(NamedTuple):
    """How this process is connected to Ray: whether since just now, and whether the cluster is private."""

    made_here: bool
    private: bool

    def close(self) -> None:
        """Leave the cluster, and end it if it is private."""
        if self.made_here:
            with awaited(own_processes() if self.private else ()):
                ray.shutdown()


_started: set[str] = set()  # addresses of the private clusters of this process


def connect(timeout_s: float = 60.0) -> Connection:
    """Connect to the cluster that the environment names, or start a private one.

    Raises ClusterError if nothing answers at RAY_ADDRESS within `timeout_s` seconds.
    """
    if ray.is_initialized():  # maybe by a call before: the runs of an experiment share one cluster
        return Connection(made_here=False, private=is_private())
    address = os.environ.get("RAY_ADDRESS")
    if _is_named():
        if address and address not in ("auto", "local"):
            _knock(address, timeout_s)
        try:
            _init()
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ClusterError(
                f"RAY_ADDRESS={address}: {_one_line(error)}; correct it or unset it"
            ) from error
        return Connection(made_here=True, private=address == "local")
    # A bare ray.init() would attach to any cluster alive on this machine.
    try:
        _init(address="local", include_dashboard=False)
    except (OSError, RuntimeError) as error:
        raise ClusterError(
            f"Ray could not be started on this machine ({_one_line(error)}); "
            "see /tmp/ray/session_latest/logs, or simulate with --engine sim"
        ) from error
    _started.add(ray.get_runtime_context().gcs_address)
    return Connection(made_here=True, private=True)


def is_private() -> bool:
    """Whether this process is, or would be, connected to a cluster that runs on this machine for it alone."""
    if ray.is_initialized():
        return ray.get_runtime_context().gcs_address in _started
    return not _is_named() or os.environ.get("RAY_ADDRESS") == "local"


def _is_named() -> bool:
    return bool(os.environ.get("RAY_ADDRESS")) or "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def _init(**options: Any) -> None:
    """Call ray.init without its noise and its SIGTERM handler, which would leave processes behind."""
    set_handler = ray_utils.set_sigterm_handler
    ray_utils.set_sigterm_handler = lambda handler: None
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    finally:
        ray_utils.set_sigterm_handler = set_handler


def _knock(address: str, timeout_s: float) -> None:
    """See that something listens at HOST:PORT: ray.init would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2.0).close()
            return
        except (OSError, ValueError, OverflowError) as error:
            if time.monotonic() > until_s or not isinstance(error, OSError):
                raise ClusterError(
                    f"RAY_ADDRESS={address}: no Ray cluster answers there within --start-timeout-s "
                    f"{timeout_s:g} ({error}); start it, or unset RAY_ADDRESS for a private one"
                ) from None
            time.sleep(0.5)


def _resources() -> dict[str, float]:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return resources


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
