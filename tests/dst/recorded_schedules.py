"""Random schedules of faults as records: a run that is cut and resumed has the record of the whole one, and a
replay has its tasks and weights, whatever happens to the processes, the driver and the disk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dsgd.conformance.strategy_on_trial import Broken, Subject
from dsgd.core.protocol import Update
from dsgd.records.schema import RecordError
from dsgd.records.writer import RunRecord
from dsgd.running.execute import Ended, execute
from dsgd.running.keeper import Watcher
from dsgd.running.replaying import compared, recorded_run
from dsgd.scenario.fault import STORE
from dst.fault_schedule import FaultSchedule, drawn
from dst.invariants import some_of

_TOPOLOGIES = ("sharded:2", "allreduce", "allreduce:ring", "allreduce:halving")
_FILES = ("updates.jsonl", "evals.jsonl", "faults.jsonl", "weights.npy")
_OF_THIS_MACHINE = ("wall_s", "startup_s")


class _Cut(Exception):
    """The run ends here, as if its driver was lost."""


class _CutAt(Watcher):
    def __init__(self, version: int) -> None:
        self._version = version

    def updated(self, update: Update) -> None:
        if update.weights.version == self._version:
            raise _Cut


def drawn_for_a_record(seed: int, subjects: Sequence[Subject]) -> FaultSchedule:
    """Return the schedule with this number, and more: checkpoints and faults of their disk, often another
    topology, and now and then the loss of all processes at one moment, or a run that diverges.
    """
    rng = random.Random(f"record {seed}")
    schedule = drawn(seed, subjects).having(
        checkpoint_every=rng.choice(("0.5", "1", "3", "8")),
        eval_every=rng.choice((1, 3, 10)),
        max_seconds=1000.0,
    )
    more: Sequence[tuple[float, Mapping[str, Any]]] = (
        (0.5, {"topology": rng.choice(_TOPOLOGIES)}),
        (0.5, {"regroup_s": 0.5}),
        (0.3, {"checkpoint_cost_s": 0.4}),
        (0.2, {"lr": rng.choice((3.0, 30.0)), "on_divergence": "rollback"}),
        (0.3, {"on_loss": "drop", "min_workers": 1}),
    )
    for share, options in more:
        if rng.random() < share:
            schedule = _if_possible(schedule.having(**options), schedule)
    faults = [_of_the_disk(rng, schedule) for _ in range(rng.choice((0, 0, 1, 2)))]
    if rng.random() < 0.3:
        faults.append(_of_everybody(rng, schedule))
    for fault in faults:
        schedule = _if_possible(schedule.having(faults="; ".join([*schedule.faults, fault])), schedule)
    return schedule


def _if_possible(schedule: FaultSchedule, otherwise: FaultSchedule) -> FaultSchedule:
    try:
        schedule.config()
    except ValueError:
        return otherwise
    return schedule


def _of_the_disk(rng: random.Random, schedule: FaultSchedule) -> str:
    kind, at_s = rng.choice(STORE), round(rng.uniform(0, 2.0 * schedule.options["steps"]), 1)
    size = f"={rng.choice((0.3, 2))}" if kind == "slow-disk" else ""
    lasts = f"+{rng.choice((2, 6))}" if kind in ("slow-disk", "full") else ""
    return f"{kind}{size}@t={at_s}{lasts}"


def _of_everybody(rng: random.Random, schedule: FaultSchedule) -> str:
    everybody, steps = ",".join(map(str, range(schedule.options["num_workers"]))), schedule.options["steps"]
    due = (
        f"t={rng.randint(0, 2 * steps)}",
        f"update={rng.randint(1, steps)}",
        f"step={rng.randrange(steps)}",
    )
    return f"kill:{everybody}@{rng.choice(due)}"


def is_kept(schedule: FaultSchedule, cuts: int = 1) -> int:
    """Run a schedule with a record, replay it, and cut it after so many of its updates and resume it; return
    how often it was resumed. Raises Broken with the first difference.

    What is documented is left out: replays that are refused, and resumes of a run that goes back after it
    has diverged, which has lost the snapshots in memory.
    """
    with TemporaryDirectory() as folder, np.errstate(over="ignore", invalid="ignore"):
        whole = _run(schedule, folder, "whole")
        assert whole.path
        try:
            replay = compared(recorded_run(whole.path))
        except RecordError:
            replay = None
        if replay and (replay.differs or replay.same_weights is False):
            raise Broken(f"as a replay: {replay.differs or 'other weights'}", schedule.options)
        if any(fault.kind == "divergence" for fault in whole.faults):
            return 0
        after = [update + 1 for update in some_of(schedule, whole.tally.updates, cuts)]
        for version in after:
            name = f"cut-{version}"
            _run(schedule, folder, name, _CutAt(version))
            again = _run(schedule, folder, name, resume="killed")
            assert again.path
            if found := _difference(again.path, whole.path):
                raise Broken(f"as a record, resumed after update {version}: {found}", schedule.options)
        return len(after)


def _run(
    schedule: FaultSchedule, folder: str, name: str, *watchers: Watcher, resume: str | None = None
) -> Ended:
    cfg = schedule.having(out=folder, run_name=name, trace_last=0).config()
    return execute(cfg, watchers, record=RunRecord(cfg, resume=bool(resume)), resume=resume)


def _difference(ours: Path, needed: Path) -> str:
    """Return in what a record differs from another, up to the time that this machine took; empty if in
    nothing.
    """
    for file in _FILES:
        a, b = (path / file for path in (ours, needed))
        if a.read_bytes() == b.read_bytes():
            continue
        if file.endswith(".npy"):
            return f"{file} differs"
        here, there = ([*path.read_text().splitlines(), "no line"] for path in (a, b))
        number = next(n for n, (x, y) in enumerate(zip(here, there, strict=False)) if x != y)
        return f"line {number + 1} of {file} is {here[number]:.200}, needed {there[number]:.200}"
    x, y = (json.loads((path / "summary.json").read_text()) for path in (ours, needed))
    names = [name for name in y if name not in _OF_THIS_MACHINE and x[name] != y[name]]
    return f"{names[0]} of the summary is {x[names[0]]}, needed {y[names[0]]}" if names else ""
