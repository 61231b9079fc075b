"""A host: the actor that computes the tasks of any worker, and hears its driver meanwhile.

It holds the shards of the workers that it carries and nothing else: whatever a task needs comes with it. So a
host may end at any time, and any other may repeat its task.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

# isort: split
import numpy as np
import ray

from dsgd.core.model import Objective
from dsgd.core.problem import ProblemError
from dsgd.core.protocol import TraceEvents
from dsgd.core.slices import Slices
from dsgd.core.tasks import Task
from dsgd.core.timing import ComputeTimes, sleep_heterogeneity
from dsgd.core.weights import Vector
from dsgd.engines.ray.transport.arena import Bytes, rounded
from dsgd.engines.ray.transport.local_link import HostLink
from dsgd.engines.ray.transport.messages import (
    ALONE,
    ANSWER,
    ASK,
    BROKEN,
    DONE,
    FAILED,
    INLINE_BYTES,
    KEPT,
    KIND,
    ORDER,
    REPLIED,
    REPLY,
    REQUEST,
    STEP,
    STEPPED,
    STEPPING,
    STOP,
    STOPPED,
    STOPPING,
    TASKS_KEPT,
    WRONG,
    CarriedShards,
)
from dsgd.engines.ray.worker.captured_output import CapturedOutput, OutputNews
from dsgd.engines.ray.worker.follower import EndNotice
from dsgd.engines.ray.worker.group import Given, GroupPlan, RankGroup, Ranks
from dsgd.engines.task_values import compute_alone
from dsgd.engines.torch_profile import TorchProfile
from dsgd.process.endings import begin_here
from dsgd.process.environment import of_python
from dsgd.transforms.compressed import AsMessage, to_send
from dsgd.transforms.compression import HeardWeights

if TYPE_CHECKING:
    from dsgd.engines.ray.worker.reducing import Reducing

Wait: TypeAlias = Callable[[float, Callable[[], bool]], None]
"""Waits for so many seconds, or until something is true."""

_FAREWELL_S = 1.0

# Wakes a stopped process, again and again until it is heard: the stop may come late. It ends with the
# process, too: its standard input is closed then.
_WAKER = (
    "import os, select, signal, sys\n"
    "os.write(1, b'.')\n"
    "wait_s = float(sys.argv[2])\n"
    "while not select.select([0], [], [], wait_s)[0]:\n"
    "    os.write(1, b'.')\n"
    "    os.kill(int(sys.argv[1]), signal.SIGCONT)\n"
    "    wait_s = 0.05\n"
)


class Host:
    """The actor. Tasks are computed in the order in which they come, in one thread; `stop`, faults and
    notices have others.

    Tasks come by calls of `run` or, on the driver's machine, on a link, in one call of `serve` that lasts as
    long as this process.
    """

    _name = "a host"  # until it is made: Ray asks for it where the arguments cannot be unpickled, too

    def __init__(
        self,
        objective: Objective,
        times: ComputeTimes,
        device: str,
        padding_bytes: int,
        log_level: int,
        most_lines: int,
        heard: HeardWeights | None = None,
        group: GroupPlan | None = None,
        name: str = "a host",
    ) -> None:
        begin_here()
        self._name = name
        self._output = CapturedOutput(log_level, most_lines)
        self._output.install()
        self._objective, self._times, self._device = objective, times, device
        self._padding = np.zeros(padding_bytes // 4, np.float32)
        self._heard_weights = heard
        self._shards = CarriedShards(device if objective.num_weights else None)
        self._tried = False
        self._task = lru_cache(TASKS_KEPT)(_unpickled)
        self._part: tuple[bytes, Sequence[Any]] = b"", ()  # in an all-reduce: as it came, and what it is
        self._stopped: dict[int, int] = {}  # by worker: no task up to this ticket need go on
        self._stop = threading.Condition()
        self._pins: set[int] = set()  # blocks that a GPU copies from and to by itself
        self._notice = EndNotice()
        self._group: RankGroup | None = None
        self._ranks: Ranks | None = None
        if objective.num_weights:
            import torch  # noqa: F401 - before the start barrier: it takes a second
        if group is not None:
            self._group = RankGroup(group, device, objective, self._notice.pass_on, self._output.relay)

    def __repr__(self) -> str:
        return self._name  # under which Ray publishes its log

    @ray.method(concurrency_group="carry")
    def carry(self, worker: int, shard: list[Any]) -> None:
        """Hold the shard of a worker, of which this is the reference."""
        if self._group:
            self._group.carry(worker, shard)
        else:
            self._shards.carry(worker, shard)

    def ready(self, workers: Sequence[int] = ()) -> Ranks:
        """Return the process and its node, a group's with those of all ranks, once the tasks that were sent
        before are done and the shards of these workers are here.

        The first time, see that a gradient can be computed, which also gets all ready for the next.
        """
        self._ranks = self._ranks or self._formed(workers)
        for worker in workers:
            self._output.worker = worker
            if self._group:
                if not self._tried:
                    self._ranks = self._ranks._replace(trial=self._group.try_out(worker))
            else:
                shard = self._shards.of(worker)
                if not self._tried and self._objective.num_weights:
                    self._objective.try_out(shard)
                    self._ranks = self._ranks._replace(trial=self._objective.trial)
            self._tried = True
        return self._ranks

    def _formed(self, workers: Sequence[int]) -> Ranks:
        """Return the processes that compute here: this one, or a group, which is formed."""
        if self._group is None:
            return Ranks((os.getpid(),), (ray.get_runtime_context().get_node_id(),))
        found = self._group.form(f"worker {workers[0]}" if workers else "a spare")
        pairs = list(zip(found.pids, found.node_ids, strict=True))
        self._output.followers = [pid for pid, node_id in pairs[1:] if node_id == pairs[0][1]]
        return found

    def run(
        self,
        request: bytes,
        large: Vector | None = None,
        state: Vector | None = None,
        version: int | None = None,
        keep: bool = False,
    ) -> Any:
        """Compute a task; return the loss, the seconds it took, and the value.

        request: its header, the pickled task and, unless it comes as `large`, the vector of weights. A task
        that is stopped ends at once if it sleeps; what it returns is not read.
        state: (rows, D), where a task before this left one. A task that keeps state returns it as well.
        version: of the weights, if this process has them. keep: whether the value stays here (all-reduce).
        """
        began_s = time.perf_counter()
        worker, ticket, step, length, slower, left_by, read, come = REQUEST.unpack_from(request)
        self._output.worker = worker
        end = REQUEST.size + length
        pickled = request[REQUEST.size : end]
        task = self._task(pickled)
        keeps_state = task.state_rows and self._objective.num_weights
        came = np.frombuffer(request, np.uint8, offset=end) if large is None else large.view(np.uint8)
        vector = self._read(read, come, came)
        if self._is_stopped(worker, ticket):
            return (b"", b"") if keeps_state else b""  # it is not read
        given = Given(task, pickled, worker, step, ticket, state, left_by, version=version, keep=keep)
        loss, value, kept = self._alone(given, vector)
        self._sleep(worker, ticket, step, task, began_s, slower, self._wait)
        if len(self._padding):
            value = np.concatenate([value.view(np.uint8), self._padding.view(np.uint8)])
        compute_s = time.perf_counter() - began_s
        small = value.nbytes <= INLINE_BYTES
        reply = REPLY.pack(loss, compute_s) + value.tobytes() if small else (loss, compute_s, value)
        if keeps_state:
            return reply, kept
        return reply

    def run_sliced(self, request: bytes, state: Vector | None, parts: int, *slices: Vector | Bytes) -> Any:
        """Compute a task on weights that come in slices, or as messages; return, packed, the loss and the
        seconds it took, then the value in so many slices, or a codec's bytes as they are, and, if the task
        keeps it, the state (rows, D).
        """
        began_s = time.perf_counter()
        worker, ticket, step, _, slower, left_by, read, come = REQUEST.unpack_from(request)
        self._output.worker = worker
        pickled = request[REQUEST.size :]
        task = self._task(pickled)
        keeps_state = bool(task.state_rows and self._objective.num_weights)
        vector = self._read(read, come, np.concatenate(slices).view(np.uint8))
        if self._is_stopped(worker, ticket):
            count = 1 if isinstance(task, AsMessage) else parts
            return (b"",) * (1 + count + keeps_state)  # it is not read
        given = Given(task, pickled, worker, step, ticket, state, left_by)
        loss, value, kept = self._alone(given, vector)
        self._sleep(worker, ticket, step, task, began_s, slower, self._wait)
        reply = REPLY.pack(loss, time.perf_counter() - began_s)
        found = [value] if isinstance(task, AsMessage) else Slices(len(value), parts).of(value)
        return reply, *found, *([kept] if keeps_state else ())

    def _read(self, version: int, come: int, came: Bytes) -> Vector:
        """Return the weights (D,) of a task: those that came with it, or what was heard; of one that is
        stopped, too, as the driver counts on it that what it had sent is held.
        """
        # Not aligned to four bytes where the task's length is not: numpy copes, and torch gets a copy.
        if come >= 0:
            assert self._heard_weights
            return self._heard_weights.hear(version, came, come)
        vector = came[: 4 * self._objective.num_weights].view(np.float32)
        if come == ALONE:
            return vector
        assert self._heard_weights
        return self._heard_weights.begin(version, vector)

    def _alone(self, given: Given, vector: Vector, place: Bytes | None = None) -> Any:
        """Return the loss, the value (D,) and the state (rows, D), None of a task that leaves none; no loss
        where there are no weights, and an empty value where it stays here.

        place: the bytes where the value is written.
        """
        if not self._objective.num_weights:
            return math.nan, vector, None
        task, worker, state = given.task, given.worker, given.state
        if self._group:
            return self._group.compute(given, None if given.version is not None else vector, place)
        if given.version is not None:
            vector = self._reducing.weights(given.version).vector
        if given.keep:
            place = self._reducing.place(worker, self._objective.num_weights).view(np.uint8)
        shard = self._shards.of(worker)
        found = compute_alone(task, self._objective, shard, given.step, vector, state, self._device, place)
        kept = found[2].cpu().numpy() if task.state_rows else None
        if given.left is not None:
            given.left[:] = kept
        return found[0], found[1][:0] if given.keep else found[1], kept

    def serve(self, address: bytes, token: bytes, number: int) -> None:
        """Compute the tasks that come on a link to the driver, as long as both processes live.

        number: of the link. Raises OSError if no driver answers at the address.
        """
        link = HostLink(address, token, number, self._heard)
        try:
            while message := link.next():
                self._answer(link, message)
        except BaseException:
            traceback.print_exc()
        finally:  # nobody is left who would read an answer; if Ray does not end this process, it does so
            time.sleep(_FAREWELL_S)
            os._exit(0)

    def _heard(self, message: memoryview) -> bool:
        """Look whether a message stops tasks; it is heard even if other tasks come before."""
        if KIND.unpack_from(message)[0] != STOP:
            return False
        _, worker, ticket = STOPPING.unpack(message)
        self._stop_up_to(worker, ticket)
        return True

    def _answer(self, link: HostLink, message: bytes) -> None:
        kind = KIND.unpack_from(message)[0]
        if kind == ASK:
            link.send(ANSWER.pack(REPLIED, 0, 0.0, 0.0))
            return
        if kind == STEP:
            _, version = STEPPING.unpack_from(message)
            distances, why = self.step(version, message[STEPPING.size :])
            head = ANSWER.pack(BROKEN if why else STEPPED, 0, 0.0, 0.0)
            link.send(head, _text(why) or np.array(distances, np.float64).tobytes())
            return
        ticket = ORDER.unpack_from(message)[2]
        try:
            link.send(*self._computed(link, message))
        except ProblemError as error:
            link.send(ANSWER.pack(WRONG, ticket, 0.0, 0.0), _text(str(error)))
        except Exception as error:  # as Ray does, whatever a task raises is the driver's to report
            link.send(ANSWER.pack(FAILED, ticket, 0.0, 0.0), _text(repr(error)))

    def _computed(self, link: HostLink, message: bytes) -> list[bytes]:
        """Return the answer to a task that came on the link."""
        began_s = time.perf_counter()
        _, worker, ticket, step, length, slower, version, come, left_by, *blocks = ORDER.unpack_from(message)
        self._output.worker = worker
        task_at, weights_at, weights_bytes, value_at, value_bytes, state_at, left_at = blocks
        show, num_weights, end = link.arena.show, self._objective.num_weights, ORDER.size
        if task_at < 0:
            end += length
            pickled = message[ORDER.size : end]
        else:
            pickled = show(task_at, length).tobytes()
        if weights_at == KEPT:
            vector = np.zeros(0, np.float32)  # the version says which
        elif weights_at < 0:
            vector = self._read(version, come, np.frombuffer(message, np.uint8, offset=end))
        else:
            vector = self._read(version, come, self._pinned(show(weights_at, weights_bytes)))
        if self._is_stopped(worker, ticket):
            return [ANSWER.pack(STOPPED, ticket, 0.0, 0.0)]
        task = self._task(pickled)
        whole = None if value_at < 0 else show(value_at, value_bytes)
        place = None if whole is None else self._pinned(whole[: value_bytes - self._padding.nbytes])
        loss, value = math.nan, vector
        if num_weights:
            rows = task.state_rows
            size = 4 * rows * num_weights
            state, left = (
                None if at < 0 else show(at, size).view(np.float32).reshape(rows, num_weights)
                for at in (state_at, left_at)
            )
            held_as = version if weights_at == KEPT else None
            given = Given(
                task, pickled, worker, step, ticket, state, left_by, left, held_as, value_at == KEPT
            )
            loss, value, _ = self._alone(given, vector, place)
        if whole is not None:
            whole[value_bytes - self._padding.nbytes :] = 0
        self._sleep(worker, ticket, step, task, began_s, slower, link.wait)
        head = ANSWER.pack(DONE, ticket, loss, time.perf_counter() - began_s)
        if place is not None or value_at == KEPT:
            return [head]
        return [head, value.tobytes(), self._padding.tobytes()]

    def _pinned(self, block: Bytes) -> Bytes:
        """Return a block; where a GPU computes, its memory is pinned, once, so that copies need no other."""
        if self._device != "cpu" and (at := block.__array_interface__["data"][0]) not in self._pins:
            import torch

            self._pins.add(at)
            torch.cuda.cudart().cudaHostRegister(at, rounded(block.nbytes), 0)  # type: ignore[no-untyped-call]
        return block

    def _sleep(
        self, worker: int, ticket: int, step: int, task: Task, began_s: float, slower: float, wait: Wait
    ) -> None:
        """Sleep as a straggler does, until the task is stopped."""
        computed_s = time.perf_counter() - began_s
        sleep_heterogeneity(
            self._times,
            worker,
            step,
            task.batches,
            computed_s,
            lambda seconds: wait(seconds, lambda: self._is_stopped(worker, ticket)),
            slower,
        )

    def _is_stopped(self, worker: int, ticket: int) -> bool:
        return ticket <= self._stopped.get(worker, -1)

    def _wait(self, seconds: float, ended: Callable[[], bool]) -> None:
        with self._stop:
            self._stop.wait_for(ended, seconds)

    # --- all-reduce -----------------------------------------------------------------------------------------

    @cached_property
    def _reducing(self) -> Reducing:
        from dsgd.engines.ray.worker.reducing import Reducing  # it needs torch

        return Reducing()

    def step(self, version: int, part: bytes) -> tuple[Sequence[float], str]:
        """Take part in an all-reduce, `Reducing.step`; return the distances, and no text, or why the group is
        broken. part: pickled, what it is given besides the version.
        """
        from dsgd.engines.ray.worker.collective import GroupBroken  # it needs torch

        if self._group:
            return self._group.step(version, part)
        if self._part[0] != part:
            self._part = part, pickle.loads(part)  # noqa: S301 - of the driver, as in all that follows
        try:
            return self._reducing.step(version, *self._part[1]), ""
        except GroupBroken as error:
            return (), str(error) or "it is broken"

    @ray.method(concurrency_group="weights")
    def hold(self, version: int, vector: Vector, slots: Mapping[str, Any]) -> None:
        """Begin with this version of the weights: vector (D,), and references to the rule's slots."""
        (self._group or self._reducing).hold(version, vector, {n: ray.get(slot) for n, slot in slots.items()})

    @ray.method(concurrency_group="weights")
    def held(self, version: int) -> Vector:
        """Return the vector (D,) of a version that is held."""
        return self._group.held(version) if self._group else self._reducing.weights(version).vector

    @ray.method(concurrency_group="weights")
    def held_slots(self, version: int) -> Mapping[str, Vector]:
        """Return its slots, (D,) each."""
        return self._group.held_slots(version) if self._group else self._reducing.weights(version).slots

    @ray.method(concurrency_group="weights")
    def value(self, worker: int) -> Vector:
        """Return the value (D,) of a worker's last task."""
        return (self._group or self._reducing).value(worker)

    @ray.method(concurrency_group="control")
    def leave(self, epoch: int) -> None:
        """Leave the group of this epoch, whatever `step` waits for."""
        (self._group or self._reducing).leave(epoch)

    # In their own concurrency groups, and so their own threads: they must be heard while a task runs.

    @ray.method(concurrency_group="control")
    def stop(self, worker: int, ticket: int) -> None:
        """Stop the task of a worker with this ticket, whether it runs or has not begun."""
        self._stop_up_to(worker, ticket)

    def _stop_up_to(self, worker: int, ticket: int) -> None:
        with self._stop:
            self._stopped[worker] = max(self._stopped.get(worker, -1), ticket)
            self._stop.notify_all()

    @ray.method(concurrency_group="control")
    def missing_ranks(self) -> Sequence[int]:
        """Return the ranks that have not joined the group that this process leads."""
        return self._group.missing() if self._group else ()

    @ray.method(concurrency_group="control")
    def gpus(self) -> str:
        """Return the GPUs that this process may use, as the environment names them."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    @ray.method(concurrency_group="control")
    def end_process(self) -> None:
        """End as a process does that is killed: nothing is flushed or sent."""
        os.kill(os.getpid(), signal.SIGKILL)

    @ray.method(concurrency_group="control")
    def stand_still(self, seconds: float) -> None:
        """Stop this process, all of its threads, for so long; return when it goes on."""
        waker = [sys.executable, "-I", "-S", "-c", _WAKER, str(os.getpid()), str(seconds)]
        with subprocess.Popen(waker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=of_python()) as child:
            assert child.stdout
            child.stdout.read(1)  # it has begun to wait
            os.kill(os.getpid(), signal.SIGSTOP)
            child.stdout.read(1)  # it has waited: this thread may run on until the stop takes effect

    @ray.method(concurrency_group="output")
    def output(self, wait_s: float) -> OutputNews:
        """Return what was printed and logged since the last call, once there is something, or after `wait_s`
        seconds.
        """
        return self._output.news(wait_s)

    @ray.method(concurrency_group="control")
    def last_output(self) -> OutputNews:
        """Return what was printed and logged since the last call, at once."""
        if self._group:
            self._group.relay_last_output()
        return self._output.news(0.0)

    @ray.method(concurrency_group="control")
    def profile(self, begin: bool) -> TraceEvents:
        """Begin to profile what torch computes here, or end it and return the events."""
        if begin:
            self._profile = TorchProfile()
            self._profile.begin()
            return []
        return self._profile.end()

    @ray.method(concurrency_group="notice")
    def notice(self) -> None:
        """Return when this process is asked to end (SIGTERM), as a spot instance is before it is taken."""
        self._notice.wait()


def _unpickled(pickled: bytes) -> Task:
    return to_send(pickle.loads(pickled))  # noqa: S301 - of the driver


def _text(text: str) -> bytes:
    return text.encode(errors="replace")[:INLINE_BYTES]
