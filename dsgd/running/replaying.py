"""A recorded run computed again, update by update, and compared with its record."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from dsgd.config import TrainConfig
from dsgd.core.model import Evaluation, Workload
from dsgd.core.protocol import Done, Update
from dsgd.core.update_counts import finite
from dsgd.core.weights import Vector, Weights
from dsgd.data import make_workload
from dsgd.engines.open_cluster import wrapped_as_asked
from dsgd.engines.replay import RecordUsedUp, ReplayCluster, rollbacks_at, rolled_forward
from dsgd.records.reader import read_faults, read_meta, read_summary, read_updates
from dsgd.records.schema import Meta, RecordedFault, RecordedTask, RecordedUpdate, RecordError, Summary
from dsgd.records.whole import damage
from dsgd.running.first_weights import first_weights
from dsgd.running.run import Run
from dsgd.running.trained_run import recorded_config, recorded_options
from dsgd.scenario.fault import MEMBERSHIP
from dsgd.strategies import strategy_of
from dsgd.transforms.carrying import carried_by_first, with_bits


class Differs(ValueError):
    """A replay differs from its record; the message names the first update, and task, that do."""


@dataclass(frozen=True, kw_only=True)
class ReplayableRun:
    """The record of a run that can be computed again, also of one that was killed."""

    path: Path
    cfg: TrainConfig
    meta: Meta
    summary: Summary | None
    """None: the run was killed, or is under way."""
    faults: Sequence[RecordedFault] = field(repr=False)
    damaged: Sequence[str] = ()
    """What is wrong with the files that a replay is compared with, in a line each."""

    def updates(self, until: int | None = None) -> Iterator[RecordedUpdate]:
        """Yield the recorded updates, up to version `until`; raises RecordError where one is missing."""
        last = 0
        for update in read_updates(self.path):
            if until is not None and update.version > until:
                return
            if update.version != last + 1:
                gap = f"{self.path / 'updates.jsonl'}: update {update.version} follows update {last}"
                raise RecordError(f"{gap}; only a record of all updates can be replayed")
            last = update.version
            yield update


def recorded_run(path: Path) -> ReplayableRun:
    """Read a record; raises RecordError, in one line, for one that cannot be replayed."""
    options = recorded_options(path)
    if (recorded := options.get("record", "all")) != "all":
        raise RecordError(f"{path}: has not every update (--record {recorded}), so it cannot be replayed")
    cfg = recorded_config(path, options)
    meta = read_meta(path)
    if meta.device != "cpu":
        import torch

        if meta.device != "cuda" or not torch.cuda.is_available():
            raise RecordError(f"{path}: was made on {meta.device}, which torch cannot use on this machine")
    faults = tuple(read_faults(path))
    if reason := _lost_order(cfg, {fault.kind for fault in faults}):
        raise RecordError(f"{path}: {reason}")
    damaged, summary = damage(path), None
    if (path / "summary.json").exists():
        with suppress(RecordError):  # it is among the damaged
            summary = read_summary(path)
    return ReplayableRun(path=path, cfg=cfg, meta=meta, summary=summary, faults=faults, damaged=damaged)


def _lost_order(cfg: TrainConfig, kinds: AbstractSet[str]) -> str | None:
    """Return why a record, with faults of these kinds, does not say all that a replay must know."""
    reasons = {"divergence": "had diverged", "lost-weights": "lost its weights"}
    if cfg.engine == "sim":
        reasons["driver"] = "lost its driver"
    why = next((reasons[kind] for kind in reasons if kind in kinds), None)
    if why and not kinds.isdisjoint(MEMBERSHIP):
        remedy = "; --config with its config.yaml makes the same run again" if cfg.engine == "sim" else ""
        return f"{why} and went back while members came and went, which a replay does not follow{remedy}"
    return None


def replayed(run: ReplayableRun, until: int | None = None) -> Iterator[tuple[Update, RecordedUpdate]]:
    """Return an iterator over a run's updates up to version `until`: each computed again, and as recorded.

    Raises RecordError for a record without updates; the iterator raises Differs where the recorded tasks do
    not make these updates.
    """
    return _beside(run, *replayed_run(run, until))


def _beside(run: ReplayableRun, made: Run, last_version: int) -> Iterator[tuple[Update, RecordedUpdate]]:
    updates = _as_recorded(made)
    return ((_next(updates, update), update) for update in run.updates(last_version))


def replayed_run(run: ReplayableRun, until: int | None = None) -> tuple[Run, int]:
    """Return a run that makes the recorded updates again, and the last version that it makes.

    It may pause and have its state taken at any of them, also where the record is of real workers.
    """
    if until is not None and until < 1:
        raise RecordError(f"until {until}: must be at least 1")
    cfg, strategy = run.cfg, strategy_of(run.cfg)
    try:
        workload = make_workload(cfg, recorded=run.meta.workload)
        if cfg.engine == "ray" and workload.objective.in_own_process:  # as each worker had tried it
            workload.objective.try_out(workload.shards[0].on_device(workload.shards[:1], run.meta.device)[0])
    except ValueError as error:
        raise RecordError(f"{run.path}: {error}") from error
    recorded = ReplayCluster(cfg, workload, run.updates(until), run.faults, device=run.meta.device)
    last_version, rollbacks, grown = recorded.last_version, rollbacks_at(run.faults), run.meta.grown
    if not last_version:
        raise RecordError(f"{run.path}: has no update that could be replayed")
    first, cluster = _first_weights(run, workload), wrapped_as_asked(cfg, workload, recorded)
    made = Run(cfg, workload, cluster, first=first)
    made.train = lambda on, w, _: rolled_forward(
        on, last_version, strategy.train, w, cfg, rollbacks, grown=grown
    )
    return made, last_version


def _as_recorded(made: Run) -> Iterator[Update]:
    while (update := made.advance(updates=1)) is not None:
        made.over = None  # the record says when it was over
        yield update
        del update


def _first_weights(run: ReplayableRun, workload: Workload) -> Vector:
    """Return the weights that a run began with; raises RecordError if those of another run have changed."""
    try:
        vector = first_weights(run.cfg, workload)
    except ValueError as error:
        raise RecordError(f"{run.path}: {error}") from None
    expected = run.meta.init_sha256
    if expected is not None and hashlib.sha256(vector.tobytes()).hexdigest() != expected:
        source = run.cfg.checkpoint.init_from
        raise RecordError(f"{run.path}: --init-from {source}: are not the weights that the run began with")
    return vector


def _next(updates: Iterator[Update], recorded: RecordedUpdate) -> Update:
    try:
        return next(updates)
    except StopIteration:
        raise Differs(f"update {recorded.version}: is recorded, and the strategy ends before it") from None
    except RecordUsedUp:
        made = f"update {recorded.version}: is recorded as made of {_named(recorded.gradients)}"
        raise Differs(f"{made}, and the strategy waits for other tasks") from None


def difference(update: Update, recorded: RecordedUpdate) -> str | None:
    """Return the first difference between an update and its record, in words; None if they are the same."""
    where = f"update {recorded.version}"
    for what, dones, tasks in (
        ("made of", update.dones, recorded.gradients),
        ("passes over", update.ignored, recorded.ignored),
    ):
        computed = sorted(dones, key=_place)
        if list(map(_place, computed)) != sorted(map(_place, tasks)):
            return f"{where}: {what} {_named(computed)}, in the record {_named(tasks)}"
        for done, task in zip(computed, sorted(tasks, key=_place), strict=True):
            for name, here, there in (
                ("length", done.batches, task.batches),
                ("staleness", update.staleness(done), task.staleness),
                ("loss", finite(done.loss), task.loss),
            ):
                if here != there:
                    return f"{where}: {_named([done])} has {name} {here}, in the record {there}"
    for name, there in recorded.extra.items():
        here = finite(update.extra.get(name))
        if here != there:
            return f"{where}: has {name} {here}, in the record {there}"
    return None


def _place(task: Done | RecordedTask) -> tuple[int, int]:
    return task.worker, task.step


def _named(tasks: Sequence[Done | RecordedTask]) -> str:
    """Return tasks in words; of many, the first."""
    words = [
        f"worker {task.worker}'s mini-batch {task.step}"
        if task.batches == 1
        else f"worker {task.worker}'s mini-batches {task.step} to {task.step + task.batches - 1}"
        for task in tasks[:4]
    ]
    return ", ".join(words + ["…"] * (len(tasks) > 4)) or "no task"


@dataclass(frozen=True, kw_only=True)
class ReplayComparison:
    """How a replay compares with its record."""

    run: ReplayableRun
    updates: int
    """Computed again, as far as the replay came."""
    tasks: int
    weights: Weights
    recorded_s: float
    """Engine seconds of the run up to the last of these updates."""
    wall_s: float
    differs: str | None
    """The first difference of an update; None without any."""
    same_weights: bool | None
    """Whether the last weights are those of the record, by their digest; None where it has none of them."""
    damaged: Sequence[str]
    """Why not all of the record could be compared, in a line each."""
    made: Run = field(repr=False)
    """The run that was computed again."""

    @property
    def is_same(self) -> bool:
        """Whether all that was asked for was compared, and is the same."""
        return not self.differs and self.same_weights is not False and not self.damaged

    def evaluate(self) -> Evaluation | None:
        """Return the evaluation of its last weights."""
        workload = self.made.workload
        carried = carried_by_first(workload.objective, self.made.engine.state)
        return workload.evaluate(with_bits(self.weights.vector, carried))


def compared(run: ReplayableRun, until: int | None = None) -> ReplayComparison:
    """Compute a recorded run again, up to version `until`, and compare it with its record.

    Raises RecordError for a record that cannot be replayed. After a difference it goes on as far as it can.
    """
    made, last_version = replayed_run(run, until)
    both = _beside(run, made, last_version)
    began_s, tasks, recorded_s = time.perf_counter(), 0, 0.0
    differs: str | None = None
    w = made.weights
    try:
        for update, recorded in both:
            w, recorded_s = update.weights, recorded.t_s
            tasks += len(update.dones) + len(update.ignored)
            differs = differs or difference(update, recorded)
    except Differs as error:
        differs = differs or str(error)
    same, damaged = None, [*run.damaged]
    if run.summary and run.summary.updates > last_version and until is None and not damaged:
        damaged.append(f"updates.jsonl ends at update {last_version:,} of {run.summary.updates:,}")
    if run.summary and run.summary.updates == w.version:
        same = hashlib.sha256(w.vector.tobytes()).hexdigest() == run.summary.weights_sha256
    return ReplayComparison(
        run=run,
        updates=w.version,
        tasks=tasks,
        weights=w,
        recorded_s=recorded_s,
        wall_s=time.perf_counter() - began_s,
        differs=differs,
        same_weights=same,
        damaged=damaged,
        made=made,
    )


def unlike(meta: Meta) -> list[str]:
    """Return how this machine differs from the one that made a record, as far as bits may depend on it."""
    now = {name: version(name) for name in ("torch", "numpy")} | {"python": platform.python_version()}
    found = [
        f"{name} {meta.versions.get(name, 'unknown')} there, {here} here"
        for name, here in now.items()
        if meta.versions.get(name) != here
    ]
    if meta.platform != platform.platform():
        found.append(f"{meta.platform} there, {platform.platform()} here")
    return found
