"""How many members a run had, from update to update, and what the closed forms say of each stretch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.scenario.fault import MEMBERSHIP
from dsgd.scenario.fault_options import FaultConfig
from dsgd.scenario.fault_plan import outside_at_first
from dsgd.theory.assumptions import NoClosedForm


class Stretch(NamedTuple):
    """Updates with the same members."""

    after: int
    """The version of the weights with which it begins."""
    members: int


def stretches(cfg: TrainConfig, faults: Sequence[FaultSeen]) -> list[Stretch]:
    """Return the stretches of a run, in order, from the leaves and joins that it saw.

    >>> left = FaultSeen(9.0, "leave", (1,), True, 20, 20, "")
    >>> seen = [left, left._replace(t_s=9.5, kind="join", update=40)]
    >>> stretches(TrainConfig(mode="asgd", num_workers=4), seen)
    [Stretch(after=0, members=4), Stretch(after=20, members=3), Stretch(after=40, members=4)]
    """
    present = set(range(cfg.num_workers)) - outside_at_first(cfg.fault.fault_list)
    found = [Stretch(0, len(present))]
    for fault in sorted((f for f in faults if f.kind in MEMBERSHIP), key=lambda f: (f.t_s, f.update)):
        present = present - {*fault.workers} if fault.kind == "leave" else present | {*fault.workers}
        if found[-1].after == fault.update:
            found.pop()
        if not found or found[-1].members != len(present):
            found.append(Stretch(fault.update, len(present)))
    return found


def with_members(cfg: TrainConfig, members: int) -> TrainConfig:
    """Return the options of a run with only so many workers, all equal.

    Raises ValueError where the strategy needs more of them, NoClosedForm where they are not equal: then it
    matters who is away.
    """
    if members == cfg.num_workers and not cfg.fault.fault_list:
        return cfg
    if any(factor != 1 for factor in cfg.timing.slowdowns.values()):
        raise NoClosedForm("the formula is for members that are equal")
    return replace(cfg, num_workers=members, fault=FaultConfig())


def mean_over(values: Sequence[tuple[int, float]], first: int, last: int) -> float:
    """Return the mean over the updates (first, last] of a value that changes at some of them.

    values: (the version after which it holds, value), in order.

    >>> mean_over([(0, 4.0), (10, 3.0)], 5, 15)
    3.5
    >>> mean_over([(0, 11.049700490368215)], 0, 25)
    11.049700490368215
    """
    ends = [after for after, _ in values[1:]] + [last]
    shares = [
        max(0, min(end, last) - max(after, first)) / (last - first)
        for (after, _), end in zip(values, ends, strict=True)
    ]
    # Shares first: a value that never changes is its own mean, to the last bit.
    return sum(share * value for share, (_, value) in zip(shares, values, strict=True))
