"""Weights as one flat vector, and the optimizer that makes the next version of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]


class Weights(NamedTuple):
    """One version of the model: immutable, so tasks in flight can hold it without a copy.

    vector: float32, shape (D,), read-only. version: how many updates the server has applied to get
    here. velocity: the server's momentum buffer, shape (D,) or None; it never travels to a worker.
    """

    vector: Vector
    version: int = 0
    velocity: Vector | None = None

    def replaced(self, vector: Vector) -> Weights:
        """Return the next version, with `vector` (D,) as its weights."""
        vector.setflags(write=False)
        return Weights(vector, self.version + 1, self.velocity)


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with heavy-ball (Polyak 1964) or Nesterov momentum.

        v <- momentum v + g,    w <- w - lr v    or, with nesterov,    w <- w - lr (g + momentum v)

    lr: step size, above 0. momentum: in [0, 1). nesterov: in the form of Sutskever et al. 2013.
    """

    lr: float
    momentum: float = 0.0
    nesterov: bool = False

    def step(self, w: Weights, g: Vector, scale: float = 1.0) -> Weights:
        """Return the version after `w`, one step down the gradient `scale` g (D,).

        >>> w = Weights(np.zeros(1, np.float32))
        >>> SGD(lr=0.5).step(w, np.ones(1, np.float32))
        Weights(vector=array([-0.5], dtype=float32), version=1, velocity=None)
        """
        if not self.momentum:
            plain = (-self.lr * scale) * g
            plain += w.vector
            plain.setflags(write=False)
            return Weights(plain, w.version + 1)
        if scale != 1:
            g = (scale * g).astype(np.float32, copy=False)
        v = g if w.velocity is None else self.momentum * w.velocity + g
        vector = np.asarray(-self.lr * (g + self.momentum * v if self.nesterov else v), np.float32)
        vector += w.vector
        vector.setflags(write=False)
        return Weights(vector, w.version + 1, v)


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
