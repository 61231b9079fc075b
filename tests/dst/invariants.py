"""What must hold of every run in which things go wrong, whatever the schedule of its faults."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Any, TypeAlias

import numpy as np

from dsgd.config import TrainConfig
from dsgd.conformance import differences
from dsgd.conformance.strategy_on_trial import Broken
from dsgd.core.cluster_state import ClusterState
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.model import Workload
from dsgd.core.protocol import Cluster, ClusterError, DriverLost, Engine, Update
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.engines.sim.sim_hosts import QUESTION, SimHost
from dsgd.running.checkpoints.codec import vocabulary
from dsgd.running.checkpoints.run_state import RunState, from_bytes, to_parts
from dsgd.running.predict.predictions import closed_forms
from dsgd.scenario.fault import MEMBERSHIP, Fault, named
from dsgd.scenario.fault_options import FaultConfig
from dsgd.theory.assumptions import known
from dst.audited_cluster import Audit
from dst.fault_schedule import FaultSchedule, keeps_members, keeps_weights

Opened: TypeAlias = Callable[[TrainConfig, Workload], AbstractContextManager[Engine]]
"""Starts the engine of a run."""

_workload = lru_cache(maxsize=64)(make_workload)


@dataclass(frozen=True, kw_only=True)
class Survived:
    """What happened in a run that kept all invariants."""

    updates: int
    faults: Mapping[str, int]
    """By kind, those that happened."""
    restarted: int
    """How often it was started again from a state, and went on with the same bytes."""
    compared: bool
    """Whether its weights were compared with those of the run without faults."""


def survives(schedule: FaultSchedule, cuts: int = 1, opened: Opened = open_cluster) -> Survived:
    """Run a schedule and hold it to all invariants; raises Broken with the first that does not hold.

    cuts: at how many updates the run is started again from the cluster's state, to give the same bytes.
    opened: its engine; the runs that it is compared with are simulated.
    """
    cfg = schedule.config()
    options = {"max_seconds": cfg.stop.max_seconds, **schedule.options}
    with schedule.subject.may_break(options), np.errstate(over="ignore", invalid="ignore"):
        try:
            run = _Audited(schedule, cfg, opened)
            chosen = some_of(schedule, len(run.updates), cuts)
            for cut in chosen:
                _goes_on_from(cut, run, schedule, cfg)
            if any(fault.kind == "driver" for fault in run.faults_seen):
                _driver_changes_nothing(run, schedule)
            compared = keeps_weights(cfg, schedule.subject)
            if compared:
                _has_the_weights_without_faults(run, schedule, cfg)
        except Broken as broken:
            raise Broken(str(broken), schedule.options) from broken.__cause__
    kinds = Counter(fault.kind for fault in run.faults_seen)
    return Survived(updates=len(run.updates), faults=kinds, restarted=len(chosen), compared=compared)


class _Going:
    """A run that goes on, from its beginning or a state; a loss of the driver takes it back by an update."""

    def __init__(self, schedule: FaultSchedule, cfg: TrainConfig, opened: Opened = open_cluster) -> None:
        self.cfg, self.strategy = cfg, schedule.subject.strategy
        workload = _workload(cfg)
        with opened(cfg, workload) as cluster:
            self.cluster = cluster
        self.w = Weights(workload.objective.initial_weights(cfg.seed))
        self.state = cluster.state()
        self.audit: Audit | None = None
        self.refused = False
        """Whether the cluster would not go on: nobody was left, or a process was lost too often."""

    def go_to(self, state: ClusterState, w: Weights) -> None:
        """Go on from a state of another run."""
        self.cluster.restore(state)
        self.state, self.w = state, w

    def updates(self) -> Iterator[Update]:
        """Yield updates; where nobody is left, or a process was lost too often, they end."""
        cluster = self.cluster
        while True:
            self.audit = Audit(cluster, self.state, joins=self.audit.joins if self.audit else 0)
            try:
                for update in self.strategy.train(self.audit, self.w, self.cfg):
                    cluster.reached(update.weights.version)
                    self.w, self.state = update.weights, cluster.state()
                    self.audit.balance(self.state)
                    yield update
                return
            except DriverLost:
                cluster.restore(self._without_the_loss())
            except ClusterError:
                if not self._may_refuse():
                    raise
                self.refused = True
                return

    def _without_the_loss(self) -> ClusterState:
        """Return the last state, in which no driver is lost that was since."""
        asked = named(fault for fault in self.cfg.fault.of_engine if isinstance(fault, Fault))
        now, before = self.cluster.state().faults, self.state.faults
        assert now is not None
        assert before is not None
        lost = {name for name, fault in asked.items() if fault.kind == "driver"} & {*now["given"]}
        return replace(self.state, faults={**before, "given": sorted({*before["given"], *lost})})

    def _may_refuse(self) -> bool:
        """Whether nobody is left, or a member waits for a host that is given up."""
        members, hosts = self.cluster.workers, self.cluster.state().hosts
        if not members:
            return _asks_for_members(self.cfg)
        if hosts is None:
            return False
        waited_for = {hosts["carrier"][worker] for worker in members} - set(np.flatnonzero(hosts["alive"]))
        most = self.cfg.fault.restart_limit.most
        return any(len(hosts["lost_s"][host]) > most for host in waited_for)


class _Audited:
    """A run that was held to the invariants at each update, and at its end."""

    def __init__(self, schedule: FaultSchedule, cfg: TrainConfig, opened: Opened) -> None:
        self._cfg, self._masked = cfg, keeps_members(cfg)
        self._going = going = _Going(schedule, cfg, opened)
        cluster = going.cluster
        self.first = going.w
        self.updates: list[Update] = []
        self.states = [going.state]
        """The cluster before the first update, and after each."""
        self.views = [_view(cluster)]
        """What a strategy saw of it then."""
        self.seen = [0]
        """How many faults were over then."""
        bounds, spent = _Bounds(cfg), 0
        for update in going.updates():
            assert going.audit
            bounds.hold(update, going.audit, version=len(self.updates) + 1)
            self._look_at_members(going.state)
            if cfg.fault.suspect_after is not None and "sims" in going.state.engine:
                _gives_no_task_to_silent_hosts(self.states[-1], going.state, cfg)
            self.updates.append(update)
            self.states.append(going.state)
            self.views.append(_view(cluster))
            self.seen.append(len(cluster.faults_seen))
            spent += _batches(update)
            if spent >= cfg.budget:
                break
        cluster.ended()
        self.faults_seen = list(cluster.faults_seen)
        self.ended_early = going.refused
        """Whether nobody was left, or a process was lost too often; a strategy never ends by itself."""
        if not self.ended_early:
            _spends_the_budget(self.updates, spent, cfg, schedule.subject.laws.exact_budget and self._masked)
            _takes_each_mini_batch_once(self.updates, going.state)
            _brings_all_back(cfg, self.faults_seen, cluster.workers, cluster.now_s)

    def _look_at_members(self, state: ClusterState) -> None:
        cfg, members = self._cfg, list(state.workers)
        if self._masked and (state.lost or len(members) < cfg.num_workers):
            raise Broken(f"the members are {members}, {state.lost} mini-batches are lost: no fault says so")
        if len(members) < min(cfg.fault.min_workers, cfg.num_workers) and not _asks_for_members(cfg):
            raise Broken(f"the members are {members}, and --min-workers is {cfg.fault.min_workers}")


class _Bounds:
    """The bounds that theory gives: a worker that joins counts as one more, as it may run ahead again."""

    def __init__(self, cfg: TrainConfig) -> None:
        self._cfg = cfg
        self._of: dict[int, tuple[float, float]] = {}

    def hold(self, update: Update, audit: Audit, version: int) -> None:
        """Raise Broken if an update breaks a bound, or is not the next version."""
        if update.weights.version != version:
            raise Broken(f"update {version} has version {update.weights.version}")
        if not update.dones:
            raise Broken(f"update {version} has no result")
        if audit.joins not in self._of:
            workers = self._cfg.num_workers + audit.joins
            self._of[audit.joins] = _bounds(replace(self._cfg, num_workers=workers))
        staleness, gap = self._of[audit.joins]
        for done in update.dones:
            if not 0 <= update.staleness(done) <= staleness:
                seen = f"worker {done.worker}'s result is {update.staleness(done)} stale"
                raise Broken(f"update {version}: {seen}, needed 0 to {staleness:g}")
        if audit.clocks.gap > gap:
            raise Broken(f"update {version}: the clocks' gap is {audit.clocks.gap}, needed {gap:g} at most")


def _bounds(cfg: TrainConfig) -> tuple[float, float]:
    """Return the greatest staleness and clock gap that theory allows; inf where it does not say."""
    forms = closed_forms(cfg)
    staleness, gap = known(forms.staleness_max), known(forms.clock_gap_max)
    if staleness is None:
        staleness = 0.0 if known(forms.staleness_mean) == 0 else np.inf
    return staleness, np.inf if gap is None else gap


def _spends_the_budget(updates: Sequence[Update], spent: int, cfg: TrainConfig, exact: bool) -> None:
    more = 0 if exact or not updates else _batches(updates[-1]) - 1
    if not cfg.budget <= spent <= cfg.budget + more:
        raise Broken(f"train ended after {spent} of {cfg.budget} mini-batches")


def _takes_each_mini_batch_once(updates: Sequence[Update], state: ClusterState) -> None:
    """Hold that what came in is in exactly one update, and only cancelled mini-batches are missing."""
    taken: list[set[int]] = [set() for _ in state.steps]
    for update in updates:
        for done in (*update.dones, *update.ignored):
            steps = set(range(done.step, done.step + done.batches))
            if steps & taken[done.worker]:
                task = f"worker {done.worker}'s mini-batch {min(steps & taken[done.worker])}"
                raise Broken(f"{differences.named(update)}: {task} was in an update already")
            taken[done.worker] |= steps
    for worker, steps in enumerate(taken):
        missing = set(range(state.steps[worker])) - steps
        if len(missing) != state.cancelled[worker]:
            seen = f"mini-batches {sorted(missing)} of worker {worker} are in no update"
            raise Broken(f"{seen}, {state.cancelled[worker]} were cancelled")


def _brings_all_back(
    cfg: TrainConfig, faults_seen: Sequence[FaultSeen], members: Sequence[int], now_s: float
) -> None:
    """Hold that whoever was dropped with a process is a member again once the process must be back."""
    asked = [fault for fault in cfg.fault.fault_list if isinstance(fault, Fault)]
    losses = [fault.t_s for fault in faults_seen if fault.kind in ("kill", "node")]
    spot, given_up = len(asked) < len(cfg.fault.fault_list), len(losses) > cfg.fault.restart_limit.most
    if not losses or spot or given_up:
        return
    backoff_s = 0.0 if len(losses) == 1 else min(30.0, 0.5 * 2.0 ** (len(losses) - 2))
    down_s = max(fault.lasts_s or 0.0 for fault in asked) + cfg.fault.restart_s + backoff_s
    elsewhere = {worker for fault in asked if fault.kind in MEMBERSHIP for worker in fault.workers}
    missing = set(range(cfg.num_workers)) - set(members) - elsewhere
    if missing and now_s > max(losses) + down_s:
        seen = f"worker {min(missing)} is no member at {now_s:.6g} s"
        raise Broken(f"{seen}, though its process must be back at {max(losses) + down_s:.6g} s")


def _gives_no_task_to_silent_hosts(before: ClusterState, after: ClusterState, cfg: TrainConfig) -> None:
    """Hold that between two updates no host got a task while it was silent and another was not, that workers
    whose home answers are at home, and that each silent host is asked for an answer.
    """
    assert before.hosts is not None
    assert after.hosts is not None
    hosts, num_hosts = range(len(after.hosts["alive"])), cfg.fault.hosts or cfg.num_workers
    here = [host for host in hosts if _same("alive", host, before, after) and after.hosts["alive"][host]]
    here = [host for host in here if _same("losses", host, before, after)]
    since = {host: after.hosts["trusted_s"][host] for host in here if _same("trusted_s", host, before, after)}
    answering = [host for host, s in since.items() if s is not None and s < before.now_s]
    silent = [host for host, s in since.items() if s is None and _same("heard_s", host, before, after)]
    sims = [SimHost.restored(sim) for sim in after.engine["sims"]]
    copies = [copy for sim in sims for copy in (*sim.queue, *sim.held)]
    for copy in copies:
        home, new = copy.worker % num_hosts, copy.number > before.engine["serial"]
        if copy.worker == QUESTION or not new:
            continue
        if copy.host in silent and answering and (cfg.fault.on_loss == "rehost" or home in here):
            raise Broken(f"host {copy.host} is silent, and got worker {copy.worker}'s next task")
        if home in answering and copy.host != home:
            raise Broken(f"host {copy.host} got worker {copy.worker}'s next task, though host {home} answers")
    asked = {copy.host for copy in copies if copy.worker == QUESTION}
    for host in hosts:
        if after.hosts["alive"][host] and after.hosts["trusted_s"][host] is None and host not in asked:
            raise Broken(f"host {host} is silent for ever: it is not asked for an answer")


def _same(name: str, host: int, before: ClusterState, after: ClusterState) -> bool:
    assert before.hosts is not None
    assert after.hosts is not None
    return bool(before.hosts[name][host] == after.hosts[name][host])


def some_of(schedule: FaultSchedule, updates: int, cuts: int) -> list[int]:
    """Return after which updates a run is started again, 0 being its beginning, given its options."""
    if cuts >= updates:
        return list(range(updates))
    rng = random.Random(zlib.crc32(repr(sorted(schedule.options.items())).encode()))
    return sorted(rng.sample(range(updates), cuts))


def _goes_on_from(cut: int, run: _Audited, schedule: FaultSchedule, cfg: TrainConfig) -> None:
    """Check that the run, started again after an update from a checkpoint in a new cluster, is the same."""
    going, needed = _Going(schedule, cfg), run.updates[cut:]
    known_classes = vocabulary(schedule.subject.strategy)
    w = run.updates[cut - 1].weights if cut else run.first
    checkpoint = b"".join(to_parts(RunState(weights=w, cluster=run.states[cut]), known_classes))
    kept = from_bytes(checkpoint, known_classes)
    going.go_to(kept.cluster, kept.weights)
    before = run.views[cut]
    for name, value in _view(going.cluster).items():
        if value != before[name]:
            raise Broken(f"started again after update {cut}: {name} is {value}, needed {before[name]}")
    try:
        again = list(islice(going.updates(), len(needed) + run.ended_early))
    except Exception as error:
        raise Broken(f"started again after update {cut}: {type(error).__name__}: {error}") from error
    going.cluster.ended()
    found = differences.of_runs(again, needed)
    drivers = any(fault.kind == "driver" for fault in run.faults_seen)  # what it undoes is seen twice
    if not found and not drivers:
        found = _of_faults(going.cluster.faults_seen, run.faults_seen[run.seen[cut] :])
    if found:
        raise Broken(f"started again after update {cut}: {found}")


def _view(cluster: Cluster) -> dict[str, Any]:
    """Return what a strategy sees of a cluster between two updates, in the order in which it sees it."""
    return {
        "workers": list(cluster.workers),
        "idle": list(cluster.idle),
        "in_flight": [(worker, cluster.reading(worker).version) for worker in cluster.in_flight],
        "given": cluster.given,
    }


def _of_faults(ours: Sequence[FaultSeen], needed: Sequence[FaultSeen]) -> str:
    for fault, other in zip_longest(ours, needed):
        if fault != other:
            return f"a fault is {fault}, needed {other}"
    return ""


def _driver_changes_nothing(run: _Audited, schedule: FaultSchedule) -> None:
    """Hold that a run whose driver was lost is, update by update, the one whose driver was not."""
    others = [fault for fault in schedule.faults if not fault.startswith("driver")]
    undisturbed = schedule.having(faults="; ".join(others))
    going = _Going(undisturbed, undisturbed.config())
    if found := differences.of_runs(run.updates, list(islice(going.updates(), len(run.updates)))):
        raise Broken(f"{found} without the loss of the driver")


def _has_the_weights_without_faults(run: _Audited, schedule: FaultSchedule, cfg: TrainConfig) -> None:
    """Hold that faults which are masked leave the weights as they would have been, bit for bit."""
    without = replace(cfg, fault=FaultConfig())
    updates = islice(_Going(schedule, without).updates(), len(run.updates))
    vectors = [update.weights.vector for update in updates]
    if found := differences.of_vectors(run.updates, vectors, exactly=True):
        raise Broken(f"{found} without faults")


def _asks_for_members(cfg: TrainConfig) -> bool:
    return any(isinstance(fault, Fault) and fault.kind in MEMBERSHIP for fault in cfg.fault.fault_list)


def _batches(update: Update) -> int:
    return sum(done.batches for done in update.dones)
