"""Makes a schedule that breaks an invariant as small as it gets: fewer faults, options, workers and steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from dsgd.conformance.strategy_on_trial import Broken
from dst.fault_schedule import FaultSchedule
from dst.invariants import survives
from dst.recorded_schedules import is_kept

ALL_CUTS = 24

_KEPT = ("num_workers", "steps", "seed", "faults")  # all others are left out where they have no part in it
_SIMPLER: dict[str, tuple[Any, ...]] = {
    "seed": (0,),
    "compute_time": ("constant:1", "exponential:1"),
    "workload": ("quadratic",),
}


def shrunk(schedule: FaultSchedule, fails: Callable[[FaultSchedule], bool]) -> FaultSchedule:
    """Return a schedule that still fails, but would not if any one thing more were taken out."""
    while (smaller := next(filter(fails, _smaller(schedule)), None)) is not None:
        schedule = smaller
    return schedule


def _smaller(schedule: FaultSchedule) -> Iterator[FaultSchedule]:
    """Yield schedules with one thing less, those that save most first; some may not be possible."""
    faults, options = schedule.faults, schedule.options
    for n in range(len(faults)):
        yield schedule.having(faults="; ".join(faults[:n] + faults[n + 1 :]))
    for name in options:
        if name not in _KEPT or not options[name]:
            yield FaultSchedule(schedule.subject, {k: v for k, v in options.items() if k != name})
    for name, least in (("steps", 1), ("num_workers", 1)):
        value = options[name]
        yield from (schedule.having(**{name: n}) for n in (value // 2, value - 1) if least <= n < value)
    for name, values in _SIMPLER.items():
        if name in options and options[name] not in values:
            yield from (schedule.having(**{name: value}) for value in values)
    for n, fault in enumerate(faults):
        for simpler in _simpler(fault):
            yield schedule.having(faults="; ".join([*faults[:n], simpler, *faults[n + 1 :]]))


def _simpler(fault: str) -> Iterator[str]:
    """Yield a fault that hits one worker less, does not last, comes earlier or has rounder numbers."""
    kind, _, rest = fault.partition(":")
    who = rest.partition("=")[0].partition("@")[0]
    if "," in who:
        yield from (f"{kind}:{one}{rest.removeprefix(who)}" for one in who.split(","))
    if kind in ("kill", "node", "slow") and "+" in fault:
        yield fault.rpartition("+")[0]
    due = re.search(r"@(?:t|update|step)=(\d+)", fault)
    if due and int(due[1]) > 1:
        yield fault[: due.start(1)] + str(int(due[1]) // 2) + fault[due.end(1) :]
    for found in re.finditer(r"(?<=[=+~])\d+\.\d+", fault):
        for rounded in (round(float(found[0])), round(float(found[0]), 1)):
            if rounded and str(rounded) != found[0]:
                yield fault[: found.start()] + str(rounded) + fault[found.end() :]


def broken_invariant(schedule: FaultSchedule, cuts: int = ALL_CUTS) -> Broken | None:
    """Return the first invariant that a schedule breaks, also when started again at so many updates; with
    checkpoints, of its record too.
    """
    try:
        survives(schedule, cuts)
        if "checkpoint_every" in schedule.options:
            is_kept(schedule, cuts)
    except Broken as broken:
        return broken
    except ValueError:  # its options do not go together
        return None
    return None


def smallest(schedule: FaultSchedule) -> tuple[FaultSchedule, str]:
    """Return the smallest schedule that still breaks the invariant, and what was seen there."""
    cuts = 0 if broken_invariant(schedule, 0) else ALL_CUTS  # most failures need none
    first = _kind(broken_invariant(schedule, cuts))
    small = shrunk(schedule, lambda smaller: _kind(broken_invariant(smaller, cuts)) == first)
    return small, str(broken_invariant(small, cuts))


def _kind(broken: Broken | None) -> str:
    """Return which invariant it is that is broken: what was seen, without its numbers."""
    return re.sub(r"[\d\W]+", " ", str(broken))[:40]
