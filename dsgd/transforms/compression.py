"""The exchange with `--compress` and `--compress-down`: results, and weights, travel as a codec's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dsgd.core.cluster_state import ClusterState
from dsgd.core.protocol import Done, Engine
from dsgd.core.rules import Average, Chain, Rule
from dsgd.core.tasks import Task
from dsgd.core.weights import Changes, Vector, Weights, is_left_out
from dsgd.transforms.codecs import Bytes, Codec, broadcast_draws, heard
from dsgd.transforms.compressed import Compressed, CompressedGradient, Compression
from dsgd.transforms.wrapped_engine import WrappedEngine


class HeardWeights:
    """One version of the weights, and how the next ones are made of it.

    It is heard once, though each worker of the process is sent it. seed: of the codec's draws.
    """

    def __init__(self, codec: Codec, seed: int, num_weights: int) -> None:
        self._codec, self._seed, self._num_weights = codec, seed, num_weights
        self._version, self._vector = -1, np.zeros(0, np.float32)

    def begin(self, version: int, vector: Vector) -> Vector:
        """Hold this version, whose vector (D,) has come whole; return it."""
        self._version, self._vector = version, vector.copy()  # its memory is the driver's
        self._vector.setflags(write=False)
        return self._vector

    def hear(self, version: int, messages: Bytes, count: int) -> Vector:
        """Return the vector (D,) of this version, having heard the last `count` messages, as far as new."""
        size = self._codec.num_bytes(self._num_weights)
        assert version - count <= self._version <= version, "the driver knows what this process has"
        for number in range(self._version - version + count, count):
            message = messages[number * size : (number + 1) * size]
            self._version += 1
            self._vector = heard(self._codec, self._seed, self._vector, message, self._version)
        return self._vector


class CompressedResults(WrappedEngine):
    """Has every task's result encoded by its worker, and makes of what is decoded what the task returned.

    With Ef21 the server keeps a running sum for each worker. It equals the worker's own state, from which
    `restore` makes it again.
    """

    def __init__(self, inner: Engine, how: Compression, seed: int, sizes: tuple[int, ...] = ()) -> None:
        super().__init__(inner)
        self._how, self._seed, self._sizes = how, seed, sizes
        self._sent: dict[int, Compressed] = {}  # by worker in flight
        self._estimates: dict[int, Vector] = {}  # (D,) by worker

    def start(self, worker: int, task: Task, w: Weights) -> None:
        compressed = Compressed(task=task, how=self._how.at(self.inner.clocks[worker]), seed=self._seed)
        if self._sizes and not compressed.relative:
            compressed = CompressedGradient(**vars(compressed), sizes=self._sizes)
        self._sent[worker] = compressed
        self.inner.start(worker, compressed, w)

    def start_again(self, worker: int, task: Task, w: Weights) -> None:
        assert isinstance(task, Compressed)
        self._sent[worker] = task
        super().start_again(worker, task, w)

    def next_done(self) -> Done | None:
        done = self.inner.next_done()
        if done is None:
            return None
        task = self._sent[done.worker]
        if not task.how.memory.estimates and not task.relative:
            return done  # the value is not looked at: it may be in other processes
        value = done.value
        if task.how.memory.estimates:
            new, value = value, self._estimates.get(done.worker, np.float32(0)) + value
            self._estimates[done.worker] = value
            if isinstance(task, CompressedGradient):
                value = np.where(is_left_out(new), new, value)
        if task.relative:
            part, whole = task.part(len(value)), np.zeros_like(value)
            np.add(done.origin.vector[part], value[part], out=whole[part])
            value = whole
        value.setflags(write=False)
        return done._replace(value=value)

    def restore(self, state: ClusterState) -> None:
        self._sent = {f.worker: f.task for f in state.flights if isinstance(f.task, Compressed)}
        self._estimates = {}
        memory = self._how.memory
        if memory.estimates:
            below = memory.rows + self._how.codec.memory_rows
            self._estimates = {worker: np.array(rows[-below]) for worker, rows in state.states.items()}
        self.inner.restore(state)


class CompressedWeights(WrappedEngine):
    """Sends what is new in the weights: all workers, and the server, hold one vector h, and a task reads it.

        h <- h + C(w - h)      at each version w that is read; at first, h is w

    So the error is w - h, and what was not sent is sent later. Gruntkowska, Tyurin and Richtarik 2023 (arXiv
    2209.15218), EF21-P. A worker that has missed versions gets them too, or all of h, whichever is less: the
    engine knows what its process has (`Changes`).
    """

    def __init__(self, inner: Engine, codec: Codec, seed: int) -> None:
        super().__init__(inner)
        self._codec, self._seed = codec, seed
        self._held: Weights | None = None  # of the version that was read last; slots: the codec's memory
        self._messages: tuple[Bytes, ...] = ()  # the last ones, the newest last

    def start(self, worker: int, task: Task, w: Weights) -> None:
        if self._held is None:
            self._held = Weights(w.vector, w.version)
        elif w.version != self._held.version:
            self._held = self._moved(self._held, w)
        changes = Changes(self._codec.num_bytes(len(w.vector)), self._messages)
        self.inner.start(worker, task, Weights(self._held.vector, w.version, changes=changes))

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        if isinstance(rule, Chain) and isinstance(rule.last, Average):
            # They began at h: how far they moved counts from w, or what was not sent, w - h, would be lost.
            dones = [d._replace(value=d.value + (w.vector - d.origin.vector), origin=w) for d in dones]
        return self.inner.combine(rule, w, dones)

    def _moved(self, held: Weights, w: Weights) -> Weights:
        """Return what the workers hold once they have heard of `w`."""
        codec, draws = self._codec, broadcast_draws(self._seed, w.version)
        memory = np.zeros((codec.memory_rows, len(w.vector)), np.float32)
        for row, kept in zip(memory, held.slots.values(), strict=False):
            row[:] = kept
        with np.errstate(invalid="ignore", over="ignore"):  # a run that diverges stops by its loss
            message = codec.encode(w.vector - held.vector, draws, memory)
        vector = heard(codec, self._seed, held.vector, message, w.version)
        most = (4 * len(vector) - 1) // len(message)
        before = self._messages if w.version == held.version + 1 else ()
        self._messages = (*before, message)[-most:] if most else ()
        return Weights(vector, w.version, {f"memory_{n}": row for n, row in enumerate(memory)})

    def state(self) -> ClusterState:
        return replace(self.inner.state(), held=self._held)

    def restore(self, state: ClusterState) -> None:
        self._held, self._messages = state.held, ()
        self.inner.restore(state)
