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
    here. velocity: the server's momentum, shape (D,), or None; it never travels to a worker.
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


@dataclass(frozen=True, kw_only=True)
class DelayedNesterov:
    """Nesterov momentum for gradients that come one by one from `every` workers.

    Each moves the weights by its share, and the momentum joins in once `every` of them:

        s <- s + g,  w <- w - lr g/N;    every N-th:  m <- momentum m + s/N,  w <- w - lr momentum m,  s <- 0

    Liu et al. 2024 (arXiv 2401.09135), delayed Nesterov with activation c = 0. N = 1 is SGD's nesterov.
    The velocity of its weights is m and s: shape (2, D).
    """

    lr: float
    momentum: float
    every: int

    def step(self, w: Weights, g: Vector) -> Weights:
        """Return the version after `w`, one step down the gradient g (D,)."""
        m, s = np.zeros((2, len(g)), np.float32) if w.velocity is None else w.velocity
        s = s + g
        step = g / self.every
        if (w.version + 1) % self.every == 0:
            m, s = self.momentum * m + s / self.every, np.zeros_like(s)
            step = step + self.momentum * m
        vector = np.asarray(w.vector - self.lr * step, np.float32)
        vector.setflags(write=False)
        return Weights(vector, w.version + 1, np.stack([m, s]))


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


def spread(vectors: Iterable[Vector], centre: Vector) -> float:
    """Return the mean Euclidean distance of vectors (D,) to a centre (D,).

    >>> spread([np.zeros(2, np.float32), np.full(2, 2, np.float32)], np.ones(2, np.float32))
    1.4142135381698608
    """
    return float(np.mean([np.linalg.norm(vector - centre) for vector in vectors]))
