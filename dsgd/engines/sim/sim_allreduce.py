"""The simulator with an all-reduce: the weights are with the workers, who combine their results themselves.

A task needs no message, as its worker has the weights, and its value stays where it is; the driver sees
losses and times. `combine` takes time: the clock moves on until every worker has the new weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from dsgd.core import rules
from dsgd.core.cluster_state import ClusterState
from dsgd.core.model import Workload
from dsgd.core.protocol import ClusterError, Done, TimeUp, WeightsLost
from dsgd.core.rules import Rule
from dsgd.core.tasks import Task
from dsgd.core.timing import ComputeTimes
from dsgd.core.traffic import MessageSizes
from dsgd.core.weights import Vector, Weights
from dsgd.engines.sim.sim import SimCluster
from dsgd.engines.sim.sim_hosts import QUESTION, Copy
from dsgd.engines.sim.sim_with_faults import HostedCluster
from dsgd.scenario.allreduce import AllReduce
from dsgd.scenario.fault import Fault
from dsgd.scenario.star import Network

_Process: TypeAlias = tuple[int, int]
"""A host, and which of its processes."""


class AllReduceCluster(SimCluster):
    """Simulates workers that all-reduce; the other arguments are those of SimCluster.

    padding_bytes: added to each vector, as to the messages of the other topologies.
    """

    def __init__(
        self,
        workload: Workload,
        times: ComputeTimes,
        topology: AllReduce,
        *,
        padding_bytes: int = 0,
        **others: Any,
    ) -> None:
        super().__init__(workload, times, Network(), **others)
        self._topology = topology
        self._vectors = MessageSizes(workload.objective.num_weights, padding_bytes)
        self._sizes = MessageSizes(workload.objective.num_weights, padding_bytes, peers=True)
        self._whole_bytes = self._sizes.of_whole
        self._tasks: dict[int, Task] = {}
        self._fetched = 0, False  # which version, and whether with its slots

    def start(self, worker: int, task: Task, w: Weights) -> None:
        self._tasks[worker] = task
        super().start(worker, task, w)

    def combine(  # type: ignore[override]
        self, rule: Rule, w: Weights, dones: Sequence[Done]
    ) -> Weights:
        members = sorted({done.worker for done in dones})
        assert {done.read for done in dones} == {w.version}, "an all-reduce needs results of one version"
        num_bytes = max(self._vectors.to_server(self._tasks[worker]) for worker in members)
        hidden_s = max(done.finished_s for done in dones) - max(map(self._value_made_s, dones))
        self._exchange(dones, self._topology.seconds(members, num_bytes), hidden_s)
        sent = self._topology.sent(members, num_bytes)
        self._ledger.traffic.exchanged(members, sent, self._topology.received(members, num_bytes))
        return rules.combine(rule, w, dones)

    def _exchange(self, dones: Sequence[Done], seconds: float, hidden_s: float) -> None:
        """Let the time pass that the workers take to combine their results. Raises TimeUp.

        hidden_s: for so long they have exchanged already, while they computed.
        """
        members = {done.worker for done in dones}
        assert members == {*self.workers}, "an all-reduce needs a result of every member"
        made_s = self.now_s + max(0.0, seconds - hidden_s)
        self.now_s = min(made_s, self._deadline_s)
        if made_s > self._deadline_s:
            raise TimeUp

    def _value_made_s(self, done: Done) -> float:
        """Return when a task's value was made: before its end, if it has mini-batches that come later."""
        late: int = getattr(self._tasks[done.worker], "late", 0)
        if not late:
            return done.finished_s
        return done.finished_s - self._times.total(done.worker, done.step + done.batches - late, late)

    def fetch(self, w: Weights, *, slots: bool = False) -> None:
        version, had_slots = self._fetched
        if w.version == 0 or (w.version == version and (had_slots or not slots)):
            return
        vectors = int(w.version != version) + (len(w.slots) if slots else 0)
        self._ledger.traffic.fetched[self.workers[0]] += vectors * self._vectors.vector
        self._fetched = w.version, slots

    def values(self, dones: Sequence[Done]) -> Mapping[int, Vector]:
        for done in dones:
            self._ledger.traffic.fetched[done.worker] += self._vectors.vector
        return super().values(dones)

    def state(self) -> ClusterState:
        state = super().state()
        return replace(state, engine={**state.engine, "fetched": list(self._fetched)})

    def restore(self, state: ClusterState) -> None:
        super().restore(state)
        self._tasks = {flight.worker: flight.task for flight in state.flights}
        version, slots = state.engine.get("fetched", (0, False))
        self._fetched = version, slots


class HostedAllReduce(AllReduceCluster, HostedCluster):
    """The same with hosts and faults, as `allreduce` has them.

    A process that is lost takes its workers' values and its copy of the weights with it. Another computes the
    values again, once all others are there; then a new group is formed, and the exchange begins anew.

    regroup_s: how long that takes, until a new process has the weights and all know each other.
    Raises WeightsLost if all processes with the weights were lost at once.
    """

    def __init__(self, *arguments: Any, regroup_s: float = 0.0, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self._regroup_s = regroup_s
        self._processes = [0] * len(self._sims)  # by host: the number of its process
        self._values_at: dict[int, _Process] = {}  # by worker: where the value of its last task is
        self._again: dict[int, tuple[int, int]] = {}  # by copy: whose task is repeated, and where
        self._group: list[_Process] = []  # of the last exchange: they have the weights

    def _exchange(self, dones: Sequence[Done], seconds: float, hidden_s: float) -> None:
        left_s = max(0.0, seconds - hidden_s)
        while True:
            if self._compute_again(dones):
                left_s = seconds
            group = sorted({self._values_at[done.worker] for done in dones})
            if self._group and group != self._group:
                left_s += self._regroup_s
            until_s = self.now_s + left_s
            while all(map(self._lives, group)):
                # Whoever stands still, or is cut off, holds up all.
                until_s = max([until_s, *(self._silent_until_s(process) for process in group)])
                if self._next_event_s() >= until_s:
                    self._wait(until_s)
                    self._group = group
                    return
                self._pass_event()
            left_s = seconds

    def _compute_again(self, dones: Sequence[Done]) -> bool:
        """Have the values that were lost computed again; return whether there were any."""
        any_lost = False
        while lost := [done for done in dones if not self._lives(self._values_at[done.worker])]:
            any_lost = True
            under_way = {worker for worker, _ in self._again.values()}
            for done in lost:
                host = self._hosts.place(done.worker, self.now_s)
                if done.worker not in self._ledger.workers:  # it left with its process: any other will do
                    host = next(filter(self._is_reached, range(len(self._sims))), host)
                if done.worker not in under_way and self._hosts.alive[host]:
                    self._send_again(done, host)
            if self._next_event_s() == math.inf:
                raise ClusterError(f"worker {lost[0].worker}: its process is given up; give --restarts more")
            self._pass_event()
        return any_lost

    def _is_reached(self, host: int) -> bool:
        return self._hosts.alive[host] and self._sims[host].cut_until_s <= self.now_s

    def _send_again(self, done: Done, host: int) -> None:
        self._serial += 1
        compute_s = self._times.total(done.worker, done.step, done.batches)
        copy = Copy(
            number=self._serial,
            worker=QUESTION,  # no result comes in
            serial=0,
            host=host,
            arrived_s=self.now_s,
            left_s=compute_s,
        )
        self._again[copy.number] = done.worker, host
        self._sims[host].add(copy)
        if self._sims[host].queue[0] is copy:
            self._expect(host)

    def _leaves(self, copy: Copy) -> None:
        worker, _ = self._again.pop(copy.number, (copy.worker, copy.host))
        if copy.worker != QUESTION or worker == QUESTION:
            super()._leaves(copy)
        if worker != QUESTION:
            self._values_at[worker] = copy.host, self._processes[copy.host]

    def _lose(self, fault: Fault, lost: Sequence[int]) -> None:
        for host in lost:
            self._processes[host] += 1
        self._again = {n: (worker, host) for n, (worker, host) in self._again.items() if host not in lost}
        super()._lose(fault, lost)
        if self._group and not any(map(self._lives, self._group)):
            raise self._lost_weights()

    def _lost_weights(self) -> ClusterError:
        """Close the losses of processes; return that the weights are lost until all have new ones."""
        back_s = [at_s for at_s, _, number, _, _ in self._future if number in self._back_of]
        if not back_s:
            return ClusterError("all processes are given up; give --restarts more")
        until_s, book = max(back_s), self._supervisor.book
        for fault in list(book.open):
            if fault.seen.kind in ("kill", "node"):
                book.close(fault, until_s - fault.seen.t_s)
        version = self._supervisor.book.version
        return WeightsLost(
            f"all processes that held version {version} of the weights were lost at once; give "
            "--checkpoint-every, to go on from there, or --faults that leave one of them",
            until_s - self.now_s,
        )

    def _lives(self, process: _Process) -> bool:
        host, number = process
        return self._processes[host] == number

    def _silent_until_s(self, process: _Process) -> float:
        sim = self._sims[process[0]]
        return max(sim.paused_until_s, sim.cut_until_s)

    def _pass_event(self) -> None:
        self._wait(self._next_event_s())
        super()._pass_event()

    def _wait(self, until_s: float) -> None:
        self.now_s = min(max(self.now_s, until_s), self._deadline_s)
        if until_s > self._deadline_s:
            raise TimeUp

    def state(self) -> ClusterState:
        state = super().state()
        reducing = {
            "processes": list(self._processes),
            "values_at": [[worker, *process] for worker, process in self._values_at.items()],
            "group": [list(process) for process in self._group],
        }
        return replace(state, engine={**state.engine, "reducing": reducing})

    def restore(self, state: ClusterState) -> None:
        super().restore(state)
        reducing = state.engine["reducing"]
        numbers = zip(self._sims, reducing["processes"], strict=True)
        self._processes, self._again = [int(number) for _, number in numbers], {}
        self._values_at = {worker: (host, number) for worker, host, number in reducing["values_at"]}
        self._group = [(host, number) for host, number in reducing["group"]]
