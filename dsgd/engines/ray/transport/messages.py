"""How tasks and answers are written, through Ray and on a link of the driver's own machine.

A vector is inside a message, in the driver's arena, or in Ray's store. Shards come separately: a task may
overtake the one that it needs.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

import numpy as np
import ray

from dsgd.core.shards import Shard
from dsgd.core.weights import Vector
from dsgd.engines.ray.transport.arena import Arena, Bytes

INLINE_BYTES = 64_000
"""Vectors up to this size travel inside the message: below what Ray sends inside a call."""

TASKS_KEPT = 256
"""How many different tasks either end keeps as they are sent: a mode may make a new one for each update."""

REQUEST = struct.Struct("qqqqdqqq")
"""Through Ray. Worker, ticket, step, length of the pickled task, the factor by which the host is slower, the
ticket of the task that has left the state, or -1; version of the weights, how they come."""
REPLY = struct.Struct("dd")
"""Through Ray. Loss, seconds of computing."""

TASK, STOP, ASK, STEP = range(4)
"""Kinds of messages on a link to a process. ASK wants a reply once all tasks before it are done. STEP has it
take part in an all-reduce."""
KIND = struct.Struct("q")
STEPPING = struct.Struct("qq")
"""Kind, version of the weights; then, pickled, what else `Reducing.step` is given: mostly the same bytes."""
ORDER = struct.Struct("qqqqqdqqqqqqqqqq")
"""Kind, worker, ticket, step, length of the pickled task, the factor by which the host is slower, version of
the weights, how they come, the ticket of the task that has left the state, or -1; then where blocks begin, or
-1: task, weights, bytes of the weights, value, bytes of the value, state, new state. A task and weights
without a block follow, in this order.
"""
ALONE, WHOLE = -1, -2
"""How weights come: for this task alone, or whole and to be held, as the next ones are made of them; else so
many messages of --compress-down, of this version and those before it."""
KEPT = -2
"""In place of where a block begins: the process has these weights, or is to keep the value (all-reduce)."""
STOPPING = struct.Struct("qqq")
"""Kind, worker, ticket: no task of the worker up to this ticket need go on."""

DONE, STOPPED, REPLIED, FAILED, WRONG, STEPPED, BROKEN = range(7)
"""Kinds of answers. DONE: the value follows, or lies in its block. FAILED: an error's text in UTF-8 follows.
WRONG: the same, of an error in a workload, for its author. STEPPED: float64 distances follow. BROKEN:
the group is, and nothing has changed; why follows."""
ANSWER = struct.Struct("qqdd")
"""Kind, ticket, loss, seconds of computing."""


class SentVector:
    """A vector of weights, or messages that make it, in the forms in which it is sent, each made when it is
    first needed.
    """

    __slots__ = ("_block", "_ref", "_vector", "is_large", "padded_bytes", "small")

    def __init__(self, vector: Vector | Bytes, padding_bytes: int) -> None:
        self._vector, self.padded_bytes = vector, vector.nbytes + padding_bytes
        self._block: Bytes | Vector | None = None
        self._ref: Any = None
        self.is_large = self.padded_bytes > INLINE_BYTES
        self.small = b"" if self.is_large else vector.tobytes() + bytes(padding_bytes)
        """Its bytes, padded; empty if it is large."""

    def at(self, arena: Arena) -> int:
        """Return where it begins in the arena; it is copied there unless it was made there."""
        if self._block is None:
            if self.padded_bytes == self._vector.nbytes and arena.holds(self._vector):
                self._block = self._vector
            else:
                self._block = copied(arena, self._vector, self.padded_bytes)
        return arena.where(self._block)

    def ref(self, *, always: bool = False) -> Any:
        """Return a reference to it in Ray's store; None if it is small, and not `always` wanted."""
        if self._ref is None and (self.is_large or always):
            vector = self._vector
            padding = np.zeros((self.padded_bytes - vector.nbytes) // vector.itemsize, vector.dtype)
            self._ref = ray.put(np.concatenate([vector, padding]) if len(padding) else vector)
        return self._ref


class CarriedShards:
    """The shards that a process holds, by worker. One thread brings them, others wait for them.

    device: where gradients are computed; None where nothing is.
    """

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._shards: dict[int, Shard | Exception] = {}
        self._came = threading.Condition()

    def carry(self, worker: int, shard: list[Any]) -> None:
        """Hold the shard of a worker, of which this is the reference."""
        found: Shard | Exception
        try:
            found = self._got(shard[0])
        except Exception as error:  # who waits for the shard raises it
            found = error
        with self._came:
            self._shards[worker] = found
            self._came.notify_all()

    def _got(self, shard: Any) -> Shard:
        found: Shard = ray.get(shard)
        return found.on_device([found], self._device)[0] if self._device else found

    def of(self, worker: int) -> Shard:
        """Return the shard of a worker, which is on its way if it is not here."""
        with self._came:
            self._came.wait_for(lambda: worker in self._shards)
        found = self._shards[worker]
        if isinstance(found, Exception):
            raise found
        return found


def copied(arena: Arena, array: Vector | Bytes, num_bytes: int) -> Bytes:
    """Return a block with what an array holds, and zeros behind it up to so many bytes."""
    block = arena.block(num_bytes)
    block[: array.nbytes].view(array.dtype)[:] = array.ravel()
    block[array.nbytes :] = 0
    return block
