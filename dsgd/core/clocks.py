"""The members' clocks, and which of them is slowest and fastest, in amortised constant time a tick."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping


class Clocks:
    """Counts each member's finished mini-batches. A worker that joins starts at the slowest clock.

    >>> clocks = Clocks([0, 1])
    >>> clocks.tick(0), clocks.tick(0), clocks.slowest, clocks.gap
    (1, 2, 0, 2)
    >>> clocks.tick(1)
    1
    >>> clocks.join(2)
    >>> clocks[2], clocks.slowest_worker
    (1, 1)
    """

    def __init__(self, members: Iterable[int] = ()) -> None:
        self._clock = dict.fromkeys(members, 0)
        self._members_at = {0: len(self._clock)} if self._clock else {}
        self.slowest = self.fastest = 0
        # A member's clock when it was last looked at, as a heap; clocks only rise, so each is a lower bound.
        self._lagging: list[tuple[int, int]] = []

    def __getitem__(self, worker: int) -> int:
        return self._clock[worker]

    @property
    def gap(self) -> int:
        """Fastest minus slowest clock, in mini-batches."""
        return self.fastest - self.slowest

    @property
    def slowest_worker(self) -> int:
        """The member with the slowest clock; of several, the one with the lowest number."""
        if not self._lagging:
            self._lagging = [(0, worker) for worker in sorted(self._clock)]
        while True:
            seen, worker = self._lagging[0]
            clock = self._clock.get(worker)
            if clock == seen:
                return worker
            if clock is None:  # it has left
                heapq.heappop(self._lagging)
            else:
                heapq.heapreplace(self._lagging, (clock, worker))

    def tick(self, worker: int, batches: int = 1) -> int:
        """Move `worker`'s clock on by `batches` and return it."""
        clock = self._clock[worker]
        at = self._members_at
        if at[clock] == 1:
            del at[clock]
        else:
            at[clock] -= 1
        self._clock[worker] = moved = clock + batches
        at[moved] = at.get(moved, 0) + 1
        if moved > self.fastest:
            self.fastest = moved
        if clock == self.slowest:
            while self.slowest not in at:  # amortised: the slowest clock only ever rises
                self.slowest += 1
        return moved

    def join(self, worker: int) -> None:
        """Add a member, at the slowest clock."""
        self._clock[worker] = self.slowest
        self._members_at[self.slowest] = self._members_at.get(self.slowest, 0) + 1
        self._lagging = []

    def leave(self, worker: int) -> None:
        """Take a member out. The last one leaves the slowest and fastest clocks as they were."""
        clock = self._clock.pop(worker)
        self._members_at[clock] -= 1
        if not self._members_at[clock]:
            del self._members_at[clock]
        if self._members_at and clock in (self.slowest, self.fastest):
            self.slowest, self.fastest = min(self._members_at), max(self._members_at)

    def by_member(self) -> dict[int, int]:
        """Return each member's clock."""
        return dict(self._clock)

    @classmethod
    def at(cls, by_member: Mapping[int, int], slowest: int, fastest: int) -> Clocks:
        """Return clocks that stand at these values; slowest and fastest count where there is no member."""
        clocks = cls()
        for member, clock in by_member.items():
            clocks._clock[member] = clock
            clocks._members_at[clock] = clocks._members_at.get(clock, 0) + 1
        clocks.slowest, clocks.fastest = slowest, fastest
        clocks._lagging = [(clock, member) for member, clock in sorted(by_member.items())]
        heapq.heapify(clocks._lagging)
        return clocks
