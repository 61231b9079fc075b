"""The Ray engine in virtual time: RayCluster as it is, with its actors, Ray and the clock replaced.

Only what has no decisions in it is a stand-in: an actor that computes tasks one after the other, ends, stands
still and is started again; the wire; the clock. All else is the product's code: RayCluster, SentTasks,
RayFaults, Timers, HeldBack, Hosts. So a script of events gives the same answer each time, in no time.
"""

from __future__ import annotations

import heapq
import math
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from copy import copy
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from dsgd.engines.configured_network import compute_times
from dsgd.engines.ray.driver.cluster import RayCluster

# isort: split
from ray.exceptions import RayActorError

from dsgd.config import TrainConfig
from dsgd.core.model import Workload
from dsgd.core.timing import ComputeTimes
from dsgd.core.weights import Vector
from dsgd.data import make_workload
from dsgd.engines.ray.driver import cluster as engine
from dsgd.engines.ray.driver import faults as faults
from dsgd.engines.ray.driver.host_process import HostProcess
from dsgd.engines.ray.driver.sent_tasks import SentTasks
from dsgd.engines.ray.transport.messages import ALONE, REPLY, REQUEST
from dsgd.engines.ray.worker.group import Ranks
from dsgd.engines.sim.sim_hosts import QUESTION, Copy, SimHost
from dsgd.engines.task_values import compute_alone
from dsgd.transforms.codecs import Bytes
from dsgd.transforms.compressed import to_send
from dsgd.transforms.compression import HeardWeights

_DRIVER = "driver"


class Clock:
    """Virtual time, and what happens in it. It stands in for the module `time`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._serial = 0
        self._future: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._future, (at_s, self._serial, action))

    def receive(self, timeout_s: float) -> None:
        """Run the next action, if it is due within `timeout_s`."""
        until_s = self.now_s + timeout_s
        if self._future and self._future[0][0] <= until_s:
            at_s, _, action = heapq.heappop(self._future)
            self.now_s = max(self.now_s, at_s)
            action()
        else:
            self.now_s = until_s

    def perf_counter(self) -> float:
        return self.now_s

    monotonic = perf_counter

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Wire:
    """Stands in for `Bell`: whoever waits for news lets virtual time pass."""

    def __init__(self, clock: Clock) -> None:
        self.receive = clock.receive

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class Ref:
    """Stands in for what Ray returns of a call."""

    def __init__(self) -> None:
        self._future: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self._future

    def done(self, value: Any) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def lost(self) -> None:
        if not self._future.done():
            self._future.set_exception(RayActorError())


class Actor:
    """Stands in for the actor `Host`: a queue of tasks (`SimHost`), at the virtual clock."""

    node: str
    late_s = 0.0
    """How long the call takes that ends it."""

    def __init__(
        self,
        clock: Clock,
        host: int,
        pid: int,
        times: ComputeTimes,
        workload: Workload,
        ready_s: float,
        heard: HeardWeights | None,
    ) -> None:
        self._clock, self.host, self.pid, self._times, self._workload = clock, host, pid, times, workload
        self.sim, self._serial, self._next, self.dead = SimHost(), 0, 0, False
        self._heard = heard
        self._asked: dict[Copy, tuple[Ref, Callable[[Copy], Any]]] = {}
        self.ready_ref, self.noticed_ref = Ref(), Ref()
        self._refs: list[Ref] = [self.ready_ref, self.noticed_ref]
        self._ready_s = ready_s
        clock.at(ready_s, self._is_ready)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        call = getattr(type(self), f"do_{name}")

        def remote(*arguments: Any) -> Any:
            return call(self, *arguments)

        return SimpleNamespace(
            remote=remote, options=lambda **_: SimpleNamespace(remote=lambda *a: call(self, *a, two=True))
        )

    def _is_ready(self) -> None:
        if not self.dead:
            self.ready_ref.done(Ranks((self.pid,), (self.node,)))

    def _expect(self) -> None:
        self._next += 1
        number, finish_s = self._next, self.sim.finish_s
        if finish_s is not None and not self.dead:
            self._clock.at(finish_s, lambda: self._finish(number))

    def _finish(self, number: int) -> None:
        if number == self._next and not self.dead:
            copy = self.sim.finish(self._clock.now_s)
            ref, answer = self._asked.pop(copy)
            self._expect()
            ref.done(answer(copy))

    def _add(self, worker: int, ticket: int, seconds: float, answer: Callable[[Copy], Any]) -> Ref:
        self._serial += 1
        ref = Ref()
        copy = Copy(
            number=self._serial,
            worker=worker,
            serial=ticket,
            host=self.host,
            arrived_s=max(self._clock.now_s, self._ready_s),
            left_s=seconds,
        )
        self._asked[copy] = ref, answer
        self._refs.append(ref)
        if self.dead:
            ref.lost()
            return ref
        self.sim.add(copy)
        if self.sim.queue[0] is copy:
            self._expect()
        return ref

    def _weights(self, version: int, come: int, came: Bytes) -> Vector:
        if come >= 0:
            assert self._heard
            return self._heard.hear(version, came, come)
        vector: Vector = came[: 4 * self._workload.objective.num_weights].view(np.float32)
        if come == ALONE:
            return vector
        assert self._heard
        return self._heard.begin(version, vector)

    # What the driver calls.

    def do_run(
        self, request: bytes, large: Any = None, state: Any = None, *kept: Any, two: bool = False
    ) -> Any:
        worker, ticket, step, length, slower, _, version, come = REQUEST.unpack_from(request)
        task = to_send(pickle.loads(request[REQUEST.size : REQUEST.size + length]))
        objective = self._workload.objective
        came = np.frombuffer(request, np.uint8, offset=REQUEST.size + length)
        vector = self._weights(version, come, came)
        left = Ref()

        def answer(copy: Copy) -> bytes:
            loss, value = math.nan, vector
            if objective.num_weights:
                before = state.future().result() if isinstance(state, Ref) else state
                shard = self._workload.shards[worker].alone()
                shard = shard.on_device([shard], "cpu")[0]
                loss, value, kept = compute_alone(task, objective, shard, step, vector, before, "cpu")
                left.done(kept.cpu().numpy() if task.state_rows else None)
            return REPLY.pack(loss, copy.computed_s) + bytes(value.tobytes())

        ref = self._add(worker, ticket, self._times.total(worker, step, task.batches) * slower, answer)
        return (ref, left) if two else ref

    def do_ready(self, *_: Any) -> Ref:
        return self._add(QUESTION, 0, 0.0, lambda copy: None)

    def do_stop(self, worker: int, ticket: int) -> None:
        for one in list(self.sim.queue):
            if one.worker == worker and one.serial <= ticket:
                first = self.sim.queue[0] is one
                self.sim.remove(one, self._clock.now_s)
                del self._asked[one]
                if first:
                    self._expect()

    def do_stand_still(self, seconds: float) -> None:
        self.sim.pause(self._clock.now_s, self._clock.now_s + seconds)
        self._expect()

    def do_end_process(self) -> None:
        # It ends itself: while it starts it does not hear of that.
        self._clock.at(max(self._clock.now_s + self.late_s, self._ready_s), self.die)

    def do_carry(self, *_: Any) -> None:
        pass

    def die(self) -> None:
        if not self.dead:
            self.dead = True
            for ref in self._refs:
                ref.lost()


class Processes:
    """Stands in for `HostProcesses`: a new process can compute --restart-s after it is started."""

    output = SimpleNamespace(memory_bytes={}, level=0)
    logs = None
    first = 0
    """How many were there when the run began: those can compute at once."""

    def __init__(self, cfg: TrainConfig, workload: Workload, clock: Clock) -> None:
        self._cfg, self._workload, self.clock = cfg, workload, clock
        self._times = compute_times(cfg, workload.objective.num_weights)
        self.started: list[HostProcess] = []
        letters = [chr(ord("a") + n) for n in range(cfg.fault.nodes)]
        self.nodes = SimpleNamespace(
            lives=lambda host: True, named=lambda: dict(zip(letters, letters, strict=True))
        )

    def start(self, host: int, workers: Any) -> HostProcess:
        number = len(self.started)
        cfg, codec = self._cfg, self._cfg.compression.weights
        num_weights = self._workload.objective.num_weights
        actor = Actor(
            self.clock,
            host,
            1000 + number,
            self._times,
            self._workload,
            ready_s=self.clock.now_s + (cfg.fault.restart_s if number >= self.first else 0.0),
            heard=HeardWeights(codec, cfg.seed, num_weights) if codec and num_weights else None,
        )
        actor.node = chr(ord("a") + host % self._cfg.fault.nodes)
        process = HostProcess(host, actor, number, ready=actor.ready_ref, noticed=actor.noticed_ref)
        process.carried.update(workers)
        self.started.append(process)
        return process

    def end_node(self, node: str) -> None:
        for process in self.started:
            if process.actor.node == node:
                process.actor.do_end_process()

    def carry(self, process: HostProcess, worker: int) -> None:
        process.carried.add(worker)

    def end(self, process: HostProcess) -> None:
        process.ended = True
        process.actor.die()

    def close(self) -> None:
        pass


class VirtualRay(RayCluster):
    clock: Clock
    fake: Processes

    def _sends(self, num_weights: int, padding_bytes: int) -> SentTasks:  # type: ignore[override]
        tasks = SentTasks(num_weights, padding_bytes)
        tasks._door = Wire(self.clock)  # type: ignore[assignment]
        return tasks


@contextmanager
def virtual_ray(cfg: TrainConfig, kind: type[VirtualRay] = VirtualRay) -> Iterator[VirtualRay]:
    """Open a RayCluster whose processes are stand-ins."""
    cfg = copy(cfg)  # a simulated run's options, which know no transport
    object.__setattr__(cfg, "ray", copy(cfg.ray))
    object.__setattr__(cfg.ray, "transport", "ray")
    workload, clock = make_workload(cfg), Clock()
    fake = Processes(cfg, workload, clock)

    def started(
        _cfg: Any, _connection: Any, _device: str, processes: Processes, _shards: Any, hosts: Any
    ) -> list[HostProcess]:
        processes.first = len(hosts.alive)
        found = [processes.start(host, hosts.carried(host)) for host in range(len(hosts.alive))]
        for process in found:
            process.ranks = Ranks((process.actor.pid,), (process.actor.node,))
        return found

    with ExitStack() as stack:

        def patch(module: Any, **names: Any) -> None:
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))

        context = SimpleNamespace(get_node_id=lambda: _DRIVER)
        patch(
            engine,
            time=clock,
            choose_device=lambda *_: "cpu",
            start_hosts=started,
            HostProcesses=lambda *_: fake,
            ray=SimpleNamespace(get_runtime_context=lambda: context),
        )
        kill = Actor.do_end_process
        patch(faults, time=clock, end_node=fake.end_node, kill_from_outside=lambda p: kill(p.actor))
        kind.clock, kind.fake = clock, fake
        connection: Any = SimpleNamespace(close=lambda: None, private=True)
        cluster = kind(cfg, workload, connection)
        try:
            yield cluster
        finally:
            cluster.close()
