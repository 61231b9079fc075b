"""Weights as one flat vector, and sums over several of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

CHUNK = 1 << 16
"""Weights that are computed with at once where there are many (`chunked`): those of a few results, the slots
and what is computed on the way fit the processor's second cache."""

LOSS_SCALE = "loss scale"
"""What scales the losses of a worker, whose gradients are computed in float16, is called."""

LEFT_OUT = "left out"
"""What counts how often a weight was left out of a gradient is called, beside a rule's slots and a module's
buffers; neither has a name with a space.
"""

EMPTY: Mapping[str, Vector] = {}
"""No slots. It is shared, so never written to: a rule that has slots makes a mapping for each version."""


class Changes(NamedTuple):
    """How to send a version to a process that holds an earlier one, with --compress-down."""

    message_bytes: int
    """Of what is sent for one version."""
    messages: tuple[NDArray[np.uint8], ...] = ()
    """For this version and those before it, the newest last: as many as together are less than the vector; at
    the beginning, and after a checkpoint, none.
    """

    def since(self, w: Weights, version: int | None) -> Weights:
        """Return the weights `w` as they are sent to a process that holds `version` (None: nothing): the
        changes that it has missed, or the whole vector, whichever is less.
        """
        missed = math.inf if version is None or version > w.version else w.version - version
        num_bytes = missed * self.message_bytes
        if num_bytes >= 4 * len(w.vector):
            return w._replace(wire_bytes=None, changes=self._replace(messages=()))
        messages = self.messages[len(self.messages) - int(missed) :]
        return w._replace(wire_bytes=int(num_bytes), changes=self._replace(messages=messages))


class Weights(NamedTuple):
    """One version of the model: immutable, so tasks in flight can hold it without a copy.

    vector: float32, shape (D,), read-only. version: how many updates the server has applied to get here.
    slots: what the server's rule remembers, by name, shape (D,) each (velocity, moments, …). kept: what else
    the strategy remembers: numbers, text, None, arrays, and tuples, lists and dicts of these. Slots and
    `kept` never travel to a worker. wire_bytes: what it takes to send this vector to a worker; None: 4 for
    each weight. changes: what it may be sent as to who has an earlier version; None: it is sent as it is.
    """

    vector: Vector
    version: int = 0
    slots: Mapping[str, Vector] = EMPTY
    kept: Any = None
    wire_bytes: int | None = None
    changes: Changes | None = None

    def replaced(self, vector: Vector, slots: Mapping[str, Vector] | None = None) -> Weights:
        """Return the next version, with `vector` (D,) as its weights, and its slots if they change."""
        vector.setflags(write=False)
        return Weights(vector, self.version + 1, self.slots if slots is None else slots, self.kept)

    def keeping(self, kept: Any) -> Weights:
        """Return the same version with another `kept`."""
        return self._replace(kept=kept)

    def in_slot(self, name: str) -> Weights:
        """Return weights, for workers to read, with what a slot holds as their vector; this vector as long as
        there is no such slot.
        """
        return Weights(self.slots.get(name, self.vector), self.version)


def is_left_out(g: Any) -> Any:
    """Return, for each number of a gradient of numpy or torch, whether it is -0: whether no gradient reaches
    the weight, where the objective says so.

    >>> is_left_out(np.array([0, -0.0, 1], np.float32)).tolist()
    [False, True, False]
    """
    found: Any = (g == 0) & (g.signbit() if hasattr(g, "signbit") else np.signbit(g))
    return found


def mean(vectors: Iterable[Vector]) -> Vector:
    """Return the mean of vectors (D,), summed in the order given.

    >>> mean([np.zeros(2, np.float32), np.ones(2, np.float32)])
    array([0.5, 0.5], dtype=float32)
    """
    vectors = iter(vectors)
    total = next(vectors).copy()
    count = 1
    for vector in vectors:
        total += vector
        count += 1
    total /= count
    return total


def spread(vectors: Sequence[Vector]) -> float:
    """Return the mean Euclidean distance of vectors (D,) to their mean.

    >>> spread([np.zeros(2, np.float32), np.full(2, 2, np.float32)])
    1.4142135381698608
    """
    centre = mean(vectors)
    return float(np.mean([np.linalg.norm(vector - centre) for vector in vectors]))


def consensus(vectors: Sequence[Vector], centre: Vector) -> float:
    """Return the mean squared Euclidean distance of workers' weights (D,) to their mean (D,).

    >>> consensus([np.zeros(2, np.float32), np.full(2, 2, np.float32)], np.ones(2, np.float32))
    2.0
    """
    return float(np.mean([np.sum(np.square(vector - centre, dtype=np.float64)) for vector in vectors]))
