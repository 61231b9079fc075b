"""The workers' clocks, and who is slowest and fastest, in constant time per tick."""

from __future__ import annotations


class Clocks:
    """Counts each worker's finished mini-batches.

    >>> clocks = Clocks(2)
    >>> clocks.tick(0), clocks.tick(0), clocks.slowest, clocks.gap
    (1, 2, 0, 2)
    """

    def __init__(self, num_workers: int) -> None:
        self._clock = [0] * num_workers
        self._workers_at = {0: num_workers}
        self.slowest = self.fastest = 0

    def __getitem__(self, worker: int) -> int:
        return self._clock[worker]

    @property
    def gap(self) -> int:
        """Fastest minus slowest clock, in mini-batches."""
        return self.fastest - self.slowest

    def tick(self, worker: int, batches: int = 1) -> int:
        """Move `worker`'s clock on by `batches` and return it."""
        clock = self._clock[worker]
        at = self._workers_at
        at[clock] -= 1
        if not at[clock]:
            del at[clock]
        self._clock[worker] = moved = clock + batches
        at[moved] = at.get(moved, 0) + 1
        if moved > self.fastest:
            self.fastest = moved
        if clock == self.slowest:
            while self.slowest not in at:  # amortised: the slowest clock only ever rises
                self.slowest += 1
        return moved
