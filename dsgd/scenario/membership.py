"""Who is a member when a run begins."""

from __future__ import annotations

from dsgd.scenario.fault import MEMBERSHIP, Fault, Faults


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
