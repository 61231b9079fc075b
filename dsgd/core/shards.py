"""Shards of the data: a worker's samples, and the order in which each epoch takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dsgd.core.rng import Purpose, at


class Shard(Protocol):
    """What one worker holds: a pure function from its step to a mini-batch."""

    @property
    def worker(self) -> int:
        """Its number."""

    @staticmethod
    def batches(shards: Sequence[Any], steps: Sequence[int]) -> tuple[Any, ...]:
        """Return the mini-batches of several workers, stacked along a first dimension of length P.

        shards[p] is at its mini-batch number steps[p], counted from 0.
        """

    def alone(self) -> Shard:
        """Return this shard without other workers' data, to be sent to its worker."""

    @staticmethod
    def on_device(shards: Sequence[Any], device: str) -> Sequence[Any]:
        """Return the shards on a torch device; arrays that they share are copied there once."""


Indices = NDArray[np.int64]


class Reshuffled:
    """One worker's rows of a data set, in mini-batches.

    Each epoch passes once over them in a new random order (random reshuffling: Mishchenko et al. 2020,
    arXiv 2006.05988); rows that do not fill a last mini-batch are left to later epochs.
    """

    def __init__(self, worker: int, rows: Indices, *, batch_size: int, seed: int) -> None:
        self.worker, self.rows, self.batch_size, self.seed = worker, rows, batch_size, seed
        self._epoch, self._order = -1, rows

    def __len__(self) -> int:
        return len(self.rows)

    def batch_rows(self, step: int) -> Indices:
        """Return which rows the mini-batch number `step` has, shape (B,)."""
        epoch, k = divmod(step, len(self.rows) // self.batch_size)
        if epoch != self._epoch:
            rng = at(self.seed, Purpose.BATCH_ORDER, self.worker, epoch)
            self._epoch, self._order = epoch, rng.permutation(self.rows)
        return self._order[k * self.batch_size : (k + 1) * self.batch_size]
