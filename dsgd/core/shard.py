"""The interface of a worker's share of the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


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
