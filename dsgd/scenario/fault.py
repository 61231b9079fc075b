"""What a fault is: a kind, whom it hits, what triggers it, how large it is and how long it lasts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dsgd.core.fault_seen import MEMBERSHIP as MEMBERSHIP
from dsgd.scenario.attacks import Attack

Kind = Literal[
    "kill",
    "pause",
    "slow",
    "cut",
    "node",
    "leave",
    "join",
    "driver",
    "torn",
    "rot",
    "full",
    "slow-disk",
    "lie",
]
"""kill: the process that carries the worker ends, or that of a server. pause: it stands still. slow: it
computes slower. cut: no message passes between it and the server. node: all processes of a node end. leave:
the member finishes its task and leaves. join: the worker comes, or comes back. driver: the process that
trains ends. torn, rot, full, slow-disk: the next checkpoint is cut short or altered, the disk is full, or
each checkpoint takes longer. lie: the worker's results are not what it has computed.
"""

PROCESS: tuple[Kind, ...] = ("kill", "pause", "slow", "cut", "node")
STORE: tuple[Kind, ...] = ("torn", "rot", "full", "slow-disk")
LASTING: tuple[Kind, ...] = (*PROCESS, "full", "slow-disk", "lie")
"""They last for a while, or until processes or members have been replaced; the others happen at once."""


@dataclass(frozen=True)
class Trigger:
    """What makes a fault happen: `t` engine seconds, version `update` of the weights, or the start of the
    worker's task that contains its mini-batch number `step`.
    """

    of: Literal["t", "update", "step"]
    at: float

    def __str__(self) -> str:
        return f"{self.of}={_short(self.at)}"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault that was asked for.

    >>> str(Fault(kind="slow", workers=(0,), trigger=Trigger("t", 10), size=4.0, lasts_s=20))
    'slow:0=4@t=10+20'
    """

    kind: Kind
    trigger: Trigger
    workers: tuple[int, ...] = ()
    """Of process and membership faults; empty for a node, which has `node`."""
    hosts: tuple[int, ...] = ()
    """Of a kill that `spot` draws, instead of workers: a spare carries none, and is lost like any other."""
    servers: tuple[int, ...] = ()
    """Of a kill, instead of workers."""
    node: str = ""
    """A letter: nodes are named a, b, c, …"""
    size: float = 0.0
    """pause: seconds. slow: the factor on the compute time. slow-disk: seconds that each checkpoint
    takes longer.
    """
    from_size: float | None = None
    """slow: where the factor begins if it grows, evenly, while the fault lasts; `size` then stays."""
    lasts_s: float | None = None
    """slow, cut, full, slow-disk: engine seconds until it is over; None: it stays. kill, node, driver:
    seconds until a new process can be started, of a server until its loss is noticed; None: 0.
    """
    says: Attack | None = None
    """Of a lie."""
    counts: float | None = None
    """Of a lie: for how many seconds, updates or mini-batches, as its trigger counts them; None: it stays.
    Only so are the same results lies on every engine.
    """

    def __str__(self) -> str:
        servers = ",".join(f"s{number}" for number in self.servers)
        who = ",".join(map(str, self.workers)) or self.node or servers
        start = "" if self.from_size is None else f"{_short(self.from_size)}~"
        size = f"={self.says}" if self.says else f"={start}{_short(self.size)}" if self.size else ""
        over = self.counts if self.says else self.lasts_s
        lasts = "" if over is None else f"+{_short(over)}"
        return f"{self.kind}{':' * bool(who)}{who}{size}@{self.trigger}{lasts}"


@dataclass(frozen=True)
class Spot:
    """Hosts, spares among them, that are taken away at random and come back: a Poisson process for each.

    mtbf_s: mean seconds from a host's (re)appearance to its loss. back_s: seconds until a new one
    can be started.
    """

    mtbf_s: float
    back_s: float = 0.0

    def __str__(self) -> str:
        return f"spot:mtbf={_short(self.mtbf_s)},back={_short(self.back_s)}"


@dataclass(frozen=True)
class Crash:
    """A driver that is lost at random and comes back: a Poisson process. In the simulator only.

    mtbf_s: mean seconds from one loss to the next. back_s: seconds until it is back; a loss meanwhile
    starts that time again.
    """

    mtbf_s: float
    back_s: float = 0.0

    def __str__(self) -> str:
        return f"crash:mtbf={_short(self.mtbf_s)},back={_short(self.back_s)}"


def _short(number: float) -> str:
    """Return the shortest text that is read as this number; without a plus, which begins a duration."""
    short = f"{number:g}"
    return (short if float(short) == number else repr(number)).replace("e+", "e")


Faults = tuple[Fault | Spot | Crash, ...]


def named(faults: Iterable[Fault]) -> dict[str, Fault]:
    """Return faults by their texts: a longer list has the same names for those that it begins with.

    >>> two = Fault(kind="driver", trigger=Trigger("t", 9))
    >>> list(named([two, two]))
    ['driver@t=9', 'driver@t=9 #2']
    """
    found: dict[str, Fault] = {}
    counts = Counter[str]()
    for fault in faults:
        counts[text := str(fault)] += 1
        found[text if counts[text] == 1 else f"{text} #{counts[text]}"] = fault
    return found
