"""Tasks on their way to processes: how they are sent, who has them, and what comes back.

To a process on the driver's own machine they go beside Ray, on a link, with large vectors in shared memory
(`local_link.py`, `arena.py`); to any other by Ray's calls: small vectors as plain `bytes` inside the call,
which Ray does not have to pickle, large ones by its object store, once a version. Whoever waits for news sees
no difference. A block that a process may still write to is kept until it answers or ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import ObjectLostError, RayTaskError

from dsgd.core.problem import ProblemError
from dsgd.core.tasks import Task, value_bytes
from dsgd.core.weights import Vector, Weights
from dsgd.engines.ray.connection.connect import ENDED
from dsgd.engines.ray.driver.host_process import HostProcess
from dsgd.engines.ray.driver.news import (
    OF_TASKS,
    Answered,
    Failed,
    Gone,
    News,
    Noticed,
    RayFlight,
    Ready,
    Replied,
    Sent,
    StateLost,
    Stepped,
    process_of,
)
from dsgd.engines.ray.driver.remote_weights import HeldWeights
from dsgd.engines.ray.transport.arena import Arena, Bytes
from dsgd.engines.ray.transport.local_link import Door, Part
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
    STOPPING,
    TASK,
    TASKS_KEPT,
    WHOLE,
    WRONG,
    SentVector,
    copied,
)
from dsgd.transforms.compressed import received


class SentTasks:
    """The tasks that processes have; under suspicion two have the same one. `wait` says what has happened.

    num_weights: D; without any, no task keeps state. padding_bytes: zeros behind each vector.
    """

    def __init__(self, num_weights: int, padding_bytes: int) -> None:
        self._num_weights, self._padding_bytes = num_weights, padding_bytes
        self._tickets = 0
        self._pickle: Any = lru_cache(TASKS_KEPT)(ray.cloudpickle.dumps)  # protocols do not say: hashable
        self._last: tuple[Vector | Bytes | None, SentVector | None] = (None, None)  # the last one
        self._by_worker: dict[int, list[Sent]] = {}  # whose answers are awaited, the first one first
        self._here: str | None = None  # the node whose processes have links
        self._arena: Arena | None = None
        self._door: Door | Bell = Bell()
        self._links: dict[int, HostProcess] = {}  # open, or to be opened
        self._in_arena = lru_cache(TASKS_KEPT)(self._block_with)
        # What Ray reports: (what it refers to, the answer to come). Its threads add, this one takes.
        self._reports: deque[tuple[Any, Any]] = deque()
        self._held: list[News] = []  # of hosts that are cut off
        self._kept_back: list[Sent] = []  # to hosts that are cut off
        self.keeps_values = False
        """Whether processes keep the values of their tasks (all-reduce)."""

    def use_links(self, here: str, processes: int) -> None:
        """Have links to the processes on this node, the driver's; call it before any process is watched.

        processes: the most that there can be. Raises OSError where the system cannot do that.
        """
        arena = Arena()
        self._here, self._arena, self._door = here, arena, Door(arena, processes)

    def close(self) -> None:
        """Close all links."""
        self._door.close()
        if self._arena:
            self._arena.close()

    # --- processes ------------------------------------------------------------------------------------------

    def watch(self, process: HostProcess) -> None:
        """Report when a new process can compute, and when it ends or is asked to."""
        self._report(process.noticed, Noticed(process))
        self._report(process.ready, Ready(process))

    def _report(self, ref: Any, about: Any) -> None:
        """Have `wait` learn of the answer to a call of Ray."""

        def add(answer: Any) -> None:
            self._reports.append((about, answer))
            self._door.wake()

        ref.future().add_done_callback(add)

    def ask(self, process: HostProcess) -> None:
        """Ask a process for a reply, which comes when its tasks are done or stopped."""
        if process.link is None:
            self._report(process.actor.ready.remote(), Replied(process))
        else:
            self._door.send(process.link, KIND.pack(ASK))

    def step(self, process: HostProcess, version: int, part: bytes) -> None:
        """Have a process take its part in an all-reduce, which makes the version after this one.

        part: pickled, what `Reducing.step` is given besides the version.
        """
        if process.link is None:
            self._report(process.actor.step.remote(version, part), Stepped(process))
        else:
            self._door.send(process.link, STEPPING.pack(STEP, version), part)

    def fresh(self) -> Vector:
        """Return a vector (D,) with any content, for weights: where it need not be copied to be sent."""
        if self._arena is None or self._padding_bytes or 4 * self._num_weights <= INLINE_BYTES:
            return np.empty(self._num_weights, np.float32)
        return self._arena.block(4 * self._num_weights).view(np.float32)

    # --- tasks ----------------------------------------------------------------------------------------------

    def flight(self, task: Task, w: Weights, started_s: float, step: int) -> RayFlight:
        """Return a task in the form in which it is sent."""
        self._tickets += 1
        return RayFlight(self._tickets, task, w, started_s, step, self._pickle(task))

    def _block_with(self, pickled: bytes) -> Bytes:
        """Return a block with a task that is too large for a message."""
        assert self._arena is not None
        block = self._arena.block(len(pickled))
        block[:] = np.frombuffer(pickled, np.uint8)
        return block

    def _sent_weights(self, sent: Sent) -> tuple[SentVector, int]:
        """Return the weights of a task as they are sent, and how they come; the last ones are kept."""
        w, come = sent.flight.w, ALONE
        vector: Vector | Bytes = w.vector
        if w.changes is not None and not sent.again:  # one that is computed again may be of an old version
            messages = w.changes.messages
            come = WHOLE if w.wire_bytes is None else len(messages)
            if come >= 0:
                vector = messages[0] if come == 1 else np.concatenate([np.zeros(0, np.uint8), *messages])
        last, sent_w = self._last
        if sent_w is None or last is not vector:
            sent_w = SentVector(vector, self._padding_bytes)
            self._last = vector, sent_w
        return sent_w, come

    def send(
        self,
        process: HostProcess,
        worker: int,
        flight: RayFlight,
        state: Any,
        slower: float = 1.0,
        *,
        again: bool = False,
        left_by: int = -1,
        cut: bool = False,
    ) -> None:
        """Send a task to a process, with the state of its worker. again: only to have its new state again.

        left_by: the ticket of the task that has left the state; a process that has it from there uses that.
        cut: its host is cut off: the task is sent once `wait` is called without it.
        """
        sent = Sent(worker, flight.ticket, process, flight, state, left_by, slower=slower, again=again)
        having = self._by_worker.get(worker)
        if having is None:
            self._by_worker[worker] = [sent]
        else:
            having.append(sent)
        process.sent[flight.ticket] = sent
        if cut:
            self._kept_back.append(sent)
        else:
            self._transmit(sent)

    def _transmit(self, sent: Sent) -> None:
        if sent.process.link is None:
            self._send_by_ray(sent)
        elif isinstance(sent.state, ray.ObjectRef):  # it is on another machine, or was left by a call of Ray
            self._report(sent.state, _Fetching(sent))
        else:
            self._send_on_link(sent)

    def _send_on_link(self, sent: Sent) -> None:
        _, task, w, _, step, pickled = sent.flight
        arena, process = self._arena, sent.process
        assert arena is not None
        assert process.link is not None
        task_at = weights_at = value_at = state_at = left_at = come = -1
        weights_bytes, version = 0, w.version
        if len(pickled) > INLINE_BYTES // 2:
            sent.block = self._in_arena(pickled)
            task_at, pickled = arena.where(sent.block), b""
        small = b""
        held_as = _held_as(w, process)
        if held_as is not None:
            weights_at, version = KEPT, held_as
        else:
            sent.weights, come = sent_w, _ = self._sent_weights(sent)
            small = sent_w.small
            if sent_w.is_large:
                weights_at, weights_bytes = sent_w.at(arena), sent_w.padded_bytes
        num_bytes = value_bytes(task, self._num_weights) + self._padding_bytes
        if self.keeps_values:
            value_at = KEPT
        elif num_bytes > INLINE_BYTES:
            sent.value = arena.block(num_bytes)
            value_at = arena.where(sent.value)
        if task.state_rows and self._num_weights:
            size = 4 * task.state_rows * self._num_weights
            if sent.state is not None:
                if not arena.holds(sent.state):
                    sent.state = copied(arena, sent.state, size)
                state_at = arena.where(sent.state)
            block = arena.block(size)
            sent.left, left_at = block.view(np.float32).reshape(task.state_rows, -1), arena.where(block)
        head = ORDER.pack(
            *(TASK, sent.worker, sent.ticket, step, len(sent.flight.pickled), sent.slower, version, come),
            sent.left_by,
            *(task_at, weights_at, weights_bytes, value_at, num_bytes, state_at, left_at),
        )
        self._door.send(process.link, head, pickled, small)

    def _send_by_ray(self, sent: Sent) -> None:
        ticket, task, w, _, step, pickled = sent.flight
        actor, large, small, come = sent.process.actor, None, b"", ALONE
        held_as = _held_as(w, sent.process)
        if held_as is None:
            sent.weights, come = sent_w, _ = self._sent_weights(sent)
            large, small = sent_w.ref(), sent_w.small
        kept = (held_as, True) if self.keeps_values else ()
        head = REQUEST.pack(
            sent.worker, ticket, step, len(pickled), sent.slower, sent.left_by, w.version, come
        )
        request = b"".join((head, pickled, small))
        if task.state_rows and self._num_weights:
            ref, sent.left = actor.run.options(num_returns=2).remote(request, large, sent.state, *kept)
        elif kept:
            ref = actor.run.remote(request, large, None, *kept)
        elif large is not None:
            ref = actor.run.remote(request, large)
        else:
            ref = actor.run.remote(request)
        self._report(ref, sent)

    def workers(self) -> set[int]:
        """Return the workers whose tasks some process has, or has answered while it is cut off."""
        return {*self._by_worker, *(news.sent.worker for news in self._held if isinstance(news, OF_TASKS))}

    def copies(self, worker: int) -> list[HostProcess]:
        """Return the processes that have the task of a worker, the first one first."""
        return [sent.process for sent in self._by_worker.get(worker, ())]

    def processes(self) -> set[HostProcess]:
        """Return the processes that have a task whose answer is awaited."""
        return {sent.process for having in self._by_worker.values() for sent in having}

    def expects(self, cut: Container[int]) -> bool:
        """Whether any answer can come; none can of hosts that are cut off."""
        if not cut:
            return bool(self._by_worker or self._held)
        held = {process_of(news) for news in self._held}
        return any(process.host not in cut for process in self.processes() | held)

    def has_answered(self, process: HostProcess) -> bool:
        """Whether an answer of a process has come in and was not yet taken."""
        if process.link is not None:
            return self._door.has_answered(process.link)
        return any(isinstance(about, Sent) and about.process is process for about, _ in list(self._reports))

    def gone(self) -> set[HostProcess]:
        """Return the processes whose end Ray has reported, and `wait` has not yet."""
        reports = [report for report in list(self._reports) if not isinstance(report[0], _Fetching)]
        return {about.process for about, answer in reports if isinstance(answer.exception(), ENDED)}

    def stop(self, worker: int) -> int:
        """Stop the task of a worker wherever it is: no answer is read. Return how many processes had it, or
        have answered while they are cut off.
        """
        kept_back = [sent for sent in self._kept_back if sent.worker == worker]
        self._kept_back = [sent for sent in self._kept_back if sent.worker != worker]
        having = self._by_worker.pop(worker, [])
        held = [h for h in self._held if isinstance(h, OF_TASKS) and h.sent.worker == worker]
        self._held = [h for h in self._held if not (isinstance(h, OF_TASKS) and h.sent.worker == worker)]
        for sent in having:
            sent.stopped = True
            if sent in kept_back:
                del sent.process.sent[sent.ticket]
            elif sent.process.link is None:
                del sent.process.sent[sent.ticket]
                sent.process.actor.stop.remote(worker, sent.ticket)
            else:
                self._door.send(sent.process.link, STOPPING.pack(STOP, worker, sent.ticket))
        return len(having) - len(kept_back) + len(held)

    def strand(self, process: HostProcess) -> list[int]:
        """Forget what a lost process had, or was to get; return the workers whose tasks it had.

        Where it has a link it may not have ended yet: its blocks are kept until the link says so.
        """
        lost = [sent for sent in process.sent.values() if not sent.stopped]
        for sent in lost:
            self._forget(sent)
        if process.link is None:
            process.sent.clear()
        held = [news for news in self._held if process_of(news) is process]
        self._held = [news for news in self._held if process_of(news) is not process]
        lost += [news.sent for news in held if isinstance(news, OF_TASKS)]
        kept_back = self._kept_back
        self._kept_back = [sent for sent in kept_back if sent.process is not process]
        return [sent.worker for sent in lost if sent not in kept_back]

    def _forget(self, sent: Sent) -> None:
        """Await its answer no longer."""
        sent.stopped = True
        having = self._by_worker[sent.worker]
        if len(having) == 1:
            del self._by_worker[sent.worker]
        else:
            having.remove(sent)

    # --- what comes back ------------------------------------------------------------------------------------

    def wait(self, timeout_s: float, cut: Container[int] = ()) -> News | None:
        """Wait until something has happened, or for so long; None is possible at any time.

        cut: hosts that are cut off: what they say is held back, and so is what was sent to them since.
        """
        for sent in [sent for sent in self._kept_back if sent.process.host not in cut]:
            self._kept_back.remove(sent)
            self._transmit(sent)
        if self._held:
            for number, held in enumerate(self._held):
                if process_of(held).host not in cut:
                    return self._held.pop(number)
        news: News | None
        if self._reports:
            news = self._reported(*self._reports.popleft())
        elif (came := self._door.receive(timeout_s)) is not None:
            news = self._received(*came)
        else:
            return None
        if cut and news is not None and process_of(news).host in cut and not isinstance(news, Noticed | Gone):
            self._held.append(news)
            return None
        return news

    def _received(self, number: int, message: memoryview | None) -> News | None:
        """Return what a message on a link means."""
        process = self._links[number]
        if message is None:
            process.link = number
            return Ready(process)
        if not message:
            del self._links[number]
            process.link = None
            process.sent = {ticket: sent for ticket, sent in process.sent.items() if not sent.stopped}
            return Gone(process)
        kind, ticket, loss, compute_s = ANSWER.unpack_from(message)
        if kind == REPLIED:
            return Replied(process)
        if kind in (STEPPED, BROKEN):
            rest = bytes(message[ANSWER.size :])
            if kind == BROKEN:
                return Stepped(process, broken=rest.decode())
            return Stepped(process, np.frombuffer(rest, np.float64).tolist())
        sent = process.sent.pop(ticket)
        if sent.stopped:
            return None
        self._forget(sent)
        if kind == DONE and self.keeps_values:
            return Answered(sent, loss, compute_s, np.empty(0, np.float32))
        if kind == DONE:
            payload = sent.value
            if payload is None:
                payload = np.frombuffer(bytes(message[ANSWER.size :]), np.uint8)
            return self._came(sent, loss, compute_s, payload)
        assert kind in (FAILED, WRONG)
        return Failed(sent, bytes(message[ANSWER.size :]).decode(), kind == WRONG)

    def _came(self, sent: Sent, loss: float, compute_s: float, payload: Bytes) -> Answered:
        """Return a finished task with the value (D,) in what the process has sent."""
        value = received(sent.flight.task, payload, self._num_weights, sent.worker, sent.flight.step)
        value.setflags(write=False)
        return Answered(sent, loss, compute_s, value)

    def _reported(self, about: Any, answer: Any) -> News | None:
        """Return what an answer of Ray means."""
        error = answer.exception()
        if isinstance(about, Sent):
            return self._answered(about, answer, error)
        if isinstance(about, _Fetching):
            return self._fetched(about.sent, answer, error)
        process: HostProcess = about.process
        if isinstance(about, _Serving):  # a link says by itself that it is open, or has ended
            if process.link is not None or process.number not in self._links:
                return None
            del self._links[process.number]
            return Gone(process) if isinstance(error, ENDED) else Ready(process)
        if isinstance(about, Stepped) and error is None:
            return Stepped(process, *answer.result())
        if error is not None:
            return Gone(process)
        if isinstance(about, Ready):
            process.ranks = answer.result()
            return None if self._serves(process) else about
        assert isinstance(about, Replied | Noticed)
        return about

    def _serves(self, process: HostProcess) -> bool:
        """Have a process that can compute open a link, if it is on the driver's machine."""
        if self._here is None or process.node_id != self._here:
            return False
        self._links[process.number] = process
        assert isinstance(self._door, Door)
        serving = process.actor.serve.remote(self._door.address, self._door.token, process.number)
        self._report(serving, _Serving(process))
        return True

    def _fetched(self, sent: Sent, answer: Any, error: BaseException | None) -> News | None:
        """Send a task for which a state has been fetched."""
        if sent.stopped:
            sent.process.sent.pop(sent.ticket, None)
            sent.process.heard.pop(sent.worker, None)  # it was not sent
        elif error is None:
            sent.state = answer.result()
            self._send_on_link(sent)
        else:
            return self._lost(sent)
        return None

    def _lost(self, sent: Sent) -> StateLost:
        del sent.process.sent[sent.ticket]
        sent.process.heard.pop(sent.worker, None)  # the process may not have seen it
        self._forget(sent)
        return StateLost(sent)

    def _answered(self, sent: Sent, answer: Any, error: BaseException | None) -> News | None:
        """Return what an answer of Ray to a task means."""
        if sent.stopped:
            return None
        if isinstance(error, ENDED):
            return Gone(sent.process)
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, ObjectLostError):
            return self._lost(sent)
        if error is not None and cause is error:
            raise error
        del sent.process.sent[sent.ticket]
        self._forget(sent)
        if cause is not None:
            by_problem = isinstance(cause, ProblemError)
            return Failed(sent, str(cause) if by_problem else repr(cause), by_problem)
        return self._computed(sent, answer.result())

    def _computed(self, sent: Sent, result: Any) -> Answered:
        """Return a finished task, whose result has come through Ray."""
        if isinstance(result, bytes):
            loss, compute_s = REPLY.unpack_from(result)
            payload: Bytes = np.frombuffer(result, np.uint8, offset=REPLY.size)
            if self.keeps_values:
                return Answered(sent, loss, compute_s, np.empty(0, np.float32))
        else:
            loss, compute_s, vector = result
            payload = vector.view(np.uint8)
        return self._came(sent, loss, compute_s, payload)


class Bell:
    """Stands in for a door where there are no links: whoever waits for news can be woken."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def wake(self) -> None:
        self._rung.set()

    def receive(self, timeout_s: float) -> None:
        self._rung.wait(timeout_s)
        self._rung.clear()

    def send(self, number: int, *parts: Part) -> None:
        raise AssertionError("there are no links")

    def has_answered(self, number: int) -> bool:
        raise AssertionError("there are no links")

    def close(self) -> None:
        """Nothing is open."""


class _Fetching(NamedTuple):
    """A state on its way to the driver, for a task that waits for it."""

    sent: Sent


class _Serving(NamedTuple):
    """The call that lasts as long as a link."""

    process: HostProcess


def _held_as(w: Weights, process: HostProcess) -> int | None:
    """Return the version whose vector a process has, if it is the one of these weights; else None."""
    return w.held_as if isinstance(w, HeldWeights) and w.held_as in process.holds else None
