"""The law of all strategies that is seen under random faults."""

from __future__ import annotations

from dsgd.conformance.fault_schedule import drawn
from dsgd.conformance.invariants import survives
from dsgd.conformance.shrinking import smallest
from dsgd.conformance.strategy_on_trial import Broken, Subject

SCHEDULES = 80  # of each of 13 modes: more than 1000 in all


def survives_random_faults(subject: Subject) -> None:
    """Whatever faults hit it and whoever leaves or joins, the budget is spent, each mini-batch is taken once,
    and it goes on the same from any update.

    Ask the cluster for its `workers` and `idle` now: next_done() returns None when they have changed, a table
    by worker may lack one, and a worker that has just finished may be about to leave.
    """
    for seed in range(SCHEDULES):
        schedule = drawn(seed, [subject])
        try:
            survives(schedule)
        except Broken:
            small, seen = smallest(schedule)
            raise Broken(seen, small.options) from None
