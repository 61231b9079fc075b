"""Keeps a run: its record, checkpoints, evaluations and watchers, around a `Run`, which decides.

Without a record it keeps all in memory and, in the simulator, starts no thread:

    keeper = RunKeeper(run)
    keeper.advance(20.0)  # as Run.advance, with all that is kept; it returns
    keeper.evaluations.found[-1].found.loss
    then = keeper.moment()
    keeper.go_to(then)
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.option_rules import options
from dsgd.core.protocol import DriverLost, Engine, Evaluated, Update, WeightsLost
from dsgd.engines.open_cluster import wrapped_as_asked
from dsgd.engines.replay import ReplayCluster, rollbacks_at, rolled_forward
from dsgd.metrics import Tally
from dsgd.process.endings import WorkingFolder
from dsgd.process.outcomes import StoppedBy, one_line
from dsgd.records.fixed_options import options_digest
from dsgd.records.reader import read_meta
from dsgd.records.stores.store import MemoryStore, forget_after, name_of
from dsgd.running.checkpoints.checkpointer import Checkpointer
from dsgd.running.checkpoints.codec import STRANGE, vocabulary
from dsgd.running.checkpoints.run_state import RunState, to_parts
from dsgd.running.evaluation import Evaluations
from dsgd.running.resuming import ResumePoint, kept_of, newest_state, tiers_of
from dsgd.running.run import Run
from dsgd.transforms.carrying import carried_tensors

if TYPE_CHECKING:
    from dsgd.records.writer import RunRecord


@dataclass(frozen=True, kw_only=True)
class Running:
    """A run whose workers are ready, as its watchers may see it."""

    cfg: TrainConfig
    cluster: Engine
    tally: Tally
    """Counts all updates so far."""
    path: Path | None
    """The folder of its record, if it has one."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """The model and the data of a workload's file."""
    not_kept: Sequence[str] = ()
    """What of its module is not kept, in a line each."""


class Watcher:
    """Observes a run. A watcher overrides what it needs; an error that it raises ends the run as failed."""

    @property
    def follows_updates(self) -> bool:
        """Whether it is to see each update: it costs time."""
        return type(self).updated is not Watcher.updated

    def started(self, running: Running) -> None:
        """See that all workers are ready and the record is open; no task has been started."""

    def updated(self, update: Update) -> None:
        """See a new version of the weights, after it was counted and recorded."""

    def evaluated(self, evaluated: Evaluated) -> None:
        """See an evaluation: on Ray, perhaps some updates after the evaluated version."""

    def fault(self, fault: FaultSeen) -> None:
        """See a fault that is over, or that the run ended in."""

    def ended(self) -> None:
        """See that no update and no evaluation will follow, however the run ended."""


class Moment(NamedTuple):
    """A run that is kept, between two updates."""

    state: RunState
    found: Sequence[Evaluated]
    """The evaluations so far."""
    latest: RunState | None
    """From which it would go on if its driver were lost."""
    snapshots: Sequence[RunState] = ()
    """In memory, to which it would go back, oldest first."""
    noted: Sequence[FaultSeen] = ()
    """By this process, and so counted again if it went back."""
    pending: Sequence[FaultSeen] = ()
    """Faults that are over, and are noted with the next update."""
    stored: Mapping[str, bytes] = MappingProxyType({})
    """Checkpoints in memory, as they are after faults of the disk, by name."""


class RunKeeper:
    """Keeps a run; see the module's text.

    record: in a folder; without one, nothing is written. evaluate: as in `execute`.
    """

    def __init__(
        self,
        run: Run,
        record: RunRecord | None = None,
        watchers: Sequence[Watcher] = (),
        *,
        evaluate: bool = True,
    ) -> None:
        cfg = run.cfg
        self.run, self.record, self.watchers, self.folder = run, record, watchers, WorkingFolder()
        self.known = vocabulary(run.strategy) if run.places else {}
        """What the run's tasks may be, for checkpoints."""
        self.evaluations = Evaluations(run, evaluate=evaluate)
        self.checkpoints = Checkpointer(
            tiers_of(cfg, run.places),
            self.known,
            record.sync if record else lambda: None,
            waits=cfg.engine == "sim" and bool(cfg.fault.faults),  # when one is there is then no race
            says_missed=cfg.engine == "ray",
        )
        stores = [faulty.store for faulty in run.faulty]
        self._in_memory = next((it for it in stores if isinstance(it, MemoryStore)), MemoryStore())
        self.skipped: Sequence[str] = ()
        """Checkpoints from which it did not go on, and why, in a line each."""
        self._begun = False
        if record:
            run.on_update += [record.update] if record.follows_updates else []
            run.faults.on_fault.append(record.fault)
            self.evaluations.on_found.append(record.evaluation)
        run.on_update += [watcher.updated for watcher in watchers if watcher.follows_updates]
        run.faults.on_fault += [watcher.fault for watcher in watchers]
        self.evaluations.on_found += [watcher.evaluated for watcher in watchers]
        run.went_back = self._went_back
        if run.start:
            nothing = {"updates.jsonl": 0, "evals.jsonl": 0} if record else {}
            run.start = replace(self._completed(run.start), lengths=nothing)

    def __repr__(self) -> str:
        run = self.run
        where = run.over or f"at version {run.weights.version}, {run.tally.last_update_s:.3g} s"
        return f"<RunKeeper: {run.cfg.mode} on {run.cfg.engine}, {run.cfg.num_workers} workers, {where}>"

    # --- Going on -------------------------------------------------------------------------------------------

    def advance(self, until_s: float = math.inf, *, updates: float = math.inf) -> StoppedBy | None:
        """Go on to the first update at or after `until_s` engine seconds, by so many updates, or to the end;
        return why the run is over, None if it can go on.
        """
        run, checkpoints, last = self.run, self.checkpoints, self.run.tally.updates + updates
        self._begin()
        with _few_collections() if run.cfg.engine == "sim" else nullcontext():
            while not run.over or (run.over == "diverged" and self._roll_back()):
                if self.evaluations.version < 0:
                    self.evaluations.submit()
                if run.tally.last_update_s >= until_s:
                    break
                try:
                    if self._advance(until_s, last):
                        break
                except DriverLost as lost:
                    run.come_back(lost, *self._newest())
                except WeightsLost as lost:
                    latest = [checkpoints.latest] if checkpoints.latest else []
                    run.recover(lost, [*checkpoints.snapshots, *latest])
        return run.over

    def _advance(self, until_s: float, last: float) -> bool:
        """Take updates until the run is over, or until it is to pause; return whether it pauses."""
        run, tally, evaluations, checkpoints = self.run, self.run.tally, self.evaluations, self.checkpoints
        snapshots = run.cfg.checkpoint.on_divergence == "rollback" and "memory" not in checkpoints.due_s
        checkpoint_s = checkpoints.next_s
        while not run.over:
            due_s = min(until_s, checkpoint_s)
            if due_s <= tally.last_update_s or evaluations.waiting:
                update = run.advance(updates=1)
            else:
                update = run.advance(due_s, gradients=evaluations.at, updates=last - tally.updates)
            self.folder.restore()
            if update is None or run.over == "diverged":
                break
            if tally.gradients >= evaluations.at:
                evaluations.submit(update.dones)
                if snapshots:
                    checkpoints.remember(self.state())
                evaluations.postpone()
            if evaluations.waiting and evaluations.collect():
                run.end("target-loss")
            elif run.over and run.workload.objective.has_experts:
                evaluations.submit_last(update.dones)  # beside the workers' own
            elif not run.over:
                if tally.last_update_s >= checkpoint_s:
                    self._checkpoint()
                    checkpoint_s = checkpoints.next_s
                if tally.last_update_s >= until_s or tally.updates >= last:
                    return True
            del update  # its values may be large: they are not kept while the next are computed
        return False

    def _begin(self) -> None:
        """Show the watchers, once, that the run begins: before the first update, recorded or new."""
        if not self._begun:
            self._begun = True
            run, path = self.run, self.record.path if self.record else None
            running = Running(
                cfg=run.cfg,
                cluster=run.engine,
                tally=run.tally,
                path=path,
                about=run.workload.about,
                not_kept=run.workload.objective.trial.notes,
            )
            for watcher in self.watchers:
                watcher.started(running)

    # --- As a value -----------------------------------------------------------------------------------------

    def state(self) -> RunState:
        """Return the run's state, with what is kept of it."""
        return self._completed(self.run.state())

    def _completed(self, state: RunState) -> RunState:
        tensors = carried_tensors(self.run.workload.objective, lambda: state.cluster)
        return replace(
            state,
            carried={name: np.frombuffer(array.tobytes(), np.uint8) for name, array in tensors.items()},
            **self.evaluations.state(),
            lengths=self.record.lengths if self.record else {},
            due_s=self.checkpoints.due_s,
            digest=self.digest,
        )

    def moment(self) -> Moment:
        """Return all from which the run goes on, also to where it would go back."""
        checkpoints, faults = self.checkpoints, self.run.faults
        return Moment(
            self.state(),
            (*self.evaluations.found,),
            checkpoints.latest,
            checkpoints.snapshots,
            (*faults.noted,),
            faults.pending,
            dict(self._in_memory.kept),
        )

    def go_to(self, moment: Moment) -> None:
        """Go on from a moment of this run, or of another from whose states it can go on."""
        state, checkpoints = moment.state, self.checkpoints
        self.run.go_to(state)
        self.run.faults.go_to(state.faults_noted, moment.noted, moment.pending)
        self.evaluations.found = list(moment.found)
        self.evaluations.go_to(state)
        checkpoints.restore(state)
        checkpoints.latest, checkpoints.snapshots = moment.latest, list(moment.snapshots)
        self._in_memory.kept = dict(moment.stored)
        if self.run.faulty and not moment.stored and moment.latest:  # of a run whose disk was not to fail
            parts = to_parts(moment.latest, self.known)
            self._in_memory.write(name_of(moment.latest.weights.version, parts), parts)

    @cached_property
    def digest(self) -> str:
        """Of the options that may not change when the run goes on."""
        return options_digest(self.record.options if self.record else options(self.run.cfg))

    # --- Checkpoints, and going back to them ----------------------------------------------------------------

    def _checkpoint(self) -> None:
        engine, checkpoints = self.run.engine, self.checkpoints
        if self.record:
            self.record.flush()
        cfg, faulty = self.run.cfg, self.run.faulty
        stands_s = cfg.checkpoint.checkpoint_cost_s + sum(store.slower_s for store in faulty)
        if stands_s and cfg.engine == "sim" and checkpoints.is_due(engine.now_s):
            engine.stand_still(stands_s)  # before it is taken, so that a run that goes on from it has done so
            self.run.faults.take()
        checkpoints.take(engine.now_s, self.state)

    def _newest(self) -> tuple[RunState | None, Sequence[tuple[str, str]]]:
        """Return the newest checkpoint that outlives the driver, and which were skipped, and why."""
        run, path = self.run, self.record.path if self.record else None
        if not run.places:
            return self.checkpoints.latest, ()
        state, name, skipped = newest_state(run.cfg, path, run.places, self.known, self.digest)
        for store in run.places.values():
            forget_after(store, name)
        return state, skipped

    def _roll_back(self) -> bool:
        """Go back to before the run diverged, and on with half the step size; return whether it did."""
        checkpoints = self.checkpoints
        finite = [state for state in checkpoints.snapshots if np.isfinite(state.weights.vector).all()]
        if not self.run.roll_back(finite[-1] if finite else None):
            return False
        checkpoints.snapshots = finite[:-1]  # if it diverges again, it goes back further
        checkpoints.forget_after(self.run.weights.version)
        checkpoints.take_last(self.state)
        return True

    def _went_back(self, state: RunState) -> None:
        self.checkpoints.begin_again(state.cluster.now_s)
        self.evaluations.go_to(state)
        if self.record:
            kept = kept_of(state, self.evaluations.found, self.run.faults.count)
            self.record.cut(state.weights.version, state.lengths["evals.jsonl"], kept)

    # --- Going on with a record -----------------------------------------------------------------------------

    def go_on(self, point: ResumePoint, started: float) -> None:
        """Go on with the run of the record; on Ray, after what it had recorded beyond its checkpoint."""
        assert self.record
        run, state, later = self.run, point.state, point.later
        self.skipped = [f"checkpoint {name} was skipped: {why}" for name, why in point.skipped]
        if state:
            with _restoring(self.record.path, point.checkpoint):
                its, needed = state.weights.vector, run.weights.vector
                if (its.dtype, its.shape) != (needed.dtype, needed.shape):
                    raise ValueError(f"weights of {its.dtype}{[*its.shape]}, not {[*needed.shape]}")
                self.go_to(Moment(state, point.evaluations, state))
        self.record.reopen(
            point.lengths,
            version=later[-1].version if later else state.weights.version if state else 0,
            why=point.why,
            started=started,
            cluster=run.engine,
            kept=kept_of(state, point.evaluations, len(point.all_faults)),
        )
        for store in run.places.values():  # only now: a run that is refused loses nothing
            forget_after(store, point.checkpoint)
        if state and self.evaluations.is_at_target():
            run.end("target-loss")
        for faulty in run.faulty:
            faulty.leave_out(point.later_faults)
        run.rollbacks = max(run.rollbacks, sum(fault.kind == "divergence" for fault in point.all_faults))
        run.faults.go_to(len(point.all_faults), point.all_faults)
        for fault in point.later_faults:
            run.tally.fault(fault)
        if later:
            self._roll_forward(point)

    def _roll_forward(self, point: ResumePoint) -> None:
        """Compute the recorded updates after the checkpoint again, and hand the real cluster their state."""
        assert self.record
        self._begin()
        run, cfg, real, train = self.run, self.run.cfg, self.run.engine, self.run.train
        recorded = ReplayCluster(cfg, run.workload, point.later, point.all_faults, device=real.device)
        replayed = wrapped_as_asked(cfg, run.workload, recorded)
        if point.state:
            replayed.restore(point.state.cluster)
        last_version = self.record.recorded_to = recorded.last_version
        rollbacks, grown = rollbacks_at(point.all_faults), read_meta(self.record.path).grown
        sent = {update.version: update.sent for update in point.later if update.sent}
        run.over = None  # what is recorded was made, whatever is asked for now
        run.move_to(
            replayed, lambda on, w, _: rolled_forward(on, last_version, train, w, cfg, rollbacks, sent, grown)
        )
        if self.evaluations.version < 0:
            self.evaluations.submit()
        self._advance(math.inf, math.inf)
        if run.over == "budget" and run.tally.gradients < cfg.budget:
            run.over = None  # only what is recorded has ended
        state = replayed.state()
        real.restore(replace(state, faults=point.faults_given(cfg, state)))
        run.move_to(real, train)


@contextmanager
def _restoring(path: Path, name: str | None) -> Iterator[None]:
    """Have what a checkpoint leads to whose values do not fit the run be one line."""
    try:
        yield
    except STRANGE as error:
        raise ValueError(
            f"--resume {path}: checkpoint {name} does not fit the run "
            f"({type(error).__name__}: {one_line(error)}); remove it, and "
            "the run goes on from the one before"
        ) from error


@contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage in cycles rarely: simulated tasks make none, and thousands are walked each time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
