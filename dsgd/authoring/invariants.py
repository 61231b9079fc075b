"""What must hold of every run in which things go wrong, whatever the schedule of its faults."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from dsgd.authoring import differences
from dsgd.authoring.audit import Audit
from dsgd.authoring.fault_schedule import FaultSchedule, keeps_members, keeps_weights
from dsgd.authoring.subject import Broken
from dsgd.cluster import Engine, Update
from dsgd.cluster.open import open_cluster
from dsgd.cluster.state import ClusterState
from dsgd.config import TrainConfig
from dsgd.data import Workload, make_workload
from dsgd.theory.predictions import closed_forms, known
from dsgd.work.weights import Weights

_LONGEST_BACKOFF_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Survived:
    """What happened in a run that kept all invariants."""

    updates: int
    faults: Mapping[str, int]
    """By kind, those that happened."""
    restarted: int
    """How often it was started again from a state, and gave the same bytes."""
    compared: bool
    """Whether its weights were those of the run without faults."""


@dataclass
class _Followed:
    """A run, update by update."""

    cluster: Engine
    updates: list[Update] = field(default_factory=list)
    states: list[ClusterState] = field(default_factory=list)
    """The cluster before the first update, and after each."""


def survives(schedule: FaultSchedule, cuts: int = 1) -> Survived:
    """Run a schedule and hold it to all invariants; raises Broken with the first that does not hold.

    cuts: at how many updates the run is started again from the cluster's state, to give the same bytes.
    """
    cfg = schedule.config()
    workload = _workload(cfg)
    with schedule.subject.may_break(schedule.options), np.errstate(over="ignore", invalid="ignore"):
        try:
            run = _audited(schedule, cfg, workload)
            chosen = _cuts(schedule, len(run.updates), cuts)
            for cut in chosen:
                _goes_on_from(run, cut, schedule, cfg, workload)
            compared = keeps_weights(cfg, schedule.subject)
            if compared:
                _has_the_weights_without_faults(run, schedule, cfg, workload)
        except Broken as broken:
            raise Broken(str(broken), schedule.options) from broken.__cause__
    kinds = Counter(fault.kind for fault in run.cluster.faults_seen)
    return Survived(updates=len(run.updates), faults=kinds, restarted=len(chosen), compared=compared)


@lru_cache(maxsize=256)
def _workload(cfg: TrainConfig) -> Workload:
    return make_workload(cfg)


def _begun(cfg: TrainConfig, workload: Workload) -> Engine:
    with open_cluster(cfg, workload) as cluster:
        if not hasattr(cluster, "_plan"):
            for f in cfg.fault.fault_list:
                if getattr(f, "kind", "") in ("leave", "join") and f.trigger.of == "t":
                    for i in f.workers:
                        cluster.schedule(f.trigger.at, f.kind, i)
        return cluster


def _audited(schedule: FaultSchedule, cfg: TrainConfig, workload: Workload) -> _Followed:
    """Run to the end of the budget, and look at everything at every update."""
    cluster = _begun(cfg, workload)
    run, audit, spent = _Followed(cluster, states=[cluster.state()]), Audit(cluster), 0
    masked, bounds = keeps_members(cfg), _Bounds(cfg)
    w = Weights(workload.objective.initial_weights(cfg.seed))
    for update in schedule.subject.strategy.train(audit, w, cfg):
        run.updates.append(update)
        spent += _batches(update)
        bounds.hold(update, audit, version=len(run.updates))
        cluster.reached(update.weights.version)
        state = cluster.state()
        audit.balance(state.leaving)
        if masked and (audit.lost or len(cluster.workers) < cfg.num_workers):
            raise Broken(f"members are {list(cluster.workers)}, and no fault changes them")
        run.states.append(state)
        if spent >= cfg.budget:
            break
    _spends_the_budget(run.updates, spent, cfg, exact=masked and schedule.subject.laws.exact_budget)
    _takes_each_mini_batch_once(run.updates, audit, cluster)
    return run


class _Bounds:
    """The bounds that theory gives: a worker that joins counts as one more, for it may run ahead anew."""

    def __init__(self, cfg: TrainConfig) -> None:
        self._cfg = cfg
        self._of: dict[int, tuple[float, float]] = {}

    def hold(self, update: Update, audit: Audit, *, version: int) -> None:
        """Raise Broken if an update breaks a bound, or is not the next version."""
        if update.weights.version != version:
            raise Broken(f"update {version} has version {update.weights.version}")
        if not update.dones:
            raise Broken(f"update {version} has no result")
        if audit.joins not in self._of:
            self._of[audit.joins] = _bounds(
                replace(self._cfg, num_workers=self._cfg.num_workers + audit.joins)
            )
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


def _spends_the_budget(updates: list[Update], spent: int, cfg: TrainConfig, *, exact: bool) -> None:
    most = cfg.budget if exact else cfg.budget - 1 + (_batches(updates[-1]) if updates else 0)
    if not cfg.budget <= spent <= most:
        raise Broken(f"train ended after {spent} of {cfg.budget} mini-batches")


def _takes_each_mini_batch_once(updates: list[Update], audit: Audit, cluster: Engine) -> None:
    """Whatever came in is in exactly one update, and only cancelled mini-batches are missing."""
    taken: dict[int, set[int]] = {}
    for update in updates:
        for done in (*update.dones, *update.ignored):
            steps = taken.setdefault(done.worker, set())
            before = len(steps)
            steps.update(range(done.step, done.step + done.batches))
            if len(steps) < before + done.batches:
                task = f"worker {done.worker}'s mini-batch {done.step}"
                raise Broken(f"{differences.named(update)}: {task} was in an update already")
    used = sum(map(len, taken.values()))
    if used != audit.done:
        raise Broken(f"{audit.done} mini-batches were finished, {used} are in updates")
    for worker, steps in taken.items():
        missing, cancelled = max(steps) + 1 - len(steps), audit.cancelled.get(worker, 0)
        if missing > cancelled:
            raise Broken(f"{missing} mini-batches of worker {worker} are missing, {cancelled} were cancelled")
    for worker, cancelled in enumerate(cluster.cancelled):
        if cancelled != audit.cancelled.get(worker, 0):
            seen = f"{cancelled} mini-batches of worker {worker} count as cancelled"
            raise Broken(f"{seen}, needed {audit.cancelled.get(worker, 0)}")


def _cuts(schedule: FaultSchedule, updates: int, cuts: int) -> list[int]:
    """Return after which updates the run is started again, 0 being its beginning, given its options."""
    if cuts >= updates:
        return list(range(updates))
    rng = random.Random(zlib.crc32(repr(sorted(schedule.options.items())).encode()))
    return sorted(rng.sample(range(updates), cuts))


def _goes_on_from(
    run: _Followed, cut: int, schedule: FaultSchedule, cfg: TrainConfig, workload: Workload
) -> None:
    """Start it again after an update, in a new cluster with the state of this one: it is the same."""
    cluster = _begun(cfg, workload)
    w = run.updates[cut - 1].weights if cut else Weights(workload.objective.initial_weights(cfg.seed))
    cluster.restore(run.states[cut])
    again = []
    with _said(f"started again after update {cut}: "):
        for update in schedule.subject.strategy.train(cluster, w, cfg):
            again.append(update)
            cluster.reached(update.weights.version)
            if len(again) == len(run.updates) - cut:
                break
    if found := differences.of_runs(again, run.updates[cut:]):
        raise Broken(f"started again after update {cut}: {found}")


@contextmanager
def _said(before: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(before + str(error)) from error


def _has_the_weights_without_faults(
    run: _Followed, schedule: FaultSchedule, cfg: TrainConfig, workload: Workload
) -> None:
    """Faults that are masked leave the weights as they would have been, bit for bit."""
    cluster, needed = _begun(replace(cfg, fault=type(cfg.fault)()), workload), []
    for update in schedule.subject.strategy.train(
        cluster, Weights(workload.objective.initial_weights(cfg.seed)), cfg
    ):
        needed.append(update.weights.vector)
        if len(needed) == len(run.updates):
            break
    if found := differences.of_vectors(run.updates, needed, exactly=True):
        raise Broken(f"{found} without faults")


def _batches(update: Update) -> int:
    return sum(done.batches for done in update.dones)
