"""A law of all strategies, which check takes from here: a checkout has it, a wheel does not."""

from __future__ import annotations

from dsgd.conformance.strategy_on_trial import Broken, Subject
from dst.fault_schedule import drawn
from dst.invariants import survives
from dst.shrinking import smallest

SCHEDULES = 80  # of each of 18 modes: more than 1,400 in all


def survives_random_faults(subject: Subject, schedules: int = SCHEDULES) -> None:
    """Whatever faults hit it and whoever leaves or joins, the budget is spent, each mini-batch is taken once,
    and it goes on the same from any update.

    Ask the cluster for its `workers` and `idle` now: next_done() returns None when they have changed, a table
    by worker may lack one, and a worker that has just finished may be about to leave.
    """
    for seed in range(schedules):
        schedule = drawn(seed, [subject])
        try:
            survives(schedule)
        except Broken:
            small, seen = smallest(schedule)
            raise Broken(seen, small.options) from None
