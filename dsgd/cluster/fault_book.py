"""What happens to a run's hosts, while it happens: faults from their beginning until they are over.

Plain data, like the ledger: it has no clock. When a fault is over it becomes a `FaultSeen`, which no longer
changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dsgd.faults.seen import FaultSeen


@dataclass(eq=False)
class OpenFault:
    """A fault that is not over."""

    t_s: float
    kind: str
    workers: tuple[int, ...]
    asked: bool
    update: int
    came_in: int
    hosts: set[int]
    """Hosts whose loss is part of it and has not been noticed."""
    lasts_s: float = 0.0
    """Seconds from its beginning in which no new process can start."""
    waiting: set[int] = field(default_factory=set)
    """Workers that cannot compute because of it."""
    words: list[str] = field(default_factory=list)
    detected_s: float | None = None
    repeated: int = 0
    wasted: int = 0

    def seen(self, recovered_s: float | None) -> FaultSeen:
        """Return what is recorded of it; recovered_s: seconds from its beginning, None: never."""
        return FaultSeen(
            self.t_s,
            self.kind,
            self.workers,
            self.asked,
            self.update,
            self.came_in,
            "; ".join(self.words),
            self.detected_s,
            recovered_s,
            self.repeated,
            self.wasted,
        )


class FaultBook:
    """The open faults of a run, and those that are over, in `seen`."""

    def __init__(self) -> None:
        self.seen: list[FaultSeen] = []
        self._open: list[OpenFault] = []

    def begin(self, fault: OpenFault) -> None:
        """Enter a fault that has begun."""
        self._open.append(fault)

    def expected(self, host: int) -> OpenFault | None:
        """Return the fault that is about to end a host's process, if there is one."""
        return next((fault for fault in self._open if host in fault.hosts), None)

    def end(self, fault: OpenFault, now_s: float) -> None:
        """Enter that a fault is over; once is enough."""
        if fault in self._open:
            self._open.remove(fault)
            self.seen.append(fault.seen(now_s - fault.t_s))

    def computing(self, workers: Iterable[int], now_s: float) -> None:
        """Enter that workers compute again, or have left: it ends the faults that only kept them waiting."""
        back = set(workers)
        for fault in list(self._open):
            if fault.waiting & back:
                fault.waiting -= back
                if not fault.waiting and not fault.hosts:
                    self.end(fault, now_s)

    def end_all(self) -> Sequence[FaultSeen]:
        """Enter those that never were over, and return all of them."""
        self.seen += [fault.seen(None) for fault in self._open]
        self._open.clear()
        return self.seen
