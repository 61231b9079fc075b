"""A vector on its way to processes: inside a message, in the driver's arena, or in Ray's store."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

from dsgd.core.weights import Vector
from dsgd.engines.ray.transport.arena import Arena, Bytes
from dsgd.engines.ray.transport.ray_messages import INLINE_BYTES


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


def copied(arena: Arena, array: Vector | Bytes, num_bytes: int) -> Bytes:
    """Return a block with what an array holds, and zeros behind it up to so many bytes."""
    block = arena.block(num_bytes)
    block[: array.nbytes].view(array.dtype)[:] = array.ravel()
    block[array.nbytes :] = 0
    return block
