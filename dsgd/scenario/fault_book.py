"""What happens to a run's hosts, while it happens: faults from their beginning until they are over.

When a fault is over it becomes a `FaultSeen`, which no longer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dsgd.core.fault_seen import MEMBERSHIP, FaultSeen


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
        fault = msgspec.convert(seen, FaultSeen)
        return cls(fault._replace(text=""), [fault.text], **more)

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


class FaultBook:
    """The open faults of a run, and those that are over, in `seen`.

    clock_s: return the engine's seconds. came_in: return how many mini-batches have come in.
    """

    def __init__(self, clock_s: Callable[[], float], came_in: Callable[[], int]) -> None:
        self.seen: list[FaultSeen] = []
        self.open: list[OpenFault] = []
        self.version = 0
        """Of the newest weights."""
        self.answers: int | None = None
        """As in `FaultSeen`."""
        self.at_once = False
        """As in `FaultSeen`."""
        self._clock_s, self._came_in = clock_s, came_in

    @property
    def members_s(self) -> float:
        """When the members changed last, in engine seconds."""
        return next((fault.t_s for fault in reversed(self.seen) if fault.kind in MEMBERSHIP), 0.0)

    def answered(self) -> None:
        """Enter that the simulated strategy waits no longer: what follows it sees at once."""
        self.at_once = True
        if self.answers is not None:
            self.answers += 1

    def expecting(self, host: int) -> OpenFault | None:
        """Return the fault that is about to end a host's process, if there is one."""
        return next((fault for fault in self.open if host in fault.expected), None)

    def begin(
        self,
        kind: str,
        workers: Sequence[int] = (),
        *,
        asked: bool = True,
        words: Sequence[str] = (),
        notice: bool = False,
        **more: Any,
    ) -> OpenFault:
        """Enter a fault that has begun; it is noticed at once if nobody has asked for it.

        more: other fields of OpenFault.
        """
        seen = FaultSeen(
            t_s=self._clock_s(),
            kind=kind,
            workers=tuple(workers),
            asked=asked,
            update=self.version,
            came_in=self._came_in(),
            text="",
            detected_s=None if asked else 0.0,
            answers=self.answers,
            notice=notice,
            at_once=self.at_once,
        )
        fault = OpenFault(seen, list(words), **more)
        self.open.append(fault)
        return fault

    def note(
        self,
        kind: str,
        workers: Sequence[int],
        text: str,
        *,
        detected_s: float | None = 0.0,
        recovered_s: float | None = 0.0,
        **more: Any,
    ) -> None:
        """Record a fault whose end is known, most often at once; more: as for `begin`."""
        fault = self.begin(kind, workers, words=[text], **more)
        fault.seen = fault.seen._replace(detected_s=detected_s)
        self.close(fault, recovered_s)

    def expect(self, kind: str, hosts: Sequence[int], held_s: float) -> None:
        """Enter that a fault is about to end the processes of these hosts, whose loss will be noticed.

        held_s: for how long no new one can start.
        """
        if hosts:
            self.begin(kind, expected={*hosts}, held_s=held_s)
        else:
            self.note(kind, (), "no process was there", detected_s=None)

    def detect(self, fault: OpenFault) -> None:
        """Enter that the driver knows of a fault now; the last time counts."""
        fault.seen = fault.seen._replace(detected_s=self._clock_s() - fault.seen.t_s)

    def end(self, fault: OpenFault) -> None:
        """Enter that a fault is over now, if it is not yet."""
        if fault in self.open:
            self.close(fault, self._clock_s() - fault.seen.t_s)

    def close(self, fault: OpenFault, recovered_s: float | None) -> None:
        """Enter that an open fault is over, so many seconds after its beginning; None: it never was."""
        self.open.remove(fault)
        self.seen.append(fault.seen._replace(text=fault.text, recovered_s=recovered_s))

    def end_all(self) -> None:
        """Enter that the run is over: those that are open never end."""
        for fault in sorted(self.open, key=lambda fault: fault.seen.kind == "suspect"):
            self.close(fault, None)
