"""One run as a value: a strategy on an engine, followed update by update until it is over.

`execute` is the one loop: the command line, experiments, labs, tests, benchmarks and notebooks call it. It
prints nothing. To see the run while it goes on, pass a `Watcher`; to keep it, pass a
`RunRecord`; the `Ended` that comes back says how it ended.
"""

from __future__ import annotations

import gc
import math
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsgd.checkpoints.checkpointer import Checkpointer
from dsgd.checkpoints.codec import Vocabulary, vocabulary
from dsgd.checkpoints.run_state import RunState
from dsgd.checkpoints.store import Store, forget_after
from dsgd.checkpoints.store_faults import FaultyStore
from dsgd.cluster import ClusterError, Done, DriverLost, Engine, TimeUp, Update, WeightsLost
from dsgd.cluster.around import start_again
from dsgd.cluster.open import dressed, open_cluster, require_room
from dsgd.cluster.replay import ReplayCluster, after_rollbacks, rollbacks_at, rolled_forward
from dsgd.cluster.state import with_new_processes
from dsgd.config import TrainConfig
from dsgd.data import Workload, make_workload
from dsgd.execution.evaluation import Evaluated, Evaluator, of_workers
from dsgd.execution.first_weights import first_weights
from dsgd.execution.resuming import (
    ResumePoint,
    newest_state,
    options_digest,
    require_same_start,
    resume_point,
    stores_of,
    tiers_of,
)
from dsgd.faults.seen import FaultSeen
from dsgd.metrics import Tally, finite, routing_numbers
from dsgd.records.files import WriteError
from dsgd.records.outcomes import StoppedBy, one_line
from dsgd.strategies import Strategy, strategy_of
from dsgd.terminal.interruptions import BetweenItems, Interruptions
from dsgd.theory.predictions import compare
from dsgd.work.weights import Vector, Weights
from dsgd.workloads import code_of

if TYPE_CHECKING:
    from dsgd.checkpoints.peer_store import PeerStore
    from dsgd.records.writer import RunRecord

MOST_ROLLBACKS = 10
"""How often a run that diverges goes back, each time with half the step size, before it ends."""

LAST_UPDATE_S = 10.0
"""How long a run that is interrupted may take to end its update, so that its last checkpoint has it."""

MOST_LOSSES_IN_VAIN = 1000
"""How often in a row a simulated driver is lost without a newer checkpoint, before the run ends."""


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
        """See an evaluation: on Ray, perhaps some updates after the version that it is of."""

    def fault(self, fault: FaultSeen) -> None:
        """See a fault that is over, or that the run ended in."""

    def ended(self) -> None:
        """See that no update and no evaluation will follow, however the run ended."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended, and its result."""

    cfg: TrainConfig
    stopped_by: StoppedBy
    error: str | None
    """One line, if it failed or diverged."""
    exception: Exception | None
    """The error that ended it."""
    weights: Weights
    """The last version."""
    evaluations: Sequence[Evaluated]
    tally: Tally
    cluster: Engine
    """As it was left: closed, but its counts can be read."""
    path: Path | None
    """The folder of the record, if there is one."""
    wall_s: float
    """Wall seconds from the first task to the last evaluation."""
    startup_s: float
    """Wall seconds from the start of the program, or of `execute`, to the first task."""
    written: Any = None
    """The summary as the record has it."""
    checkpoints_written: int = 0
    """In all places outside this process."""
    notes: Sequence[str] = ()
    """What went wrong with checkpoints and evaluations, in a line each; the run went on."""

    @cached_property
    def summary(self) -> Any:
        """What summary.json says of the run; weights_sha256 only where it was written."""
        return self.written if self.written is not None else _summary(self)

    @property
    def traceback(self) -> str:
        """Where in a strategy, or in dsgd, a mistake was made; empty if that did not end the run."""
        if self.exception is None or isinstance(self.exception, ClusterError | OSError | MemoryError):
            return ""
        return "".join(traceback.format_exception(self.exception))


def execute(
    cfg: TrainConfig,
    watchers: Iterable[Watcher] = (),
    *,
    record: RunRecord | None = None,
    strategy: Strategy | None = None,
    interruptions: Interruptions | None = None,
    started: float | None = None,
    evaluate: bool = True,
    resume: str | None = None,
    engine: Engine | None = None,
) -> Ended:
    """Run one configuration on one engine, to its end.

    record: keeps the run in a folder; without one, nothing is written.
    strategy: trains; the one of the configuration's mode, unless given.
    interruptions: handles the signals, if the caller has entered it; they then end a run between two updates.
    started: epoch seconds at which the program started, if earlier than now.
    evaluate: whether the weights are evaluated; a target loss needs it.
    resume: how the run that `record` is of ended: it goes on from its newest whole checkpoint, or from its
    beginning without any.
    engine: runs it and stays open; without one, the engine that the configuration names is opened and closed.

    An error after the workers are ready ends the run, and is in what is returned. Raises ValueError for
    options that prove impossible before that, ClusterError if the workers cannot be started and
    KeyboardInterrupt if their start is interrupted; nothing is written then.
    """
    started = time.time() if started is None else started
    strategy = strategy or strategy_of(cfg)
    interruptions = interruptions or Interruptions()
    require_room(cfg)
    workload = make_workload(cfg)
    if workload.objective.in_own_process:
        require_room(cfg, workload.objective.num_weights)
    own = [strategy] if cfg.strategy_file else []
    if cfg.data.workload is not None:
        own.append(code_of(cfg.data.workload))
    known = vocabulary(strategy)
    first = first_weights(cfg, workload)
    opened = (
        nullcontext(dressed(cfg, workload, engine))
        if engine
        else open_cluster(cfg, workload, interruptions, own)
    )
    with opened as cluster:
        places = stores_of(cfg, record) if record else {}
        following = _Following(
            cfg, strategy, workload, first, cluster, record, tuple(watchers), known, places, evaluate=evaluate
        )
        interruptions.hold()  # a record that is begun will be completed
        try:
            if record and resume:
                point = resume_point(cfg, record.path, places, known, resume, device=cluster.device)
                if point.state is None:
                    require_same_start(cfg, record.path, first)
                following.go_on(point, started)
            elif record:
                record.open(
                    started=started,
                    cluster=cluster,
                    weights=first if cfg.checkpoint.init_from else None,
                    about=workload.about,
                )
            with _few_collections() if cfg.engine == "sim" else nullcontext():
                return following.to_the_end(interruptions, started)
        finally:
            if record:
                record.release()


@contextmanager
def _few_collections() -> Iterator[None]:
    """Have Python look for garbage in cycles rarely: thousands of simulated tasks make none, and are
    walked each time.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Following:
    """Follows a strategy's updates, has them recorded and evaluated, and knows when and why to stop."""

    def __init__(
        self,
        cfg: TrainConfig,
        strategy: Strategy,
        workload: Workload,
        first: Vector,
        cluster: Engine,
        record: RunRecord | None,
        watchers: Sequence[Watcher],
        known: Vocabulary,
        places: Mapping[str, Store],
        *,
        evaluate: bool,
    ) -> None:
        self.weights = self._weights_here = Weights(first)
        """The last ones, and the newest that this process has had: there may be none other left."""
        self._stopped_by: StoppedBy = "budget"
        self._error: str | None = None
        self._exception: Exception | None = None
        self._cfg, self._strategy, self._cluster = cfg, strategy, cluster
        self._record, self._watchers = record, watchers
        self._tally = Tally(cfg.num_workers, workload.samples_per_batch, cluster.clocks)
        self._evaluator: Evaluator | None = None
        if evaluate:
            self._evaluator = Evaluator(partial(cluster.evaluate, workload), background=cfg.engine == "ray")
        self._evaluations: list[Evaluated] = []
        self._evaluated_version = -1
        self._evaluate_each = cfg.stop.eval_every * cfg.num_workers or math.inf
        self._evaluate_at = self._evaluate_each
        self._faults_taken = 0
        """Of the engine's faults, how many have been noted."""
        self._noted: list[FaultSeen] = []
        """By this process."""
        self._noted_before = 0
        self._rollbacks = 0
        self._gone_on_from, self._losses_in_vain = 0, 0
        """The version that the driver last went on from, and how often it did since it was a newer one."""
        self._start: RunState | None = None
        self._over_already: StoppedBy | None = None
        self._begun = False
        self._is_between = False
        """Whether the run was interrupted between two updates, where a checkpoint can be taken."""
        self._skipped: Sequence[str] = ()
        self._workload = workload
        self._digest = options_digest(cfg)
        self._checkpoints = Checkpointer(
            tiers_of(cfg, places),
            known,
            record.sync if record else lambda: None,
            waits=cfg.engine == "sim" and bool(cfg.fault.faults),  # when one is there is then no race
            says_missed=cfg.engine == "ray",
        )
        self._places, self._known = places, known
        self._faulty = [store for store in places.values() if isinstance(store, FaultyStore)]
        self._store_faults_taken = 0
        if cfg.fault.faults or cfg.checkpoint.on_divergence == "rollback" or self._checkpoints.tiers:
            nothing = {"updates.jsonl": 0, "evals.jsonl": 0} if record else {}
            self._start = replace(self._state(), lengths=nothing)

    def go_on(self, point: ResumePoint, started: float) -> None:
        """Go on with the run of the record; on Ray, after what it had recorded beyond its checkpoint."""
        assert self._record
        state, later = point.state, point.later
        self._skipped = [f"checkpoint {name} was skipped: {why}" for name, why in point.skipped]
        self._record.reopen(
            point.lengths,
            version=later[-1].version if later else state.weights.version if state else 0,
            why=point.why,
            started=started,
            cluster=self._cluster,
        )
        for store in self._places.values():  # only now: a run that is refused loses nothing
            forget_after(store, point.checkpoint)
        if state:
            self._cluster.restore(state.cluster)
            self._restore(state)
            self._checkpoints.restore(state)
            self._rollbacks = state.rollbacks
            self._evaluations = point.evaluations
            self._over_already = self._spent()
            for store in self._faulty:
                store.go_to(state.store_faults)
        for store in self._faulty:
            store.leave_out(point.later_faults)
        self._rollbacks = max(self._rollbacks, sum(fault.kind == "divergence" for fault in point.all_faults))
        self._noted_before = point.faults_noted
        for fault in point.later_faults:
            self._tally.fault(fault)
        if later:
            self._roll_forward(point)

    def _roll_forward(self, point: ResumePoint) -> None:
        """Compute the recorded updates after the checkpoint again, and hand the real cluster their state."""
        assert self._record
        self._start_watchers()
        real, workload = self._cluster, self._workload
        recorded = ReplayCluster(self._cfg, workload, point.later, point.all_faults, device=real.device)
        replayed = dressed(self._cfg, workload, recorded)
        if point.state:
            replayed.restore(point.state.cluster)
        self._cluster = replayed
        self._tally.restore(self._tally.state(), replayed.clocks)
        self._record.recorded_to = recorded.last_version
        if self._evaluated_version < 0:
            self._evaluate()
        rollbacks = rollbacks_at(point.all_faults)
        last_version, train = recorded.last_version, self._strategy.train
        sent = {update.version: update.sent for update in point.later if update.sent}
        updates = rolled_forward(replayed, last_version, train, self.weights, self._cfg, rollbacks, sent)
        self._over_already = self._take(updates)
        state = replayed.state()
        real.restore(replace(state, faults=point.faults_given(self._cfg, state)))
        self._cluster = real
        self._tally.restore(self._tally.state(), real.clocks)

    def _spent(self) -> StoppedBy | None:
        """Return why a run with a checkpoint of its end needs no further update; None if it needs some."""
        target = self._cfg.stop.target_loss
        if target is not None and any(e.found.loss <= target for e in self._evaluations):
            return "target-loss"
        return "budget" if self._tally.gradients >= self._cfg.budget else None

    def _state(self) -> RunState:
        self._fetch(slots=True)
        return RunState(
            weights=self.weights,
            cluster=self._cluster.state(),
            tally=self._tally.state(),
            evaluations=self._evaluator.due() if self._evaluator else (),
            collected=len(self._evaluations),
            evaluate_at=self._evaluate_at,
            evaluated_version=self._evaluated_version,
            lengths=self._record.lengths if self._record else {},
            due_s=self._checkpoints.due_s,
            faults_noted=self._noted_before + len(self._noted),
            rollbacks=self._rollbacks,
            store_faults=next((store.position() for store in self._faulty), {}),
            digest=self._digest,
        )

    def _restore(self, state: RunState) -> None:
        """Take a run's state, all except the cluster's."""
        self.weights = state.weights
        self._tally.restore(state.tally, self._cluster.clocks)
        self._evaluate_at, self._evaluated_version = state.evaluate_at, state.evaluated_version
        if self._evaluator:
            self._evaluator.forget()
            for due in state.evaluations:
                self._evaluator.submit(due.weights, due.t_s, due.gradients, due.bytes, last=True)

    def to_the_end(self, interruptions: Interruptions, started: float) -> Ended:
        """Take updates until the run is over, and complete its record."""
        startup_s, began_s = time.time() - started, time.perf_counter()
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # divergence is detected, and reported
                self._stopped_by = self._follow(interruptions)
        except TimeUp:
            self._stopped_by = "seconds"
        except KeyboardInterrupt as interruption:
            self._stopped_by = "interrupted"
            self._is_between = isinstance(interruption, BetweenItems)
        except Exception as error:
            self._fail(error)
        for complete in (
            self._checkpoint_the_last,
            self._cluster.ended,
            self._note_faults,
            self._fetch_the_last,
            self._evaluate_the_last,
            self._end_watchers,
            self._close_streams,
            self._keep_logs,
        ):
            try:
                complete()
            except Exception as error:  # the summary is written nevertheless
                self._fail(error)
        self._look_at_the_last_loss()
        wall_s = time.perf_counter() - began_s
        if self._record:
            try:
                self._record.draw_trace()
            except (OSError, MemoryError) as error:
                if not self._error:  # a run that diverged has diverged, with or without its trace
                    self._fail(error)
        ended = self._ended(wall_s, startup_s)
        if not self._record:
            return ended
        try:
            written = self._record.close(self.weights.vector, ended.summary)
        except OSError as error:
            self._fail(error)
            return self._ended(wall_s, startup_s)
        return self._ended(wall_s, startup_s, written)

    def _fetch_the_last(self) -> None:
        """Have the last weights here: afterwards no process is left that has them."""
        try:
            self._fetch()
        except WeightsLost as lost:
            self._fail(lost)
            self.weights = self._weights_here
            self._error = f"{self._error} (weights.npy: version {self.weights.version})"

    def _fetch(self, *, slots: bool = False) -> None:
        """Have the newest weights, and their slots if asked, in this process."""
        self._cluster.fetch(self.weights, slots=slots)
        self._weights_here = self.weights

    def _start_watchers(self) -> None:
        """Show the watchers, once, that the run begins: before the first update, recorded or new."""
        if not self._begun:
            self._begun = True
            running = Running(
                cfg=self._cfg,
                cluster=self._cluster,
                tally=self._tally,
                path=self._path,
                about=self._workload.about,
            )
            for watcher in self._watchers:
                watcher.started(running)

    def _follow(self, interruptions: Interruptions) -> StoppedBy:
        self._start_watchers()
        over = self._over_already  # it was killed after its last update
        if over and (over != "diverged" or not self._roll_back()):
            return over
        patience_s = LAST_UPDATE_S if any(tier.store for tier in self._checkpoints.tiers) else 0.0
        while True:
            if self._evaluated_version < 0:
                self._evaluate()
            updates = self._strategy.train(self._cluster, self.weights, self._now_with)
            try:
                stopped_by = self._take(interruptions.between(updates, patience_s))
            except DriverLost as lost:
                self._come_back(lost)
                continue
            except WeightsLost as lost:
                self._recover(lost)
                continue
            if stopped_by != "diverged" or not self._roll_back():
                return stopped_by or "budget"  # the strategy spent it and ended by itself

    @property
    def _now_with(self) -> TrainConfig:
        """The options, with the step size that is left after so many rollbacks."""
        return after_rollbacks(self._cfg, self._rollbacks)

    def _roll_back(self) -> bool:
        """Go back to before the run diverged, and on with half the step size; return whether it did."""
        if self._cfg.checkpoint.on_divergence != "rollback" or self._rollbacks == MOST_ROLLBACKS:
            return False
        checkpoints = self._checkpoints
        finite = [s for s in checkpoints.snapshots if np.isfinite(s.weights.vector).all()]
        state = finite.pop() if finite else self._start
        assert state
        checkpoints.snapshots = finite  # if it diverges again, it goes back further
        self._rollbacks += 1
        back = f"back to version {state.weights.version}, and on with step size {self._now_with.lr:g}"
        fault = self._own_fault("divergence", back, state)
        self._go_back(state, self._cluster.now_s)
        self._note(fault)  # last: were this killed before, it would only diverge again
        checkpoints.forget_after(state.weights.version)
        checkpoints.take_last(self._state)
        self._error = None
        return True

    def _own_fault(self, kind: str, text: str, back_to: RunState) -> FaultSeen:
        cluster = self._cluster.state()
        return FaultSeen(
            t_s=cluster.now_s,
            kind=kind,
            workers=(),
            asked=False,
            update=self.weights.version,
            came_in=cluster.came_in,
            text=text,
            detected_s=0.0,
            recovered_s=0.0,
            repeated=self._tally.gradients - back_to.tally["gradients"],
            back_to=back_to.weights.version,
        )

    def _come_back(self, lost: DriverLost) -> None:
        """Go on from the last checkpoint, once the simulated driver is back; a real one is killed."""
        state: RunState | None = self._checkpoints.latest
        skipped: Sequence[tuple[str, str]] = ()
        if self._record:
            state, name, skipped = newest_state(self._cfg, self._record.path, self._places, self._known)
            for store in self._places.values():
                forget_after(store, name)
        state = state or self._start
        assert state
        words = [f"the driver went on from version {state.weights.version}"]
        words += [f"checkpoint {name} was skipped: {why}" for name, why in skipped]
        self._note_faults(
            text="; ".join(words),
            recovered_s=lost.lasts_s,
            repeated=self._tally.gradients - state.tally["gradients"],
            back_to=state.weights.version,
        )
        if self._in_vain(state) == MOST_LOSSES_IN_VAIN:
            raise ClusterError(
                f"the driver was lost {MOST_LOSSES_IN_VAIN} times in a row before there was a checkpoint "
                f"after version {self._gone_on_from}; choose a shorter --checkpoint-every, or a longer mtbf"
            )
        self._go_back(state, self._cluster.now_s + lost.lasts_s)

    def _recover(self, lost: WeightsLost) -> None:
        """Go on from the last checkpoint, of which this process has a copy; raise `lost` without one, or if
        the weights were lost too often since it was taken.
        """
        checkpoints, again = self._checkpoints, self._cfg.fault.max_restarts
        kept = [*checkpoints.snapshots, *([checkpoints.latest] if checkpoints.latest else [])]
        if not kept:
            raise lost
        state = max(kept, key=lambda kept: kept.weights.version)
        if self._in_vain(state) > again:
            raise lost
        self._note_faults()
        text = f"all processes that held the weights were lost: back to version {state.weights.version}"
        fault = self._own_fault("lost-weights", text, state)._replace(recovered_s=lost.lasts_s)
        self._go_back(state, self._cluster.now_s + lost.lasts_s)
        self._note(fault)

    def _in_vain(self, state: RunState) -> int:
        """Return how often in a row the run has gone on from a state no newer than this one."""
        newer = state.weights.version > self._gone_on_from
        self._gone_on_from = state.weights.version
        self._losses_in_vain = 0 if newer else self._losses_in_vain + 1
        return self._losses_in_vain

    def _go_back(self, state: RunState, now_s: float) -> None:
        """Go on from an earlier state of this run, with new processes, at engine second `now_s`."""
        engine, start, then = self._cluster, self._start, state.cluster
        assert start
        engine.restore(with_new_processes(then, start.cluster, engine.state(), now_s=now_s))
        for flight in then.flights:
            if flight.worker not in then.leaving:
                start_again(engine, flight.worker, flight.task, flight.origin)
        self._restore(state)
        self._checkpoints.begin_again(now_s)
        del self._evaluations[state.collected :]
        for fault in self._noted[max(0, state.faults_noted - self._noted_before) :]:
            self._tally.fault(fault)
        if self._record:
            self._record.cut(state.weights.version, state.lengths["evals.jsonl"])

    def _take(self, updates: Iterator[Update]) -> StoppedBy | None:
        """Take updates until the run is over, or the updates are; then None."""
        cfg, tally, evaluator, checkpoints = self._cfg, self._tally, self._evaluator, self._checkpoints
        seen = [self._record.update] if self._record and self._record.follows_updates else []
        seen += [watcher.updated for watcher in self._watchers if watcher.follows_updates]
        budget, evaluate_each = cfg.budget, self._evaluate_each
        checkpoint_s = checkpoints.next_s
        snapshots = cfg.checkpoint.on_divergence == "rollback" and "memory" not in checkpoints.due_s
        asked, faulty, faults_seen = bool(cfg.fault.faults), self._faulty, self._cluster.faults_seen
        for update in updates:
            self.weights = update.weights
            tally.add(update)
            for see in seen:
                see(update)
            if asked:
                self._cluster.reached(update.weights.version)
                for store in faulty:
                    store.reached(self._cluster.now_s, update.weights.version, self._came_in)
                if faulty:
                    self._note_faults()
            if faults_seen and len(faults_seen) > self._faults_taken:
                self._note_faults()
            if tally.last_loss is not None and not math.isfinite(tally.last_loss):
                return self._diverged(update)
            if tally.gradients >= self._evaluate_at:
                self._evaluate(update.dones)
                if snapshots:
                    checkpoints.remember(self._state())
                self._evaluate_at += evaluate_each * (
                    (tally.gradients - self._evaluate_at) // evaluate_each + 1
                )
            if evaluator and evaluator.waiting and self._collect_evaluations():
                return "target-loss"
            if tally.gradients >= budget:
                if self._workload.objective.has_experts and self._evaluated_version < update.weights.version:
                    self._evaluate(update.dones, last=True)
                return "budget"
            if tally.last_update_s >= checkpoint_s:
                self._checkpoint()
                checkpoint_s = checkpoints.next_s
            del update  # its values may be large: they are not kept while the next are computed
        return None

    def _checkpoint(self) -> None:
        if self._record:
            self._record.flush()
        stands_s = self._cfg.checkpoint.checkpoint_cost_s
        if stands_s and self._checkpoints.is_due(self._cluster.now_s):
            self._cluster.stand_still(stands_s)
        slept_s = self._slept_s
        self._checkpoints.take(self._cluster.now_s, self._state)
        if self._slept_s > slept_s:
            self._cluster.stand_still(self._slept_s - slept_s)

    @property
    def _slept_s(self) -> float:
        return sum(store.slept_s for store in self._faulty)

    def _checkpoint_the_last(self) -> None:
        """Take a checkpoint of the end, from which the run can go on, and finish what is being written."""
        if (self._stopped_by in ("budget", "target-loss") or self._is_between) and self._record:
            self._record.flush()
            self._checkpoints.take_last(self._state)
        self._checkpoints.close()
        if self._stopped_by in ("budget", "target-loss") and (keeper := self._places.get("peer")):
            cast("PeerStore", keeper).close()  # nobody will go on from there
        for store in self._faulty:
            store.end()

    def _note_faults(self, **of_driver: Any) -> None:
        """Note what the engine and the stores have seen; of_driver: what is known of the driver's loss."""
        found = list(self._cluster.faults_seen[self._faults_taken :])
        self._faults_taken += len(found)
        of_stores = [fault for store in self._faulty for fault in store.seen][self._store_faults_taken :]
        self._store_faults_taken += len(of_stores)
        for fault in sorted((*of_stores, *found), key=_over_s) if of_stores else found:
            self._note(fault._replace(**of_driver) if fault.kind == "driver" else fault)

    def _came_in(self) -> int:
        return self._cluster.state().came_in

    def _note(self, fault: FaultSeen) -> None:
        self._noted.append(fault)
        self._tally.fault(fault)
        if self._record:
            self._record.fault(fault)
        for watcher in self._watchers:
            watcher.fault(fault)

    def _fail(self, error: Exception) -> None:
        """Note why the run failed; of several errors the first is the cause."""
        if self._exception:
            return
        self._stopped_by, self._exception, self._error = "failed", error, one_line(error)
        if isinstance(error, WriteError):
            self._error = f"the record is not complete: {self._error}"

    def _diverged(self, update: Update) -> StoppedBy:
        lr = f"it is {self._cfg.lr:g}"
        if self._rollbacks:
            lr += f", {self._now_with.lr:g} after going back {self._rollbacks} times"
        worker, loss = next(
            (d.worker, d.loss) for d in update.dones if d.loss is not None and not math.isfinite(d.loss)
        )
        self._error = (
            f"the loss of worker {worker} at update {update.weights.version} is {loss}; lower --lr ({lr})"
        )
        return "diverged"

    def _evaluate(self, dones: Sequence[Done] = (), *, last: bool = False) -> None:
        """Have the weights evaluated; dones: the tasks of the update that made them, if they are at hand."""
        tally = self._tally
        if self._evaluator is None:
            return
        self._fetch()
        models, loads = of_workers(self._cfg, self._workload.objective, self._cluster, dones)
        if self._evaluator.submit(
            self.weights,
            tally.last_update_s,
            tally.gradients,
            self._cluster.traffic.total,
            last=last,
            models=models,
            loads=loads,
        ):
            self._evaluated_version = self.weights.version

    def _collect_evaluations(self, *, wait: bool = False) -> bool:
        """Hand on the evaluations that are ready; return whether one has reached the target loss."""
        assert self._evaluator
        target = self._cfg.stop.target_loss
        reached = False
        for evaluated in self._evaluator.finished(wait=wait):
            self._evaluations.append(evaluated)
            if self._record:
                self._record.evaluation(evaluated)
            for watcher in self._watchers:
                watcher.evaluated(evaluated)
            reached |= target is not None and evaluated.found.loss <= target
        return reached

    def _evaluate_the_last(self) -> None:
        if self._evaluator:
            if self._evaluated_version < self.weights.version:
                self._evaluate(last=True)
            self._collect_evaluations(wait=True)

    def _end_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.ended()

    def _close_streams(self) -> None:
        if self._record:
            self._record.close_streams()

    def _look_at_the_last_loss(self) -> None:
        """Detect divergence in the last update, which no later update shows, by its evaluation."""
        last = self._evaluations[-1].found.loss if self._evaluations else 0.0
        if self._stopped_by in ("budget", "seconds") and not math.isfinite(last):
            self._stopped_by = "diverged"
            self._error = (
                f"the loss after the last update, {self.weights.version}, is not finite; "
                f"lower --lr (it is {self._cfg.lr:g})"
            )

    def _keep_logs(self) -> None:
        """Have the logs of processes that will be gone beside the record."""
        if self._record:
            something_died = self._stopped_by == "failed" or any(self._cluster.restarts)
            self._record.keep_logs(self._cluster.process_logs(wait=something_died))

    @property
    def _path(self) -> Path | None:
        return self._record.path if self._record else None

    def _ended(self, wall_s: float, startup_s: float, written: Any = None) -> Ended:
        return Ended(
            cfg=self._cfg,
            stopped_by=self._stopped_by,
            error=self._error,
            exception=self._exception,
            weights=self.weights,
            evaluations=self._evaluations,
            tally=self._tally,
            cluster=self._cluster,
            path=self._path,
            wall_s=wall_s,
            startup_s=startup_s,
            written=written,
            checkpoints_written=sum(tier.written for tier in self._checkpoints.tiers),
            notes=(
                *self._skipped,
                *self._checkpoints.notes(),
                *(self._evaluator.notes if self._evaluator else ()),
            ),
        )


def _over_s(fault: FaultSeen) -> float:
    """Return when a fault was over, by which faults.jsonl is ordered: those that recover at once, or never,
    when they began.
    """
    return fault.t_s + (fault.recovered_s or 0.0)


def _summary(ended: Ended) -> dict[str, Any]:
    """Return what summary.json says of a run, except for what the record adds."""
    cfg = ended.cfg
    counted = ended.tally.summary(ended.cluster)
    found = ended.evaluations[-1].found if ended.evaluations else None
    return {
        "mode": cfg.mode,
        "engine": cfg.engine,
        "num_workers": cfg.num_workers,
        "steps": cfg.steps,
        "seed": cfg.seed,
        "stopped_by": ended.stopped_by,
        "error": ended.error,
        "eval": {
            "loss": finite(found.loss) if found else None,
            "accuracy": found.accuracy if found else None,
            "bits_per_byte": finite(found.bits_per_byte) if found else None,
            "perplexity": finite(found.perplexity) if found else None,
            "experts": routing_numbers(found.experts) if found else None,
        },
        **counted,
        "theory": compare(
            cfg,
            counted,
            ended.tally.totals,
            ended.stopped_by,
            restarts=sum(ended.cluster.restarts),
            faults=ended.cluster.faults_seen,
        ),
        "wall_s": ended.wall_s,
        "startup_s": ended.startup_s,
    }
