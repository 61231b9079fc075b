"""Faults of a place for checkpoints, as `--faults` asks for them: one store around another.

    torn@update=200        the next checkpoint is cut short, anywhere
    rot@t=60               one bit of the next checkpoint is another
    full@t=60+20           for 20 s every checkpoint finds the disk full
    slow-disk=3@t=60+20    for 20 s every checkpoint takes 3 s longer

They begin with the first checkpoint that is due: at engine second t or later, of version `update` or later.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsgd.checkpoints.store import Part, Store, version_of
from dsgd.faults.fault import STORE, Fault, Faults
from dsgd.faults.seen import FaultSeen
from dsgd.work.rng import Purpose, generator

_DRAWS = (1 << 32) - 1  # the stream's worker: no worker has this number


@dataclass
class _GoingOn:
    """A fault that lasts, and how many checkpoints it hit."""

    fault: Fault
    seen: FaultSeen
    hit: int = 0

    def over(self, now_s: float) -> FaultSeen | None:
        """Return its line if it is over."""
        assert self.fault.lasts_s is not None
        if now_s < self.seen.t_s + self.fault.lasts_s:
            return None
        what = "found the disk full" if self.fault.kind == "full" else f"took {self.fault.size:g} s longer"
        recovered_s = None if now_s == math.inf else self.fault.lasts_s
        return self.seen._replace(text=f"checkpoints that {what}: {self.hit}", recovered_s=recovered_s)


class FaultyStore:
    """A store that fails as asked, and otherwise does what the store that it is around does.

    now_s: the engine second at which the checkpoint that is being written was taken. seed: draws where a
    checkpoint is cut or altered. came_in: counts the tasks that came in, as in a FaultSeen. sleep: has the
    engine seconds of a slow disk go by. seen: the faults that are over, in the order in which they ended; it
    only grows.
    """

    def __init__(
        self,
        store: Store,
        faults: Faults,
        *,
        seed: int,
        now_s: Callable[[], float],
        came_in: Callable[[], int] = lambda: 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.seen: list[FaultSeen] = []
        self.names, self.read, self.remove = store.names, store.read, store.remove
        self._store, self._seed = store, seed
        self.slept_s = 0.0
        """Engine seconds that a slow disk has taken longer, in all."""
        self._now_s, self._came_in, self._sleep = now_s, came_in, sleep
        asked = [fault for fault in faults if isinstance(fault, Fault) and fault.kind in STORE]
        self._waiting = dict(enumerate(asked))
        self._going_on: list[_GoingOn] = []

    def __str__(self) -> str:
        return str(self._store)

    def write(self, name: str, parts: Sequence[Part]) -> None:
        now_s, version = self._now_s(), version_of(name) or 0
        self.end(now_s)
        for index, fault in list(self._waiting.items()):
            if (now_s if fault.trigger.of == "t" else version) >= fault.trigger.at:
                del self._waiting[index]
                parts = self._begin(index, fault, name, parts, now_s)
        self.end(now_s)  # some were over before this checkpoint
        for going_on in self._going_on:
            going_on.hit += 1
            if going_on.fault.kind == "slow-disk":
                self.slept_s += going_on.fault.size
                self._sleep(going_on.fault.size)
        if any(going_on.fault.kind == "full" for going_on in self._going_on):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self._store}/{name}")
        self._store.write(name, parts)

    def end(self, now_s: float = math.inf) -> None:
        """Add the faults that are over to `seen`; with inf all: the run has ended in them."""
        for going_on in list(self._going_on):
            if seen := going_on.over(now_s):
                self._going_on.remove(going_on)
                self.seen.append(seen)

    def _begin(
        self, index: int, fault: Fault, name: str, parts: Sequence[Part], now_s: float
    ) -> Sequence[Part]:
        """Begin a fault; return the parts of the checkpoint that is due as it leaves them."""
        began_s = fault.trigger.at if fault.trigger.of == "t" else now_s
        seen = FaultSeen(began_s, fault.kind, (), True, version_of(name) or 0, self._came_in(), "")
        if fault.kind in ("full", "slow-disk"):
            self._going_on.append(_GoingOn(fault, seen))
            return parts
        draw = generator(self._seed, Purpose.FAULT, _DRAWS, index).random()
        content = b"".join(parts)
        changed, text = _cut(content, draw) if fault.kind == "torn" else _altered(content, draw)
        self.seen.append(seen._replace(text=f"checkpoint {name}: {text}"))
        return [changed]


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
