"""Many schedules of random faults, and what happened in them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsgd.conformance.strategy_on_trial import Broken, Subject
from dst.fault_schedule import drawn
from dst.invariants import survives
from dst.recorded_schedules import drawn_for_a_record, is_kept


@dataclass
class Counted:
    """What happened in many schedules."""

    schedules: Counter[str] = field(default_factory=Counter)
    """By mode."""
    updates: Counter[str] = field(default_factory=Counter)
    """By mode."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    """By mode."""
    faults: Counter[str] = field(default_factory=Counter)
    """By kind."""
    restarted: int = 0
    compared: int = 0
    resumed: int = 0
    broken: list[tuple[int, str]] = field(default_factory=list)
    """Seeds, and the first invariant that did not hold."""

    def add(self, other: Counted) -> None:
        """Count what happened in other schedules too."""
        self.schedules += other.schedules
        self.updates += other.updates
        for mode, cpu_s in other.cpu_s.items():
            self.cpu_s[mode] = self.cpu_s.get(mode, 0.0) + cpu_s
        self.faults += other.faults
        self.restarted += other.restarted
        self.compared += other.compared
        self.resumed += other.resumed
        self.broken += other.broken


def many(seeds: range, subjects: Sequence[Subject], records: bool = False) -> Counted:
    """Run the schedules of these seeds, with `records` those that have one too, and count what happened."""
    counted = Counted()
    for seed in seeds:
        began_s = time.process_time()
        schedule = drawn(seed, subjects)
        mode = schedule.subject.mode
        try:
            survived = survives(schedule)
            if records:
                counted.resumed += is_kept(drawn_for_a_record(seed, subjects))
        except Broken as broken:
            counted.broken.append((seed, str(broken)))
        else:
            counted.updates[mode] += survived.updates
            counted.faults += Counter(survived.faults)
            counted.restarted += survived.restarted
            counted.compared += survived.compared
        counted.schedules[mode] += 1
        counted.cpu_s[mode] = counted.cpu_s.get(mode, 0.0) + time.process_time() - began_s
    return counted
