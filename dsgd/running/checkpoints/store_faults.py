"""Faults of a place for checkpoints, as `--faults` asks for them: one store around another.

    torn@update=200        the next checkpoint is cut short, anywhere
    rot@t=60               one bit of the next checkpoint is another
    full@t=60+20           for 20 s every checkpoint finds the disk full
    slow-disk=3@t=60+20    for 20 s every checkpoint takes 3 s longer

They begin with the first update that is due: at engine second t or later, or of version `update` or later.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.rng import Purpose, generator
from dsgd.records.stores.store import Part, Store
from dsgd.scenario.fault import STORE, Fault, Faults, named

_DRAWS = (1 << 32) - 1  # the stream's worker: no worker has this number


@dataclass
class _Begun:
    """A fault that has begun and is not over."""

    name: str
    fault: Fault
    seen: FaultSeen
    hit: int = 0
    """Checkpoints that found the disk full."""

    @property
    def until_s(self) -> float:
        return self.seen.t_s + (math.inf if self.fault.lasts_s is None else self.fault.lasts_s)

    @property
    def lasts(self) -> bool:
        """Whether it lasts for a time; the others hit the next checkpoint."""
        return self.fault.kind in ("full", "slow-disk")

    def over(self, now_s: float) -> FaultSeen:
        """Return its line; with inf the run has ended in it."""
        if not self.lasts:
            return self.seen._replace(text="there was no further checkpoint")
        what = f"the disk was full for {self.hit} checkpoint{'s' * (self.hit != 1)}"
        if self.fault.kind == "slow-disk":
            what = f"each checkpoint took {self.fault.size:g} s longer"
        return self.seen._replace(text=what, recovered_s=None if now_s == math.inf else self.fault.lasts_s)


class FaultyStore:
    """A store that fails as asked, and otherwise does what the store that it is around does.

    seed: draws where a checkpoint is cut or altered. sleep: waits for the seconds of a slow disk, unless the
    engine does.
    seen: the faults that are over, in the order in which they ended; it only grows.
    """

    def __init__(
        self, store: Store, faults: Faults, *, seed: int, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.seen: list[FaultSeen] = []
        self.names, self.read, self.remove = store.names, store.read, store.remove
        self.store, self._seed, self._sleep = store, seed, sleep
        self._asked = named(fault for fault in faults if isinstance(fault, Fault) and fault.kind in STORE)
        self._waiting = dict(self._asked)
        self._begun: list[_Begun] = []  # replaced, never changed: a thread may be writing

    def __str__(self) -> str:
        return str(self.store)

    def reached(self, now_s: float, version: int, came_in: Callable[[], int]) -> None:
        """Begin and end what is due at an engine second and a version of the weights.

        came_in: counts the tasks that have come in, as in a FaultSeen; called when a fault begins.
        """
        for name, fault in list(self._waiting.items()):
            by_time = fault.trigger.of == "t"
            if (now_s if by_time else version) >= fault.trigger.at:
                del self._waiting[name]
                began_s = fault.trigger.at if by_time else now_s
                seen = FaultSeen(began_s, fault.kind, (), True, version, came_in(), "")
                self._begun = [*self._begun, _Begun(name, fault, seen)]
        self._end([begun for begun in self._begun if begun.lasts and begun.until_s <= now_s], now_s)

    def end(self) -> Sequence[str]:
        """Add what is not over to `seen`, as the run has ended in it; return what never began."""
        self._end(self._begun, math.inf)
        return list(self._waiting)

    def _end(self, over: Sequence[_Begun], now_s: float) -> None:
        if over:
            self._begun = [begun for begun in self._begun if begun not in over]
            self.seen += [begun.over(now_s) for begun in sorted(over, key=lambda begun: begun.until_s)]

    @property
    def slower_s(self) -> float:
        """Seconds that the next checkpoint takes longer."""
        return sum(begun.fault.size for begun in self._begun if begun.fault.kind == "slow-disk")

    def write(self, name: str, parts: Sequence[Part]) -> None:
        begun = self._begun
        self._sleep(self.slower_s)
        full = [other for other in begun if other.fault.kind == "full"]
        for one in full:
            one.hit += 1
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self.store}/{name}")
        for damage in begun:
            if not damage.lasts:
                parts = self._damaged(damage, name, parts)
        self.store.write(name, parts)

    def _damaged(self, damage: _Begun, name: str, parts: Sequence[Part]) -> Sequence[Part]:
        """Return a checkpoint as a fault, which is then over, leaves it."""
        index = list(self._asked).index(damage.name)
        draw = generator(self._seed, Purpose.FAULT, _DRAWS, index).random()
        content = b"".join(parts)
        changed, text = _cut(content, draw) if damage.fault.kind == "torn" else _altered(content, draw)
        self._begun = [begun for begun in self._begun if begun is not damage]
        self.seen.append(damage.seen._replace(text=f"checkpoint {name}: {text}"))
        return [changed]

    def position(self) -> Mapping[str, Any]:
        """Return which faults have begun, and which of them are not over, as JSON values."""
        begun = [[b.name, b.seen.t_s, b.seen.update, b.seen.came_in, b.hit] for b in self._begun]
        return {"given": [name for name in self._asked if name not in self._waiting], "begun": begun}

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Go to a position: perhaps of a store with fewer faults, if the others are due later."""
        numbers = dict(enumerate(self._asked))  # they stood for the faults in older checkpoints
        given = {*position.get("given", ())}
        if "waiting" in position:
            given = self._asked.keys() - {numbers[number] for number in position["waiting"]}
        self._waiting = {name: fault for name, fault in self._asked.items() if name not in given}
        self._begun = [
            _Begun(name, fault, FaultSeen(t_s, fault.kind, (), True, update, came_in, ""), hit)
            for key, t_s, update, came_in, hit in position.get("begun", ())
            for name in [numbers.get(key, key)]
            for fault in [self._asked[name]]
        ]

    def leave_out(self, happened: Iterable[FaultSeen]) -> None:
        """Have faults that are recorded as over not happen again."""
        for seen in happened:
            self._begun = [b for b in self._begun if b.seen[:2] != seen[:2]]
            same = [name for name, fault in self._waiting.items() if _is(fault, seen)]
            for name in same[:1]:
                del self._waiting[name]


def _is(fault: Fault, seen: FaultSeen) -> bool:
    """Whether a fault that was asked for may be the one that was seen."""
    of_time = fault.trigger.of == "t"
    due = fault.trigger.at == seen.t_s if of_time else fault.trigger.at <= seen.update
    return fault.kind == seen.kind and due


def _cut(content: bytes, draw: float) -> tuple[bytes, str]:
    """Return the beginning of a content; draw, in [0, 1), says where it is cut."""
    kept = int(draw * len(content))
    return content[:kept], f"cut to {kept:,} of {len(content):,} bytes"


def _altered(content: bytes, draw: float) -> tuple[bytes, str]:
    """Return a content with one other bit; draw, in [0, 1), says which."""
    bit = int(draw * len(content) * 8)
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed), f"bit {bit:,} is another"
