"""A recorded run computed again in its recorded order, bit for bit: asynchronous and real ones included.

The record is the log: it has which worker's mini-batches came in, and when. What each task read, and so what
it computed, follows from the order alone. So a replay is the simulator with the recorded times in place of
drawn ones. It needs no worker, and it decides what a strategy decides by the clock as the run did.

After a crash it rolls the run forward, from a checkpoint to the last recorded update, so no applied update is
lost:

    cluster = ReplayCluster(cfg, workload, updates_after_the_checkpoint, faults)
    cluster.restore(state)                                      # the checkpoint's; a run's start needs none
    for update in rolled_forward(cluster, cluster.last_version, strategy.train, w, cfg):
        w = update.weights
    real.restore(cluster.state())                               # and `strategy.train(real, w, cfg)` goes on

Ties: of tasks that finished at one time, as in the simulator many do, those of an earlier update came in
first, and of one update those that it passed over, and then in its own order; without a server, whose workers
are ahead of the update, those that were started first, which is the simulator's rule.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dsgd.config import TrainConfig
from dsgd.core import rules
from dsgd.core.cluster_state import ClusterState
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.ledger import Ledger
from dsgd.core.ledger_views import LedgerViews
from dsgd.core.model import Workload
from dsgd.core.option_texts import with_restarts
from dsgd.core.protocol import ClusterError, Done, Engine, Update
from dsgd.core.rules import Rule
from dsgd.core.tasks import Task
from dsgd.core.traffic import MessageSizes
from dsgd.core.weights import Weights
from dsgd.engines.configured_network import network_of
from dsgd.engines.recorded import SeenFault, SeenTask, SeenUpdate
from dsgd.engines.task_values import LazyValues, LoneValues
from dsgd.scenario.allreduce import AllReduce
from dsgd.scenario.fault import MEMBERSHIP
from dsgd.scenario.fault_plan import Plan, outside_at_first
from dsgd.scenario.hosts import Hosts


class RecordUsedUp(ClusterError):
    """The strategy waits for a task, and none of those that it has started is in the record."""


class _Entry(NamedTuple):
    """A recorded task, and the version that its update made."""

    task: SeenTask
    version: int
    place: int
    """In its update."""


class _Flight(NamedTuple):
    """A task in flight; no entry: it does not come in."""

    serial: int
    task: Task
    w: Weights
    started_s: float
    entry: _Entry | None


class ReplayCluster(LedgerViews[_Flight]):
    """Gives the tasks of a recorded run in the order in which they came in; see the module's text.

    cfg: the run's. updates: those recorded, from the first or, before `restore`, from a later one on.
    faults: those recorded, of which members that leave and join count. device: of torch, as recorded.
    """

    pids: Sequence[int] = ()

    def __init__(
        self,
        cfg: TrainConfig,
        workload: Workload,
        updates: Iterable[SeenUpdate],
        faults: Iterable[SeenFault] = (),
        *,
        device: str = "cpu",
    ) -> None:
        self.now_s = 0.0
        self.device = device
        self.restarts = [0] * cfg.num_workers
        self.faults_seen: list[FaultSeen] = []
        self.last_version = 0
        """Of the recorded updates; 0 without any."""
        self._log: dict[tuple[int, int], _Entry] = {}
        self._made_s: dict[int, float] = {}  # by version
        for update in updates:
            self.last_version = update.version
            self._made_s[update.version] = update.t_s
            for place, task in enumerate((*update.ignored, *update.gradients)):
                self._log[task.worker, task.step] = _Entry(task, update.version, place)
        faults = list(faults)
        changes = [fault for fault in faults if fault.kind in MEMBERSHIP]
        self._changes = deque(sorted(changes, key=lambda fault: (fault.came_in, fault.answers or 0)))
        self._keep(Ledger[_Flight](cfg.num_workers))
        for worker in outside_at_first(cfg.fault.fault_list):
            self._ledger.leave(worker)
        fault = cfg.fault
        hosts = Hosts(cfg.num_workers, fault.hosts or cfg.num_workers, fault.spares)
        ranks = cfg.group.ranks_per_worker
        self._plan = Plan(fault.of_engine, seed=cfg.seed, hosts=len(hosts.alive), ranks=ranks)
        self._simulated = cfg.engine == "sim"
        self._moves = self._simulated or cfg.data.edition > 2  # whether its clock does, as the members change
        self._went_on_s = self._times_after_updates(faults)
        """By version: when the strategy went on after it, where that was later than the update."""
        self.now_s = self._went_on_s.get(0, 0.0)
        self._changed = False  # whether members have changed between two updates
        self._answers = 0  # how often `next_done` has returned
        # Older records do not have it.
        self._by_answer = all(change.answers is not None for change in changes)
        self._hosts: Mapping[str, Any] | None = None if self._simulated else hosts.state()
        self._dropped: set[int] = set()  # who left with a process, and has not joined again with a new one
        self._serial = 0
        self._version_of: dict[int, int] = {}  # by worker: of the weights that it has, where that matters
        # Tasks in flight that will come in: (when, for which version, place there, serial number, worker).
        self._coming: list[tuple[float, int, int, int, int]] = []
        self._peers = not cfg.traits.has_server and cfg.engine == "sim"
        topology, network = cfg.network.parsed_topology, network_of(cfg)
        self._has_backups = network.replicas > 1
        self._exchange = AllReduce(topology.kind, network.links) if topology.all_reduces else None
        peers = self._peers or topology.all_reduces
        self._sizes = MessageSizes(workload.objective.num_weights, network.padding_bytes, peers=peers)
        self._values: LazyValues | LoneValues | None = None
        if workload.objective.num_weights:
            alone = cfg.engine == "ray"  # each value by the kernel that made the recorded one
            self._values = LoneValues(workload, device) if alone else LazyValues(workload, device, None)

    def _times_after_updates(self, faults: Sequence[SeenFault]) -> dict[int, float]:
        """Return when the strategy went on, by the version that was the newest then: the driver was away
        before, or the simulated server stood still. No line says how long it did; but what was started next
        began then, and before the next update.
        """
        found = {f.back_to: f.t_s + (f.recovered_s or 0.0) for f in faults if f.back_to is not None}
        if self._simulated:
            began_s = {entry.task.started_s for entry in self._log.values()} - set(found.values())
            starts, ends = sorted(began_s), [*list(self._made_s.values())[1:], math.inf]
            for (version, made_s), next_s in zip(self._made_s.items(), ends, strict=False):
                place = bisect_left(starts, made_s)
                if version not in found and place < len(starts) and made_s < starts[place] <= next_s:
                    found[version] = starts[place]
        return found

    def reached(self, version: int) -> None:
        due = self._plan.at_update(version)  # what follows is in the record
        if self._by_answer:
            self._change_at_once(version)
        elif due and self._simulated:
            now = self._ledger.came_in, self.now_s
            while self._changes and (self._changes[0].came_in, self._changes[0].t_s) <= now:
                self._changed |= self._change(self._next_event())
        self.now_s = max(self.now_s, self._went_on_s.get(version, 0.0))

    def ended(self) -> Sequence[str]:
        return ()

    def note(self, fault: FaultSeen) -> None:
        pass  # it is in the record

    def start(self, worker: int, task: Task, w: Weights) -> None:
        self._plan.at_step(worker, self._ledger.steps[worker], task.batches)
        if w.changes is not None:
            w, self._version_of[worker] = w.changes.since(w, self._version_of.get(worker)), w.version
        self._ledger.start(worker, self._sent(worker, task, w, self._ledger.steps[worker], self.now_s))
        self._ledger.traffic.to_worker[worker] += self._sizes.to_worker(w)

    def _sent(self, worker: int, task: Task, w: Weights, step: int, started_s: float) -> _Flight:
        """Return the flight of a task; if it is in the record, it will come in."""
        self._serial += 1
        entry = self._log.get((worker, step))
        if entry:
            started_s = entry.task.started_s
            place = 0 if self._peers else entry.place
            due = entry.task.finished_s, entry.version, place, self._serial, worker
            heapq.heappush(self._coming, due)
            if self._values:
                self._values.add(worker, task, step, w.vector)
        return _Flight(self._serial, task, w, started_s, entry)

    def travel(self, source: int, target: int, num_bytes: int | None = None) -> None:
        if self._peers:
            num_bytes = self._sizes.vector if num_bytes is None else num_bytes
            self._ledger.traffic.to_peers[source] += num_bytes
            self._ledger.traffic.from_peers[target] += num_bytes

    def cancel(self, worker: int) -> None:
        self._ledger.cancel(worker, max(0.0, self.now_s - self._ledger.flights[worker].started_s))
        self._drop(worker)

    def next_done(self) -> Done | None:
        """Return the recorded task that came in next; None: the members changed before it.

        Raises RecordUsedUp when none of the tasks in flight is in the record.
        """
        ledger = self._ledger
        self._answers += 1
        while self._plan.pop_due(-math.inf):  # it is in the record
            pass
        if self._members_change():
            return None
        while self._coming:
            *_, serial, worker = heapq.heappop(self._coming)
            flight = ledger.flights.get(worker)
            if flight and flight.serial == serial:  # neither cancelled nor lost
                break
        else:
            raise RecordUsedUp("the record has no more of the tasks that are in flight")
        assert flight.entry
        recorded, step = flight.entry.task, ledger.steps[worker]
        self.now_s = recorded.finished_s
        ledger.finish(worker, recorded.finished_s)
        to_server = self._sizes.to_server(flight.task)
        ledger.traffic.to_server[worker] += to_server
        if self._has_backups:
            ledger.traffic.to_backups[worker] += to_server
        loss, value = self._values.take(worker) if self._values else (None, flight.w.vector)
        return Done(
            worker,
            step,
            flight.task.batches,
            flight.w.version,
            loss,
            value,
            recorded.started_s,
            recorded.finished_s,
            recorded.compute_s,
            self._sizes.to_worker(flight.w),
            to_server,
            flight.w,
        )

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:  # type: ignore[override]
        if self._exchange and len(w.vector):
            members = sorted(done.worker for done in dones)
            num_bytes = 4 * len(w.vector) + self._sizes.padding_bytes
            sent = self._exchange.sent(members, num_bytes)
            self._ledger.traffic.exchanged(members, sent, self._exchange.received(members, num_bytes))
        made = rules.combine(rule, w, dones)
        if self._by_answer:
            self._change_at_once(w.version)  # during the exchange
        self.now_s = max(self.now_s, self._made_s.get(made.version, 0.0))  # it may have taken time
        return made

    def _members_change(self) -> bool:
        """Have members leave and join that did so before the answer that is due; return whether any has."""
        ledger, changes = self._ledger, self._changes
        if self._changed:
            self._changed = False
            return True
        if self._by_answer:
            due = []
            while changes and (changes[0].answers or 0) < self._answers:
                due.append(changes.popleft())
            return self._change(due)
        if ledger.leaving and ledger.depart():
            return True
        while changes and changes[0].came_in <= ledger.came_in:
            if self._change(self._next_event()):
                return True
        return False

    def _change_at_once(self, version: int) -> None:
        """Have members leave and join that did so while the strategy was not waiting, up to a version."""
        now = self._answers
        while (changes := self._changes) and changes[0].at_once and changes[0].answers == now:
            if changes[0].update > version:
                break
            self._changed |= self._change([changes.popleft()], at_once=True)

    def _next_event(self) -> list[SeenFault]:
        """Take out the next change of the members, and those that happened with it."""
        event = [self._changes.popleft()]
        while self._changes and _event(self._changes[0]) == _event(event[0]):
            event.append(self._changes.popleft())
        return event

    def _change(self, changes: Sequence[SeenFault], *, at_once: bool = False) -> bool:
        """Have members leave or join, and those depart that were to; return whether the members have
        changed. at_once: those that leave now depart, the others when the strategy next waits.
        """
        ledger, changed = self._ledger, False
        for change in changes:
            if self._moves:
                self.now_s = max(self.now_s, change.t_s)
            for worker in change.workers:
                if change.kind == "leave" and not change.asked:
                    self._dropped.add(worker)
                else:
                    self._dropped.discard(worker)
                if change.kind == "join":
                    changed |= ledger.come(worker)
                elif worker in ledger.workers:
                    if change.asked or change.notice:
                        ledger.retire(worker)
                        if at_once and worker in ledger.leaving:
                            changed = bool(ledger.depart()) or changed
                    else:  # with its process, and its task
                        ledger.leave(worker)
                        self._drop(worker)
                        changed = True
        return bool(ledger.leaving and not at_once and ledger.depart()) or changed

    def _happened(self, fault: SeenFault, state: ClusterState) -> bool:
        """Whether a change of the members is in a state already."""
        if self._by_answer:
            return (fault.answers or 0) < self._answers
        staying = set(state.workers) - set(state.leaving)
        shown = all((worker in staying) == (fault.kind == "join") for worker in fault.workers)
        return fault.came_in < state.came_in or (fault.came_in == state.came_in and shown)

    def _drop(self, worker: int) -> None:
        if self._values:
            self._values.drop(worker)

    def state(self) -> ClusterState:
        """Return the cluster between two updates: any engine goes on from there.

        The faults of `cfg` that were due by now count as given out. Hosts are as they were in the state
        restored, and those lost whose workers have left.
        """
        while self._plan.next_s <= self.now_s:
            self._plan.pop_timed()
        hosts = self._hosts
        if hosts is not None:
            lost = {hosts["carrier"][worker] for worker in self._dropped}
            alive = [lives and host not in lost for host, lives in enumerate(hosts["alive"])]
            hosts = {**hosts, "alive": alive, "dropped": sorted(self._dropped)}
        return replace(
            self._ledger.state(self.now_s),
            states=self._values.states() if self._values else {},
            restarts=list(self.restarts),
            heard=dict(self._version_of),
            hosts=hosts,
            faults=self._plan.position(),
            engine={} if self._simulated else {"answers": self._answers},
        )

    def restore(self, state: ClusterState) -> None:
        """Go to a state of the recorded run, on whichever engine; its tasks in flight come in as recorded."""
        self.now_s, self.restarts, self._hosts = state.now_s, list(state.restarts), state.hosts
        self._dropped = set((state.hosts or {}).get("dropped", ()))
        self._version_of = dict(state.heard)
        self._answers = state.engine.get("answers", state.came_in)
        if state.faults is not None:
            self._plan.go_to(state.faults)
        while self._changes and self._happened(self._changes[0], state):
            self._changes.popleft()
        self._coming.clear()
        if self._values:
            self._values.restart(state.states)
        flights = {
            f.worker: self._sent(f.worker, f.task, f.origin, state.steps[f.worker], f.started_s)
            for f in state.flights
        }
        self._keep(Ledger.restored(state, flights))


def after_rollbacks(cfg: TrainConfig, rollbacks: int, steps: int | None = None) -> TrainConfig:
    """Return the options of a run that has gone back so often after it had diverged: each halves the step.

    steps: what each worker was to take, if more was asked for later.
    """
    if steps not in (None, cfg.steps):
        began = [step for step in cfg.parsed_schedule.restarts if step < steps]
        cfg = replace(cfg, steps=steps, schedule=with_restarts(cfg.schedule, began))
    return replace(cfg, lr=cfg.lr * 0.5**rollbacks) if rollbacks else cfg


def rollbacks_at(faults: Iterable[SeenFault]) -> Sequence[tuple[int, int]]:
    """Return at which versions a run went on after it had gone back, and with how many rollbacks by then.

    faults: in the order in which they were recorded. What a later one took back is left out: versions ascend.
    """
    found: list[tuple[int, int]] = []
    rollbacks = 0
    for fault in faults:
        rollbacks += fault.kind == "divergence"
        if fault.back_to is not None:
            found = [(version, count) for version, count in found if version < fault.back_to]
            found.append((fault.back_to, rollbacks))
    return found


def rolled_forward(
    cluster: Engine,
    last_version: int,
    train: Callable[..., Iterator[Update]],
    w: Weights,
    cfg: TrainConfig,
    rollbacks: Sequence[tuple[int, int]] = (),
    sent: Mapping[int, Mapping[str, Sequence[int]]] = {},
    grown: Sequence[tuple[int, int]] = (),
) -> Iterator[Update]:
    """Compute the recorded updates after the weights `w` again, and end after the last one.

    cluster: a replay; it stands where the run stood at `w`, and in the end where it stood at the last update:
    its state() is then that of the run. last_version: of the recorded updates. train: the strategy's.
    cfg: with the step size that the run began with. rollbacks: as of `rollbacks_at`. sent: what
    the run had sent, by version, as `Traffic.state` returns it, where the record has that. grown: as its
    `Meta.grown`. Raises RecordUsedUp if the strategy does not make the recorded updates of the recorded
    tasks.
    """
    for end in (*sorted({version for version, _ in (*rollbacks, *grown)}), last_version):
        if min(end, last_version) <= w.version:
            continue
        count = max((count for version, count in rollbacks if version < end), default=0)
        steps = min((steps for version, steps in grown if version >= end), default=cfg.steps)
        for update in train(cluster, w, after_rollbacks(cfg, count, steps)):
            w = update.weights
            if w.version in sent:
                cluster.traffic.restore(sent[w.version])
            yield update
            cluster.reached(w.version)
            if w.version >= min(end, last_version):
                break


def _event(fault: SeenFault) -> tuple[int, float, str, bool]:
    """Return what changes of the members have in common that a strategy sees at once."""
    return fault.came_in, fault.t_s, fault.kind, fault.asked
