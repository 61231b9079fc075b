"""One simulated process: it computes tasks one after the other, at a rate that faults change.

Plain functions of time: it has no clock and schedules nothing. Uninterrupted, a task ends at exactly the time
at which it arrived plus its compute time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

QUESTION = -1
"""In place of a worker: no task, but whether the host answers. It takes no time, and waits as tasks do."""


@dataclass(slots=True, kw_only=True, eq=False)
class Copy:
    """A task as one host has it; under suspicion a second host has another copy. All times in seconds."""

    number: int
    """Copies are numbered as they are sent."""
    worker: int
    serial: int
    """Of the task."""
    host: int
    arrived_s: float
    left_s: float
    """What is left to compute, at factor 1, from `since_s` on."""
    since_s: float = 0.0
    """From when on it is computed, if it is the first of its queue."""
    computed_s: float = 0.0
    """For how long it was computed until `since_s`."""

    def state(self) -> list[Any]:
        """Return all fields, in order."""
        return [getattr(self, f.name) for f in fields(self)]

    @classmethod
    def restored(cls, state: list[Any]) -> Copy:
        """Return the copy whose `state` it is."""
        return cls(**dict(zip((f.name for f in fields(cls)), state, strict=True)))


@dataclass(slots=True)
class SimHost:
    """A process's tasks, and what faults do to it.

    Its methods return nothing: whoever changes it looks at `finish_s` afterwards.
    """

    queue: list[Copy] = field(default_factory=list)
    """In the order in which they arrive; the first is being computed."""
    held: list[Copy] = field(default_factory=list)
    """Computed, and kept back because the link is cut."""
    factors: dict[int, float] = field(default_factory=dict)
    """By fault: how many times slower it computes; they multiply."""
    paused_until_s: float = 0.0
    cut_until_s: float = 0.0
    heard: dict[int, int] = field(default_factory=dict)
    """By worker: the version of the weights that its process was sent last with a task of it."""

    @property
    def factor(self) -> float:
        """How many times slower it computes."""
        factor = 1.0
        for one in self.factors.values():
            factor *= one
        return factor

    @property
    def finish_s(self) -> float | None:
        """When the first task will be computed if nothing changes."""
        return self.queue[0].since_s + self.queue[0].left_s * self.factor if self.queue else None

    def computed_s(self, copy: Copy, now_s: float) -> float:
        """Return for how many seconds a copy has been computed."""
        computing = bool(self.queue) and self.queue[0] is copy
        return copy.computed_s + (max(0.0, now_s - copy.since_s) if computing else 0.0)

    def add(self, copy: Copy) -> None:
        """Queue a copy that arrives at its `arrived_s`, or as soon as the link is back."""
        copy.arrived_s = max(copy.arrived_s, self.cut_until_s)
        copy.since_s = copy.arrived_s
        self.queue.append(copy)
        if len(self.queue) == 1:
            self._begin(0.0)

    def finish(self, now_s: float) -> Copy:
        """Take out the first copy, which is computed at `now_s`."""
        copy = self.queue.pop(0)
        copy.computed_s += copy.left_s * self.factor
        self._begin(now_s)
        return copy

    def remove(self, copy: Copy, now_s: float) -> None:
        """Stop a copy, if it is still here."""
        if copy in self.held:
            self.held.remove(copy)
        elif copy in self.queue:
            first = self.queue[0] is copy
            self.queue.remove(copy)
            if first:
                self._begin(now_s)

    def lose(self) -> list[Copy]:
        """Lose all tasks with the process; a new one stands still no longer."""
        lost = [*self.held, *self.queue]
        self.held, self.queue, self.paused_until_s = [], [], 0.0
        self.heard.clear()
        return lost

    def pause(self, now_s: float, until_s: float) -> None:
        """Stand still."""
        self._settle(now_s)
        self.paused_until_s = max(self.paused_until_s, until_s)
        if self.queue:
            self.queue[0].since_s = max(self.queue[0].since_s, self.paused_until_s)

    def slow(self, now_s: float, fault: int, factor: float | None) -> None:
        """Compute `factor` times slower because of a fault; None: that fault is over."""
        self._settle(now_s)
        self.factors.pop(fault, None)
        if factor is not None:
            self.factors[fault] = factor

    def cut(self, now_s: float, until_s: float) -> None:
        """Let no message pass: tasks on their way arrive when the link is back."""
        self.cut_until_s = max(self.cut_until_s, until_s)
        for copy in self.queue:
            if copy.arrived_s > now_s:
                copy.arrived_s = max(copy.arrived_s, self.cut_until_s)
        if self.queue:
            self.queue[0].since_s = max(self.queue[0].since_s, self.queue[0].arrived_s)

    def _begin(self, free_s: float) -> None:
        if self.queue:
            self.queue[0].since_s = max(self.queue[0].arrived_s, free_s, self.paused_until_s)

    def _settle(self, now_s: float) -> None:
        """Enter what has been computed until now: from here on the rate is another one."""
        if self.queue and self.queue[0].since_s < now_s:
            first = self.queue[0]
            computed_s = now_s - first.since_s
            first.left_s = max(0.0, first.left_s - computed_s / self.factor)
            first.computed_s += computed_s
            first.since_s = now_s

    def state(self) -> Mapping[str, Any]:
        """Return all of it as JSON values."""
        return {
            "queue": [copy.state() for copy in self.queue],
            "held": [copy.state() for copy in self.held],
            "factors": [list(item) for item in self.factors.items()],
            "paused_until_s": self.paused_until_s,
            "cut_until_s": self.cut_until_s,
            "heard": [list(item) for item in self.heard.items()],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> SimHost:
        """Return the host whose `state` it is."""
        return cls(
            [Copy.restored(copy) for copy in state["queue"]],
            [Copy.restored(copy) for copy in state["held"]],
            {fault: factor for fault, factor in state["factors"]},
            float(state["paused_until_s"]),
            float(state["cut_until_s"]),
            {worker: version for worker, version in state.get("heard", ())},
        )
