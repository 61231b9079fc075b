"""Faults that were asked for, made to happen for real, and timers for what is to be done later.

Processes and nodes end, hosts are stopped, slowed or cut off.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence

from dsgd.engines.ray.driver.host_process import HostProcess, end_node, kill_from_outside
from dsgd.scenario.fault import Fault
from dsgd.scenario.supervisor import Supervisor


class Timers:
    """Actions with the times at which they are due; one with the same time as another comes after it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Have something done in `delay_s` seconds, when `run_due` is called then."""
        heapq.heappush(self._waiting, (time.perf_counter() + delay_s, next(self._serials), action))

    def run_due(self) -> None:
        """Do what is due, the earliest first."""
        while self._waiting and self._waiting[0][0] <= time.perf_counter():
            heapq.heappop(self._waiting)[2]()

    @property
    def left_s(self) -> float:
        """Seconds until something is due; inf: nothing waits."""
        return self._waiting[0][0] - time.perf_counter() if self._waiting else math.inf


class RayFaults:
    """Begins faults of processes, and ends those that pass.

    running: the processes by host, as they are now. clock_s: engine seconds. passed: called when one of those
    that pass is over.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        timers: Timers,
        running: Mapping[int, HostProcess],
        clock_s: Callable[[], float],
        passed: Callable[[], None],
    ) -> None:
        self._supervisor, self._timers, self._running = supervisor, timers, running
        self._clock_s, self._passed = clock_s, passed
        self._slow: list[Callable[[int, float], float]] = []  # factor of a host at an engine second
        self.cut: set[int] = set()
        """Hosts with which no messages are exchanged."""
        self._ending: set[HostProcess] = set()

    @property
    def unheard(self) -> set[int]:
        """Hosts whose answers do not count: they are cut off, or a fault is ending them.

        The call that ends a process may come after its next tasks: what it does until then never happened,
        so that a fault falls on the task for which it was asked.
        """
        if self._ending:
            self._ending = {process for process in self._ending if not process.ended}
            return self.cut.union(p.host for p in self._ending if self._running.get(p.host) is p)
        return self.cut

    def slower(self, host: int) -> float:
        """Return by what factor a host computes slower now."""
        product = 1.0
        for factor in self._slow:
            product *= factor(host, self._clock_s())
        return product

    def end_processes(self, fault: Fault, hosts: Sequence[int]) -> None:
        """End the processes of these hosts; or, if the fault is of a node, the node that all of them are on.

        The fault is over when their loss has been noticed and made good.
        """
        book = self._supervisor.book
        living = [host for host in hosts if not book.expecting(host)]
        book.expect(fault.kind, living, fault.lasts_s or 0.0)
        self._ending.update(self._running[host] for host in living)
        if fault.kind == "node":
            for host in hosts[:1]:
                end_node(self._running[host].node_id)
            return
        pauses = [other.passing for other in book.open if other.seen.kind == "pause"]
        for host in hosts:
            process = self._running[host]
            if process.pid and any(host in stopped for stopped in pauses):
                kill_from_outside(process)
            else:
                process.actor.end_process.remote()

    def disturb(self, fault: Fault, hosts: Sequence[int]) -> None:
        """Stop, slow or cut off hosts for some time."""
        if fault.kind == "pause":
            hosts = [host for host in hosts if host in self._running]
        passing, book = self._supervisor.disturb(fault.kind, hosts), self._supervisor.book
        lasts_s = fault.size if fault.kind == "pause" else fault.lasts_s
        factor = _factor(fault, hosts, self._clock_s())
        if fault.kind == "slow":
            self._slow.append(factor)
        if fault.kind == "cut":
            self.cut.update(hosts)
        if fault.kind == "pause":
            for host in hosts:
                self._running[host].actor.stand_still.remote(fault.size)

        def passes() -> None:
            if fault.kind == "slow":
                self._slow.remove(factor)
            book.end(passing)
            cut = [other.passing for other in book.open if other.seen.kind == "cut"]
            self.cut = {host for hosts in cut for host in hosts}
            self._passed()

        if lasts_s is not None and fault.from_size is None:
            self._timers.after(lasts_s, passes)


def _factor(fault: Fault, hosts: Sequence[int], began_s: float) -> Callable[[int, float], float]:
    """Return by what factor a host is slower at an engine second because of a fault; it may grow."""

    def factor(host: int, now_s: float) -> float:
        if host not in hosts:
            return 1.0
        if fault.from_size is None:
            return fault.size
        share = min(1.0, (now_s - began_s) / fault.lasts_s) if fault.lasts_s else 1.0
        return fault.from_size + (fault.size - fault.from_size) * share

    return factor
