"""Which faults are due: by time, by update, or by a worker's step. Pure data, without a clock.

What an update or a step triggers is due at once, and happens when the strategy next waits: it has not yet
started all that it wants to. Only the driver is lost at once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsgd.core.rng import Purpose, at
from dsgd.scenario.fault import MEMBERSHIP, Crash, Fault, Faults, Spot, Trigger, named


def outside_at_first(faults: Faults) -> set[int]:
    """Return the workers that begin outside: those whose first leave or join is a join.

    Of faults that a time triggers, the earliest is the first; otherwise the one that is named first.

    >>> from dsgd.scenario.faults_text import parse_faults
    >>> outside_at_first(parse_faults("join:4,5@t=10; leave:5@t=3; leave:4@t=20"))
    {4}
    """
    first: dict[int, Fault] = {}
    for fault in faults:
        if isinstance(fault, Fault) and fault.kind in MEMBERSHIP:
            for worker in fault.workers:
                known = first.setdefault(worker, fault)
                if known.trigger.of == fault.trigger.of and fault.trigger.at < known.trigger.at:
                    first[worker] = fault
    return {worker for worker, fault in first.items() if fault.kind == "join"}


_Timed = tuple[float, int, str | None, int, int, int]
"""When (s), serial number, name of the fault that was asked for or None, process that draws it, host, and how
often that was lost before."""


class Plan:
    """The faults of a run, in the order in which they come due; each is given out once.

    hosts: spares among them, whose losses `spot` draws. ranks: processes of each host, which is lost with the
    first of them, and so G times as often as one.
    """

    def __init__(self, faults: Faults, *, seed: int, hosts: int, ranks: int = 1) -> None:
        self._seed, self._ranks = seed, ranks
        self._asked = named(_triggered_alone(faults))
        self._drawn = [fault for fault in faults if isinstance(fault, Spot | Crash)]
        self._numbers = _numbers(faults)
        self._given: set[str] = set()
        self._due: list[str] = []  # of those given, what waits until the strategy does
        self._by_update: dict[int, list[str]] = {}
        self._by_step: dict[int, list[tuple[int, str]]] = {}
        for name, fault in self._asked.items():
            match fault.trigger:
                case Trigger("update", version):
                    self._by_update.setdefault(int(version), []).append(name)
                case Trigger("step", step):
                    self._by_step.setdefault(fault.workers[0], []).append((int(step), name))
        self._first_losses = [
            self._next_loss(which, host, 0.0, 0)
            for which, process in enumerate(self._drawn)
            for host in range(hosts if isinstance(process, Spot) else 1)
        ]
        self._timed = [*self._waiting(), *self._first_losses]
        heapq.heapify(self._timed)

    def _waiting(self) -> Iterator[_Timed]:
        """Yield the timed faults that were asked for and not given out."""
        for serial, (name, fault) in enumerate(self._asked.items()):
            if fault.trigger.of == "t" and name not in self._given:
                yield fault.trigger.at, serial, name, -1, -1, 0

    @property
    def next_s(self) -> float:
        """When the next timed fault is due, in engine seconds; inf without any."""
        return self._timed[0][0] if self._timed else math.inf

    @property
    def left(self) -> Sequence[str]:
        """The faults that were asked for and have not happened."""
        return [name for name in self._asked if name not in self._given or name in self._due]

    @property
    def will_join(self) -> bool:
        """Whether a worker joins at a time that is still to come."""
        return any(name is not None and self._asked[name].kind == "join" for _, _, name, *_ in self._timed)

    def pop_timed(self) -> tuple[float, Fault]:
        """Return the next timed fault, and when (engine s) it is due."""
        return self._give(heapq.heappop(self._timed))

    def _give(self, entry: _Timed) -> tuple[float, Fault]:
        at_s, _, name, which, host, count = entry
        if name is not None:
            self._given.add(name)
            return at_s, self._asked[name]
        process, trigger = self._drawn[which], Trigger("t", at_s)
        if isinstance(process, Crash):
            begins_s, following = at_s, self._next_loss(which, host, at_s, count + 1)
            while following[0] < begins_s + process.back_s:  # lost again: it begins to come back again
                begins_s, following = (
                    following[0],
                    self._next_loss(which, host, following[0], following[5] + 1),
                )
            heapq.heappush(self._timed, following)
            lasts_s = begins_s - at_s + process.back_s
            return at_s, Fault(kind="driver", trigger=trigger, lasts_s=lasts_s)
        heapq.heappush(self._timed, self._next_loss(which, host, at_s + process.back_s, count + 1))
        return at_s, Fault(kind="kill", hosts=(host,), trigger=trigger, lasts_s=process.back_s)

    def at_update(self, version: int) -> Sequence[Fault]:
        """Return the faults that this version of the weights triggers; all but the driver's are due."""
        return self._enter(self._by_update.get(version, ()))

    def at_step(self, worker: int, step: int, batches: int) -> None:
        """Enter as due the faults that `worker` triggers by starting mini-batches [step, step + batches)."""
        if worker in self._by_step:
            self._enter([name for k, name in self._by_step[worker] if step <= k < step + batches])

    def _enter(self, triggered: Sequence[str]) -> Sequence[Fault]:
        new = [name for name in triggered if name not in self._given]
        self._given.update(new)
        self._due += [name for name in new if self._asked[name].kind != "driver"]
        return [self._asked[name] for name in new]

    def put_off(self, fault: Fault) -> None:
        """Have a fault that was asked for, and given out, be due when the strategy next waits."""
        self._due.append(next(name for name, asked in self._asked.items() if asked == fault))

    def pop_due(self, now_s: float) -> Fault | None:
        """Take out the next fault that is due, of the timed ones those up to `now_s`; None without any."""
        if self._due:
            return self._asked[self._due.pop(0)]
        return self.pop_timed()[1] if self.next_s <= now_s else None

    def _next_loss(self, which: int, host: int, since_s: float, count: int) -> _Timed:
        process = self._drawn[which]
        ranks = self._ranks if isinstance(process, Spot) else 1
        gap_s = at(self._seed, Purpose.FAULT, host, which << 32 | count).exponential(process.mtbf_s / ranks)
        return since_s + float(gap_s), len(self._asked) + host, None, which, host, count

    def position(self) -> Mapping[str, Any]:
        """Return, as JSON values, which faults have been given out, and which of them are still due."""
        return {
            "given": sorted(self._given),
            "due": list(self._due),
            "losses": sorted(
                [which, host, n, t_s] for t_s, _, name, which, host, n in self._timed if not name
            ),
        }

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Go on from a position: what was given out then is not given again.

        It may be that of a plan with fewer faults, if the others are due later. Raises ValueError for one
        with others.
        """
        self._given = {self._numbers.get(name, name) for name in position["given"]}
        self._due = list(position.get("due", ()))  # earlier versions did not keep it
        if others := {*self._given, *self._due} - self._asked.keys():
            raise ValueError(f"{others.pop()!r} is none of the run's faults")
        drawn = {(which, host): (n, t_s) for which, host, n, t_s in position["losses"]}
        self._timed = [*self._waiting()]
        for t_s, serial, _, which, host, n in self._first_losses:
            n, t_s = drawn.get((which, host), (n, t_s))
            self._timed.append((t_s, serial, None, which, host, n))
        heapq.heapify(self._timed)


def _triggered_alone(faults: Faults) -> Iterator[Fault]:
    """Yield the faults that were asked for; one that several workers' steps trigger, once for each."""
    for fault in faults:
        if isinstance(fault, Fault) and fault.trigger.of == "step":
            yield from (replace(fault, workers=(worker,)) for worker in fault.workers)
        elif isinstance(fault, Fault):
            yield fault


def _numbers(faults: Faults) -> Mapping[Any, str]:
    """Return the names of faults by the numbers that stood for them in positions of older checkpoints."""
    asked = [fault for fault in faults if isinstance(fault, Fault)]
    numbers = [
        number
        for index, fault in enumerate(asked)
        for number in (
            [~(worker * len(asked) + index) for worker in fault.workers]
            if fault.trigger.of == "step"
            else [index]
        )
    ]
    return dict(zip(numbers, named(_triggered_alone(faults)), strict=True))
