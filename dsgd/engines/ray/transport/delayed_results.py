"""A network on Ray: results are held back until the simulated one would have let them through.

Messages are sent at once, and arrive much sooner than in the network that was asked for. So a worker begins
early, by as much as its weights would have been on their way, and so its result is early by as much; the
result is held back for that time, and for its own way. What a strategy sees is when results come in.
"""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

from dsgd.scenario.star import Star

T = TypeVar("T")


class HeldBack(Generic[T]):
    """Results of workers that are computed and, in the network `star`, still on their way.

    Callers pass the time, in engine seconds.
    """

    def __init__(self, star: Star) -> None:
        self._star = star
        self._early_s: dict[int, float] = {}  # by worker: how long its weights would have been on their way
        self._serial = 0
        # When a result leaves its worker, and when it is there: (time, serial number, worker, bytes, result).
        self._leaving: list[tuple[float, int, int, int, T]] = []
        self._coming: list[tuple[float, int, int, int, T]] = []
        self._valid: dict[int, int] = {}  # by worker: the serial number of its result

    def sent(self, worker: int, now_s: float, num_bytes: int) -> None:
        """Note that a worker is sent its task."""
        self._early_s[worker] = self._star.send(now_s, num_bytes, worker) - now_s

    def hold(self, worker: int, now_s: float, num_bytes: int, result: T) -> None:
        """Hold back a result that has come in; a second one of the same task is dropped."""
        if worker in self._valid:
            return
        self._serial += 1
        self._valid[worker] = self._serial
        leaves_s = now_s + self._early_s[worker]
        heapq.heappush(self._leaving, (leaves_s, self._serial, worker, num_bytes, result))

    def drop(self, worker: int) -> None:
        """Drop the result of a worker, if one is held back: its task was stopped."""
        self._valid.pop(worker, None)

    def __contains__(self, worker: int) -> bool:
        return worker in self._valid

    def __bool__(self) -> bool:
        return bool(self._valid)

    def next_s(self) -> float:
        """Return when to look again: a result leaves its worker, or is there."""
        first = [heap[0][0] for heap in (self._leaving, self._coming) if heap]
        return min(first, default=math.inf)

    def there(self, now_s: float) -> T | None:
        """Return a result that is there by `now_s`, the first one first; None if there is none."""
        # Links serve what leaves first, so a result takes its place only once none can leave before it.
        while self._leaving and self._leaving[0][0] <= now_s:
            leaves_s, serial, worker, num_bytes, result = heapq.heappop(self._leaving)
            if self._valid.get(worker) == serial:
                if self._star.many_links:
                    there_s = self._star.pass_links(leaves_s, num_bytes, worker)
                else:
                    there_s = self._star.collect(leaves_s, num_bytes)
                heapq.heappush(self._coming, (there_s, serial, worker, num_bytes, result))
        while self._coming and self._coming[0][0] <= now_s:
            _, serial, worker, _, result = heapq.heappop(self._coming)
            if self._valid.get(worker) == serial:
                del self._valid[worker]
                return result
        return None
