"""A run between two updates: a value that goes on.

`Run` decides what the next version is, whether the run is over, and whether and to where it goes back. It
writes nothing, starts no thread and prints nothing: that is for its keeper (keeper.py).

    run = Run(cfg, workload, engine)
    run.advance(20.0)              # to the first update at or after 20 s; nothing goes on meanwhile
    then = run.state()
    run.advance()                  # to its end
    run.go_to(then)                # and on from there again, bit for bit

Bits depend on the order of what belongs to one update: it is counted; then each of `on_update` sees it, the
record first; the engine, and places for checkpoints, learn of its version, and faults that are due with it
begin; then it is known whether the run is over. Only then may it be evaluated, and the run's state be taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.ledger import with_new_processes
from dsgd.core.model import Workload
from dsgd.core.protocol import ClusterError, DriverLost, Engine, TimeUp, Update, WeightsLost
from dsgd.core.weights import Vector, Weights
from dsgd.engines.replay import after_rollbacks
from dsgd.metrics import Tally
from dsgd.process.outcomes import StoppedBy
from dsgd.records.stores.store import Store
from dsgd.running.checkpoints.run_state import RunState
from dsgd.running.checkpoints.store_faults import FaultyStore
from dsgd.running.first_weights import first_weights
from dsgd.strategies import Strategy, strategy_of
from dsgd.transforms.wrapped_engine import start_again

MOST_ROLLBACKS = 10
"""How often a run that diverges goes back, each time with half the step size, before it ends."""

MOST_LOSSES_IN_VAIN = 1000
"""How often in a row a simulated driver is lost without a newer checkpoint, before the run ends."""


class NotedFaults:
    """The faults of a run that are over, each noted once: counted, and passed to each of `on_fault`."""

    def __init__(self, tally: Tally, engine: Engine, stores: Sequence[FaultyStore]) -> None:
        self.noted: list[FaultSeen] = []
        self.before = 0
        """How many were noted before this process began."""
        self.on_fault: list[Callable[[FaultSeen], None]] = []
        self.engine, self._tally, self._stores = engine, tally, stores
        self._taken, self._taken_of_stores = 0, 0
        """How many of those that the engine and the stores have seen were noted."""
        self.left: Sequence[FaultSeen] = ()
        """Those that were over at a moment to which the run has gone, and not noted by then."""

    @property
    def count(self) -> int:
        return self.before + len(self.noted)

    @property
    def pending(self) -> list[FaultSeen]:
        """Those that are over and not noted yet, in the order of faults.jsonl."""
        found = [*self.left, *self.engine.faults_seen[self._taken :]]
        of_stores = [fault for store in self._stores for fault in store.seen][self._taken_of_stores :]
        return sorted((*of_stores, *found), key=_over_s) if of_stores else found

    def take(self, **of_driver: Any) -> None:
        """Note those that are pending; of_driver: what is known of the driver's loss."""
        if pending := self.pending:
            self._leave(())
            for fault in pending:
                self.note(fault._replace(**of_driver) if fault.kind == "driver" else fault)

    def _leave(self, pending: Sequence[FaultSeen]) -> None:
        self.left, self._taken = pending, len(self.engine.faults_seen)
        self._taken_of_stores = sum(len(store.seen) for store in self._stores)

    def note(self, fault: FaultSeen) -> None:
        self.noted.append(fault)
        self._tally.fault(fault)
        for see in self.on_fault:
            see(fault)

    def go_to(
        self, count: int, noted: Sequence[FaultSeen] | None = None, pending: Sequence[FaultSeen] = ()
    ) -> None:
        """Go to when so many had been noted, of which `noted` by this process, and others were pending."""
        self.noted = [*(self.noted[: max(0, count - self.before)] if noted is None else noted)]
        self.before = count - len(self.noted)
        self._leave(pending)

    def count_again(self, since: int) -> None:
        """Count those after the first `since` again: the tally has gone back to when there were no more."""
        for fault in self.noted[max(0, since - self.before) :]:
            self._tally.fault(fault)


def _made(update: Update, now_s: float) -> Update:
    """Return an update with the time at which it was made, whatever its strategy says of it."""
    if not update.dones:
        raise ValueError(
            "train yielded an Update without a task; yield Update(w, [done]) of those it applies"
        )
    return update._replace(made_s=now_s)


def _over_s(fault: FaultSeen) -> float:
    """Return when a fault was over, by which faults.jsonl is ordered: those that recover at once, or never,
    when they began.
    """
    return fault.t_s + (fault.recovered_s or 0.0)


class Run:
    """A strategy on an engine between two updates; see the module's text.

    strategy, first: if not those of the options; `first` are the weights (D,) of version 0. places: where
    its keeper has checkpoints, by name; faults of those that are to fail are faults of the run.
    """

    def __init__(
        self,
        cfg: TrainConfig,
        workload: Workload,
        engine: Engine,
        strategy: Strategy | None = None,
        *,
        first: Vector | None = None,
        places: Mapping[str, Store] = MappingProxyType({}),
    ) -> None:
        self.cfg, self.workload, self.engine, self.places = cfg, workload, engine, places
        self.strategy = strategy or strategy_of(cfg)
        self.faulty = [store for store in places.values() if isinstance(store, FaultyStore)]
        """Of the places, those that are to fail."""
        self.train: Callable[..., Iterator[Update]] = self.strategy.train
        """Makes the updates. A replay may take its place; what holds back a signal may go around it."""
        self.weights = self.weights_here = Weights(first_weights(cfg, workload) if first is None else first)
        """The latter are the newest that this process has had: there may be none other left."""
        reduces = cfg.network.parsed_topology.all_reduces
        self.tally = Tally(cfg.num_workers, workload.samples_per_batch, engine.clocks, reduces=reduces)
        self.tally.tokens_per_sample = workload.tokens_per_sample
        self.faults = NotedFaults(self.tally, engine, self.faulty)
        self.on_update: list[Callable[[Update], None]] = []
        """Each is called with each update, once it is counted and before anything else happens."""
        self.went_back: Callable[[RunState], None] = lambda state: None
        """Called with a state to which the run has gone back, before it goes on."""
        self.rollbacks = 0
        self.over: StoppedBy | None = None
        """Why it is over; None: it goes on."""
        self.error: str | None = None
        """One line, if it has diverged."""
        self.start: RunState | None = None
        """Its beginning, if it may have to go back there."""
        self._updates: Iterator[Update] | None = None
        self._gone_on = 0, 0
        """The version from which it last went on after a loss, and how often since there was a newer one."""
        if cfg.fault.faults or cfg.checkpoint.on_divergence == "rollback" or cfg.checkpoint.checkpoint_tiers:
            self.start = self.state()

    # --- Going on -------------------------------------------------------------------------------------------

    def advance(
        self, until_s: float = math.inf, *, gradients: float = math.inf, updates: float = math.inf
    ) -> Update | None:
        """Go on until one of these is reached, or the run is over; return the last update that was made, or
        None where none was, or the strategy had no other.

        until_s: engine seconds of an update. gradients: mini-batches applied in all. updates: how many more.

        Raises DriverLost and WeightsLost, after which `come_back` and `recover` go on; ClusterError; what a
        strategy raises.
        """
        tally, faults, faults_seen = self.tally, self.faults, self.engine.faults_seen
        if self.over or tally.last_update_s >= until_s:
            return None
        engine, on_update, asked = self.engine, self.on_update, bool(self.cfg.fault.faults)
        enough, last = min(gradients, self.cfg.budget), tally.updates + updates
        if self._updates is None:
            self._updates = self.train(self.engine, self.weights, self.now_with)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # divergence is detected, and reported
                for update in self._updates:
                    if not isinstance(update, Update):
                        raise TypeError(f"train yielded a {type(update).__name__}; yield Update(w, [done])")
                    if len(update.dones) != 1 or update.made_s or engine.now_s > update.dones[0].finished_s:
                        update = _made(update, engine.now_s)
                    self.weights = update.weights
                    tally.add(update)
                    for see in on_update:
                        see(update)
                    if asked:
                        self._reached()
                    elif faults_seen or faults.left:
                        faults.take()
                    if tally.last_loss is not None and not math.isfinite(tally.last_loss):
                        self._diverged(update)
                        return update
                    if tally.gradients >= enough or tally.last_update_s >= until_s or tally.updates >= last:
                        if tally.gradients >= self.cfg.budget:
                            self.end("budget")
                        return update
                    del update  # its values may be large: they are not kept while the next are computed
        except TimeUp:
            self.end("seconds")
        except BaseException:
            self._updates = None
            raise
        if not self.over:
            self.end("budget")  # the strategy spent it and ended by itself
        return None

    def updates(self) -> Iterator[Update]:
        """Yield each update, once all that belongs to it has happened; stop at any, and go on later."""
        while (update := self.advance(updates=1)) is not None:
            yield update
            del update

    def end(self, why: StoppedBy, error: str | None = None) -> None:
        """Have the run be over."""
        self.over, self.error, self._updates = why, error or self.error, None

    def fetch(self, *, slots: bool = False) -> None:
        """Have the newest weights, and their slots if asked, in this process."""
        self.engine.fetch(self.weights, slots=slots)
        self.weights_here = self.weights

    @property
    def now_with(self) -> TrainConfig:
        """The options, with the step size that is left after so many rollbacks."""
        return after_rollbacks(self.cfg, self.rollbacks)

    def _reached(self) -> None:
        """Have happen what is due with the newest version."""
        engine, version = self.engine, self.weights.version
        engine.reached(version)
        for store in self.faulty:
            store.reached(engine.now_s, version, lambda: engine.state().came_in)
        self.faults.take()

    def _diverged(self, update: Update) -> None:
        lr = f"it is {self.cfg.lr:g}"
        if self.rollbacks:
            lr += f", {self.now_with.lr:g} after going back {self.rollbacks} times"
        bad = next(d for d in update.dones if d.loss is not None and not math.isfinite(d.loss))
        where = f"worker {bad.worker} at update {update.weights.version}"
        self.end("diverged", f"the loss of {where} is {bad.loss}; lower --lr ({lr})")

    # --- As a value -----------------------------------------------------------------------------------------

    def state(self) -> RunState:
        """Return all from which it goes on: what decides, without what a keeper adds."""
        self.fetch(slots=True)
        return RunState(
            weights=self.weights,
            cluster=self.engine.state(),
            tally=self.tally.state(),
            faults_noted=self.faults.count,
            rollbacks=self.rollbacks,
            store_faults=next((store.position() for store in self.faulty), {}),
        )

    def go_to(self, state: RunState) -> None:
        """Go on from a state of this run, or of one with the same options; its `--faults` may differ in what
        comes later, if both ask for faults of processes, or neither does.
        """
        self.engine.restore(state.cluster)
        self._stand_at(state)
        self.faults.go_to(state.faults_noted)
        self.rollbacks = state.rollbacks
        for store in self.faulty:
            store.go_to(state.store_faults)
        if self.tally.gradients >= self.cfg.budget:
            self.end("budget")

    def move_to(self, engine: Engine, train: Callable[..., Iterator[Update]]) -> None:
        """Go on on another engine, which stands where this one does."""
        self.engine = self.faults.engine = engine
        self.train, self._updates = train, None
        self.tally.restore(self.tally.state(), engine.clocks)

    def _stand_at(self, state: RunState) -> None:
        self.weights, self.over, self.error, self._updates = state.weights, None, None, None
        self.tally.restore(state.tally, self.engine.clocks)

    # --- Going back -----------------------------------------------------------------------------------------

    def roll_back(self, state: RunState | None = None) -> bool:
        """Go back to before the run diverged, or to its start, and on with half the step size; return whether
        it did.
        """
        if self.cfg.checkpoint.on_divergence != "rollback" or self.rollbacks == MOST_ROLLBACKS:
            return False
        state = state or self.start
        assert state
        self.rollbacks += 1
        back = f"back to version {state.weights.version}, and on with step size {self.now_with.lr:g}"
        fault = self._own_fault("divergence", back, state)
        self._go_back(state, self.engine.now_s)
        self.faults.note(fault)  # last: were this killed before, it would only diverge again
        return True

    def come_back(
        self, lost: DriverLost, state: RunState | None = None, skipped: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Go on from a state, or the start, once the simulated driver is back; a real one is killed.

        skipped: newer checkpoints that cannot be used, and why.
        """
        state = state or self.start
        assert state
        words = [f"the driver went on from version {state.weights.version}"]
        words += [f"checkpoint {name} was skipped: {why}" for name, why in skipped]
        known = {"text": "; ".join(words), "recovered_s": lost.lasts_s, **self._undone(state)}
        self.faults.take(**known)
        if self._in_vain(state) == MOST_LOSSES_IN_VAIN:
            raise ClusterError(
                f"the driver was lost {MOST_LOSSES_IN_VAIN} times in a row before there was a checkpoint "
                f"after version {self._gone_on[0]}; choose a shorter --checkpoint-every, or a longer mtbf"
            )
        self._go_back(state, self.engine.now_s + lost.lasts_s)

    def recover(self, lost: WeightsLost, states: Sequence[RunState]) -> None:
        """Go on from the newest of these states; raise `lost` without any, or if the weights were lost too
        often since it was taken.
        """
        if not states:
            raise lost
        state = max(states, key=lambda kept: kept.weights.version)
        if self._in_vain(state) > self.cfg.fault.restart_limit.most:
            raise lost
        self.faults.take()
        text = f"all processes that held the weights were lost: back to version {state.weights.version}"
        fault = self._own_fault("lost-weights", text, state)._replace(recovered_s=lost.lasts_s)
        self._go_back(state, self.engine.now_s + lost.lasts_s)
        self.faults.note(fault)

    def _go_back(self, state: RunState, now_s: float) -> None:
        """Go on from an earlier state of this run, with new processes, at engine second `now_s`."""
        engine, start, then = self.engine, self.start, state.cluster
        assert start
        engine.restore(with_new_processes(then, start.cluster, engine.state(), now_s=now_s))
        for flight in then.flights:
            if flight.worker not in then.leaving:
                start_again(engine, flight.worker, flight.task, flight.origin)
        self._stand_at(state)
        self.faults.count_again(state.faults_noted)
        self.went_back(replace(state, cluster=replace(then, now_s=now_s)))

    def _own_fault(self, kind: str, text: str, back_to: RunState) -> FaultSeen:
        cluster, version = self.engine.state(), self.weights.version
        seen = FaultSeen(cluster.now_s, kind, (), False, version, cluster.came_in, text, 0.0, 0.0)
        return seen._replace(**self._undone(back_to))

    def _undone(self, state: RunState) -> dict[str, Any]:
        """Return what going back to a state undoes."""
        since = self.tally.gradients - int(state.tally["gradients"])
        return {"repeated": since, "back_to": state.weights.version}

    def _in_vain(self, state: RunState) -> int:
        """Return how often in a row the run has gone on from a state no newer than this one."""
        version, losses = self._gone_on
        self._gone_on = state.weights.version, 0 if state.weights.version > version else losses + 1
        return self._gone_on[1]
