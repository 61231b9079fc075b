"""Faults that cannot happen as they are asked for: found before a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsgd.scenario.fault import MEMBERSHIP, STORE, Crash, Fault, Faults, Spot
from dsgd.scenario.fault_plan import outside_at_first


def impossible(faults: Faults, *, num_workers: int, nodes: int, budget: int, masked: bool) -> str | None:
    """Return what is wrong with the faults of a run, in words; None if they can all happen.

    budget: the run's mini-batches. masked: whether losses of hosts leave the members as they are; members
    that such losses take away, or bring back, are not known before.
    """
    asked = [fault for fault in faults if isinstance(fault, Fault)]
    return next((words for fault in asked for words in _alone(fault, num_workers, nodes, budget)), None) or (
        _together(asked, num_workers, masked or not takes_processes(faults))
    )


def takes_processes(faults: Faults) -> bool:
    """Whether any of the faults ends a process that carries workers."""
    takers = ("kill", "node")
    return any(
        isinstance(fault, Spot) or (isinstance(fault, Fault) and fault.kind in takers and not fault.servers)
        for fault in faults
    )


def first_of(faults: Faults, kinds: Sequence[str]) -> Fault | None:
    """Return the first fault of one of these kinds, if there is one."""
    return next((fault for fault in faults if isinstance(fault, Fault) and fault.kind in kinds), None)


def unmet(never: Sequence[str]) -> list[str]:
    """Return a line about the faults that were asked for and never happened, if there are any."""
    more = f" and {len(never) - 3} more" if never[3:] else ""
    said = f"the run was over before these faults could happen: {'; '.join(never[:3])}{more}"
    return [said] if never else []


def _alone(fault: Fault, num_workers: int, nodes: int, budget: int) -> Iterator[str]:
    if any(worker >= num_workers for worker in fault.workers):
        yield f"'{fault}': workers are numbered 0 to {num_workers - 1}; name only those"
    if fault.node and ord(fault.node) - ord("a") >= nodes:
        there = ", ".join(map(chr, range(ord("a"), ord("a") + nodes)))
        yield f"'{fault}': --nodes {nodes} gives only {there}; name one of those, or raise --nodes"
    if fault.trigger.of == "update" and fault.trigger.at > budget:
        yield f"'{fault}': the run makes at most {budget} updates; choose an earlier one"


def _together(asked: Sequence[Fault], num_workers: int, known: bool) -> str | None:
    """Follow the members, as far as it is known when they change."""
    changes = [fault for fault in asked if fault.kind in MEMBERSHIP]
    members = set(range(num_workers)) - outside_at_first(tuple(changes))
    if not members:
        return "all workers begin outside, as each one's first fault is a join; leave one of them in"
    leavers = {worker for fault in changes if fault.kind == "leave" for worker in fault.workers}
    if len(leavers) == num_workers and all(fault.kind == "leave" for fault in changes):
        return "all members leave, and none joins; leave one of them in, or add a join"
    if not known or any(fault.trigger.of != "t" for fault in changes):
        return None
    order = sorted(changes, key=lambda fault: fault.trigger.at)
    for n, fault in enumerate(order):
        for worker in fault.workers:
            if (worker in members) == (fault.kind == "join"):
                state = "a member already" if worker in members else "no member"
                return f"'{fault}': worker {worker} is {state} at that time; leave it out"
        members = members | {*fault.workers} if fault.kind == "join" else members - {*fault.workers}
        if not members and not any(later.kind == "join" for later in order[n:]):
            return f"'{fault}': then all members have left, and none joins; add a join"
    return None


def only_with_backups(faults: Faults, servers: int) -> str | None:
    """Return which fault kills a server that has no backup, in words; None if there is none.

    servers: those that have one.
    """
    for fault in faults:
        if isinstance(fault, Fault) and any(number >= servers for number in fault.servers):
            if not servers:
                rule = "no server has a backup that could take over; give --topology sharded:2,replicas=2"
                return f"'{fault}': {rule}"
            return f"'{fault}': servers are numbered s0 to s{servers - 1}; name only those"
    return None


def only_with_checkpoints(faults: Faults) -> str | None:
    """Return which fault hits checkpoints, in words; None if there is none."""
    found = first_of(faults, STORE)
    return None if found is None else f"'{found}' needs checkpoints to hit; give --checkpoint-every"


def only_simulated(faults: Faults) -> str | None:
    """Return which fault only the simulator can do, in words; None if there is none."""
    if crash := next((fault for fault in faults if isinstance(fault, Crash)), None):
        return f"'{crash}': only a simulated driver is started again; use driver@update=, or --engine sim"
    for fault in faults:
        if isinstance(fault, Fault) and fault.servers and fault.lasts_s is not None:
            return (
                f"'{fault}': how long it takes to notice a real server's loss is not an option; leave the "
                "duration out, or use --engine sim"
            )
    found = first_of(faults, ("driver",))
    if found is None or found.lasts_s is None:
        return None
    return (
        f"'{found}': nothing starts a real driver again after +{found.lasts_s:g} s; leave the duration out, "
        "or use --engine sim"
    )
