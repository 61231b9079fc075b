"""The shards that a process holds. They come on their own way: a task may overtake the one that it needs."""

from __future__ import annotations

import threading
from typing import Any

# isort: split
import ray

from dsgd.core.shard import Shard


class CarriedShards:
    """By worker. One thread brings them, others wait for them.

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
