"""Which part of the flat vector each rank of a group has.

A rank has of every trained parameter some of its rows: the chunk that torch's FSDP2 gives it on dimension 0.
So its slice of the vector is one contiguous segment a parameter, and needs neither torch nor a process group.

Shapes: D weights of the module, d weights of a rank's slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


class RankLayout:
    """How a vector (D,) that holds parameters of these shapes, one after another, is cut into slices.

    Each rank has one. Where the group holds the vector several times, ranks are numbered replica by replica:
    rank r has slice r modulo `slices`, as in torch's mesh (replicas, slices).

    >>> layout = RankLayout([(3, 2), (1,)], slices=2)
    >>> [layout.take(np.arange(7), rank).tolist() for rank in (0, 1)]
    [[0, 1, 2, 3, 6], [4, 5]]
    """

    def __init__(self, shapes: Sequence[Sequence[int]], slices: int) -> None:
        self.slices = slices
        self._segments: list[list[tuple[int, int]]] = [[] for _ in range(self.slices)]
        begin = 0
        for shape in shapes:
            rows = shape[0] if len(shape) else 1
            width = math.prod(shape[1:])
            chunk = -(-rows // self.slices)
            for number, segments in enumerate(self._segments):
                a, b = (min(rows, edge * chunk) * width for edge in (number, number + 1))
                if a < b:
                    segments.append((begin + a, begin + b))
            begin += rows * width
        self.num_weights = begin
        """D."""

    @property
    def holders(self) -> range:
        """The ranks whose slices together are the whole vector; the others have the same as one of these."""
        return range(self.slices)

    def length(self, rank: int) -> int:
        """Return d, the weights of a rank's slice."""
        return sum(b - a for a, b in self._segments[rank % self.slices])

    def take(self, vector: Any, rank: int) -> Any:
        """Return a rank's slice (..., d) of a vector or of a state (..., D).

        It is a copy, unless the rank has the whole: then it is `vector` itself.
        """
        assert vector.shape[-1] == self.num_weights
        if self.slices == 1:
            return vector
        out = np.empty((*vector.shape[:-1], self.length(rank)), vector.dtype)
        for own, whole in self._pairs(rank):
            out[..., own] = vector[..., whole]
        return out

    def segments(self, rank: int) -> list[slice]:
        """Return the segments of the vector that a rank's slice consists of, in order."""
        return [whole for _, whole in self._pairs(rank)]

    def own(self, part: slice, rank: int) -> Any:
        """Return which weights of a rank's slice are in a part of the vector: booleans (d,).

        >>> RankLayout([(3, 2), (1,)], slices=2).own(slice(1, 7, 2), rank=0)
        array([False,  True, False,  True, False])
        """
        found = np.zeros(self.length(rank), np.bool_)
        begin, end, stride = part.indices(self.num_weights)
        for own, whole in self._pairs(rank):
            first = begin + max(0, -((begin - whole.start) // stride)) * stride
            if first < min(whole.stop, end):
                shift = own.start - whole.start
                found[first + shift : min(whole.stop, end) + shift : stride] = True
        return found

    def put(self, vector: Any, rank: int, part: Any) -> None:
        """Write a rank's slice (..., d) into its place in a vector or a state (..., D)."""
        assert vector.shape[-1] == self.num_weights
        assert part.shape[-1] == self.length(rank)
        for own, whole in self._pairs(rank):
            vector[..., whole] = part[..., own]

    def _pairs(self, rank: int) -> list[tuple[slice, slice]]:
        """Return where each segment lies in the slice, and where in the vector."""
        pairs, begin = [], 0
        for a, b in self._segments[rank % self.slices]:
            pairs.append((slice(begin, begin + b - a), slice(a, b)))
            begin += b - a
        return pairs
