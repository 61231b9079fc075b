"""What a process holds of the weights with `--compress-down`: all workers are sent the same messages."""

from __future__ import annotations

import numpy as np

from dsgd.core.weights import Vector
from dsgd.transforms.codecs import Bytes, Codec, heard


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
