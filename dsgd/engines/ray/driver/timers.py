"""What is to be done later, in wall time."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable


class Timers:
    """Actions with the times at which they are due; one with the same time as another comes after it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have something done in `delay_s` seconds, when `run_due` is called then."""
        heapq.heappush(self._waiting, (time.perf_counter() + delay_s, next(self._serials), action))

    def run_due(self) -> None:
        """Do what is due, the earliest first."""
        while self._waiting and self._waiting[0][0] <= time.perf_counter():
            heapq.heappop(self._waiting)[2]()

    @property
    def left_s(self) -> float:
        """Seconds until something is due; inf: nothing waits."""
        return self._waiting[0][0] - time.perf_counter() if self._waiting else math.inf
