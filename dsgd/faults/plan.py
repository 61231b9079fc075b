"""Which faults are due: by time, by update, or by a worker's step. Pure data, without a clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dsgd.faults.fault import Crash, Fault, Faults, Spot, Trigger
from dsgd.work.rng import Purpose, at

_Timed = tuple[float, int, int | None, int, int, int]
"""When (s), serial number, index of the fault that was asked for or None, process that draws it, host, and
how often that was lost before."""


class Plan:
    """The faults of a run, in the order in which they come due; each is given out once.

    hosts: spares among them, whose losses `spot` draws. ranks: processes of each host, which is lost with the
    first of them, and so G times as often as one.
    """

    def __init__(self, faults: Faults, *, seed: int, hosts: int, ranks: int = 1) -> None:
        self._seed, self._ranks = seed, ranks
        self._asked = [fault for fault in faults if isinstance(fault, Fault)]
        self._drawn = [fault for fault in faults if isinstance(fault, Spot | Crash)]
        self._given: set[int] = set()
        self._timed: list[_Timed] = []
        self._by_update: dict[int, list[int]] = {}
        self._by_step: dict[int, list[tuple[int, int]]] = {}
        for index, fault in enumerate(self._asked):
            match fault.trigger:
                case Trigger("t", at_s):
                    self._timed.append((at_s, index, index, -1, -1, 0))
                case Trigger("update", version):
                    self._by_update.setdefault(int(version), []).append(index)
                case Trigger("step", step):
                    for worker in fault.workers:
                        self._by_step.setdefault(worker, []).append((int(step), index))
        for which, process in enumerate(self._drawn):
            for host in range(hosts if isinstance(process, Spot) else 1):
                self._timed.append(self._next_loss(which, host, 0.0, 0))
        heapq.heapify(self._timed)

    @property
    def next_s(self) -> float:
        """When the next timed fault is due, in engine seconds; inf without any."""
        return self._timed[0][0] if self._timed else math.inf

    @property
    def will_join(self) -> bool:
        """Whether a worker joins at a time that is still to come."""
        return any(index is not None and self._asked[index].kind == "join" for _, _, index, *_ in self._timed)

    def pop_timed(self) -> tuple[float, Fault]:
        """Return the next timed fault, and when (engine s) it is due."""
        return self._give(heapq.heappop(self._timed))

    def pop_driver(self, until_s: float) -> tuple[float, Fault] | None:
        """Return the next timed loss of the driver if it is due by then, though others may be due before."""
        due = [entry for entry in self._timed if entry[0] <= until_s and self._is_driver(entry)]
        if not due:
            return None
        self._timed.remove(min(due))
        heapq.heapify(self._timed)
        return self._give(min(due))

    def _is_driver(self, entry: _Timed) -> bool:
        _, _, index, which, _, _ = entry
        return isinstance(self._drawn[which], Crash) if index is None else self._asked[index].kind == "driver"

    def _give(self, entry: _Timed) -> tuple[float, Fault]:
        at_s, _, index, which, host, count = entry
        if index is not None:
            self._given.add(index)
            return at_s, self._asked[index]
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
        """Return the faults that this version of the weights triggers."""
        return self._take(self._by_update.get(version, ()))

    def at_step(self, worker: int, step: int, batches: int) -> Sequence[Fault]:
        """Return the faults that `worker` triggers by starting mini-batches [step, step + batches)."""
        if worker not in self._by_step:
            return ()
        due = [index for k, index in self._by_step[worker] if step <= k < step + batches]
        return [Fault(**{**vars(fault), "workers": (worker,)}) for fault in self._take(due, worker)]

    def _take(self, due: Sequence[int], worker: int = -1) -> list[Fault]:
        found = []
        for index in due:
            key = index if worker < 0 else ~(worker * len(self._asked) + index)
            if key not in self._given:
                self._given.add(key)
                found.append(self._asked[index])
        return found

    def _next_loss(self, which: int, host: int, since_s: float, count: int) -> _Timed:
        process = self._drawn[which]
        ranks = self._ranks if isinstance(process, Spot) else 1
        gap_s = at(self._seed, Purpose.FAULT, host, which << 32 | count).exponential(process.mtbf_s / ranks)
        return since_s + float(gap_s), len(self._asked) + host, None, which, host, count

    def position(self) -> Mapping[str, Any]:
        """Return, as JSON values, which faults have been given out."""
        return {
            "given": sorted(self._given),
            "losses": [
                [which, host, count, t_s] for t_s, _, i, which, host, count in self._timed if i is None
            ],
        }

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Go on from a position: what was given out then is not given again."""
        self._given = set(position["given"])
        asked = [
            (f.trigger.at, i, i, -1, -1, 0)
            for i, f in enumerate(self._asked)
            if f.trigger.of == "t" and i not in self._given
        ]
        drawn = [
            (t_s, len(self._asked) + host, None, which, host, count)
            for which, host, count, t_s in position["losses"]
        ]
        self._timed = [*asked, *drawn]
        heapq.heapify(self._timed)
