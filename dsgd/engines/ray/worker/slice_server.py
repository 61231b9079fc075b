"""A server of several: it holds one slice of the weights and of the rule's slots, and takes the rule's step.

It decides nothing: whoever calls it says which results make the next version. Servers that are called with
the same steps in the same order hold the same bits; so one is another's backup.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from dsgd.core import slices
from dsgd.core.aggregators import Matrix
from dsgd.core.rules import Arrived, Chain, Reduction, Rule
from dsgd.core.weights import Vector, Weights, mean
from dsgd.transforms.codecs import Bytes
from dsgd.transforms.compressed import Compressed, received


class SlicedMessage(NamedTuple):
    """How the bytes of a codec, which are of the whole value, become the slice of it that a server has."""

    task: Compressed
    worker: int
    step: int
    num_weights: int
    bounds: tuple[int, int] = (0, 0)
    """The slice's first weight, and the one after its last."""

    def value(self, message: Bytes) -> Vector:
        """Return the whole value (D,)."""
        return received(self.task, message, self.num_weights, self.worker, self.step)


class Read(NamedTuple):
    """What made a result whose slice is sent to a server."""

    worker: int
    version: int
    """Of the weights that the worker read."""
    origin: int | None = None
    """Which of the vectors that are sent with the results is the slice of these weights; None: none is, as
    the rule does not look at them.
    """
    message: SlicedMessage | None = None
    """Not None: what is sent as its value are a codec's bytes."""


class SliceServer:
    """The slice of one version: `hold` puts one here, each `step` makes the next.

    Vectors are slices: `vectors` are those of the results, then those of the weights that they read. Of a
    result that is compressed it is the whole message, of which each server decodes its slice.
    """

    def __init__(self) -> None:
        self._w: Weights

    def pid(self) -> int:
        """Return the number of this process."""
        return os.getpid()

    def hold(self, w: Weights) -> None:
        """Begin with this version."""
        self._w = w

    def held(self) -> Weights:
        """Return the version that is here, slots included: what another server needs to be the same."""
        return self._w

    def slots(self) -> Mapping[str, Vector]:
        """Return the rule's slots."""
        return self._w.slots

    def grams(self, rule: Chain, reads: Sequence[Read], *vectors: Vector) -> list[Matrix]:
        """Return, for each chunk, the inner products of the results."""
        return [rule.gram(*chunk) for chunk in slices.chunks(self._w, self._results(reads, vectors))]

    def squares(
        self, rule: Chain, gram: Matrix | None, reads: Sequence[Read], *vectors: Vector
    ) -> list[float]:
        """Return, for each chunk, the sum of squares of the direction. gram: of the whole."""
        return [rule.squares(*chunk, gram) for chunk in slices.chunks(self._w, self._results(reads, vectors))]

    def step(
        self, rule: Rule, whole: Reduction | None, reads: Sequence[Read], *vectors: Vector
    ) -> tuple[int, Vector]:
        """Make the next version; return its number and its slice."""
        self._w = slices.step(rule, self._w, self._results(reads, vectors), whole)
        return self._w.version, self._w.vector

    def distances(self, reads: Sequence[Read], *vectors: Vector) -> list[float]:
        """Return the squared distances of the results to their mean."""
        values = [result.value for result in self._results(reads, vectors)]
        centre = mean(values)
        return [float(np.sum(np.square(value - centre, dtype=np.float64))) for value in values]

    def _results(self, reads: Sequence[Read], vectors: Sequence[Vector]) -> list[Arrived]:
        w = self._w
        found = []
        for read, value in zip(reads, vectors, strict=False):
            if read.message:
                value = read.message.value(cast("Bytes", value))[slice(*read.message.bounds)]
            origin = w.vector if read.origin is None else vectors[read.origin]
            found.append(Arrived(value, Weights(origin, read.version), read.worker))
        return found
