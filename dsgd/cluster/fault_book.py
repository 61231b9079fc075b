"""What happens to a run's hosts, while it happens: faults from their beginning until they are over.

Plain data, like the ledger: it has no clock. When a fault is over it becomes a `FaultSeen`, which no longer
changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsgd.faults.seen import FaultSeen


@dataclass(eq=False)
class OpenFault:
    """A fault that is not over."""

    seen: FaultSeen
    """What is known of it, without its text."""
    words: list[str]
    expected: set[int] = field(default_factory=set)
    """Hosts that it is about to end: until their loss is noticed, it is not over."""
    waiting: set[int] = field(default_factory=set)
    """Workers that wait for a new process because of it."""
    passing: Collection[int] = ()
    """Hosts that it slows, stops or cuts off; that passes with time."""
    held_s: float = 0.0
    """Seconds from its beginning in which no new process can start."""
    number: int = 0
    """By which an engine finds it again, if it does."""

    @classmethod
    def restored(cls, seen: Sequence[Any], **more: Any) -> OpenFault:
        """Return the fault whose `state` it is; more: its other fields."""
        fault = FaultSeen(*seen)
        return cls(fault._replace(workers=tuple(fault.workers), text=""), [fault.text], **more)

    def state(self) -> list[Any]:
        """Return what is known of it, with its text, as JSON values."""
        seen = self.seen._replace(text=self.text)
        return [list(value) if isinstance(value, tuple) else value for value in seen]

    @property
    def text(self) -> str:
        return "; ".join(self.words)

    def add(self, *, repeated: int = 0, wasted: int = 0) -> None:
        """Count mini-batches that it costs."""
        seen = self.seen
        self.seen = seen._replace(repeated=seen.repeated + repeated, wasted=seen.wasted + wasted)

    def detect(self, now_s: float) -> None:
        """Enter that the driver knows of it; the last time counts."""
        self.seen = self.seen._replace(detected_s=now_s - self.seen.t_s)


class FaultBook:
    """The open faults of a run, and those that are over, in `seen`."""

    def __init__(self) -> None:
        self.seen: list[FaultSeen] = []
        self.open: list[OpenFault] = []

    def expecting(self, host: int) -> OpenFault | None:
        """Return the fault that is about to end a host's process, if there is one."""
        return next((fault for fault in self.open if host in fault.expected), None)

    def begin(self, fault: OpenFault) -> OpenFault:
        """Enter a fault that has begun."""
        self.open.append(fault)
        return fault

    def end(self, fault: OpenFault, now_s: float | None) -> None:
        """Enter that a fault is over, if it is not yet; None: it never was."""
        if fault in self.open:
            self.close(fault, None if now_s is None else now_s - fault.seen.t_s)

    def close(self, fault: OpenFault, recovered_s: float | None) -> None:
        """Enter that an open fault is over, so many seconds after its beginning."""
        self.open.remove(fault)
        self.seen.append(fault.seen._replace(text=fault.text, recovered_s=recovered_s))

    def end_all(self) -> None:
        """Enter that the run is over: those that are open never end."""
        for fault in sorted(self.open, key=lambda fault: fault.seen.kind == "suspect"):
            self.end(fault, None)
