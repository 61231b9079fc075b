"""Scalars for TensorBoard, those of the table of quantities: `--tensorboard` writes RECORD/tensorboard
while the run goes on.

A point's step is the number of mini-batches applied, as in evals.jsonl, so that modes can be compared. Its
wall time moves with the engine's clock: what TensorBoard calls relative time is the run's, virtual or not.
A run that goes on, or back, adds a file; points that it makes again are taken out of the earlier ones.
"""

from __future__ import annotations

import math
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Evaluated, Update
from dsgd.metrics import QUANTITIES
from dsgd.process.files import GrowingFile, whole_file

_POINTS = 1000  # of a run, at most: as many as TensorBoard shows


def require_tensorboard() -> None:
    """Raise ValueError if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ValueError("--tensorboard: TensorBoard is not installed; uv sync --extra tensorboard brings it")


class Kept(NamedTuple):
    """What of an earlier attempt stays in the record of a run that goes on, or back."""

    gradients: int = 0
    """Mini-batches applied by then."""
    evaluated: int = -1
    """Those of the last evaluation that was done by then."""
    faults: int = 0
    """Lines of faults.jsonl, also later ones."""
    t_s: float = 0.0
    """The last update's time, in engine seconds."""


NOTHING = Kept()


class TensorBoard:
    """Writes a point each thousandth of the budget, of the updates since the one before, and evaluations.

    folder: is made. budget: mini-batches of the run. kept: of the points that are there. All of it raises
    OSError if the disk fails.
    """

    def __init__(self, folder: Path, budget: int, kept: Kept = NOTHING) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._every = math.ceil(budget / _POINTS)
        self._points = {row.name: row.points for row in QUANTITIES if row.points}
        self._of_evaluations = tuple(f"{row.name}/" for row in QUANTITIES if row.of_evaluation)
        self._began_s = time.time()  # noqa: TID251 - a label
        self._go_on(kept)

    def cut(self, kept: Kept) -> None:
        """Go back: what comes later than `kept` will be made again."""
        self._file.close()
        self._go_on(kept)

    def _go_on(self, kept: Kept) -> None:
        """Begin a file, after what is kept of those that are there."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        for rest in self._folder.glob("*.partial"):  # of a writer that was killed; TensorBoard would read it
            rest.unlink()
        files, faults = sorted(self._folder.glob("events.out.tfevents.*")), 0
        for file in files:
            from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

            found = [Event.FromString(content) for content in RawEventFileLoader(str(file)).Load()]
            stays = []
            for event in found:
                tag = event.summary.value[0].tag if event.summary.value else ""
                if tag.startswith("fault/"):
                    faults += 1
                    is_kept = faults <= kept.faults
                else:
                    last = kept.evaluated if tag.startswith(self._of_evaluations) else kept.gradients
                    is_kept = not tag or event.step <= last
                if is_kept:
                    stays.append(event)
            if len(stays) < len(found):
                with whole_file(file) as whole:
                    _write(whole, *stays)
            if file is files[0] and found:
                self._began_s = found[0].wall_time
        name = f"events.out.tfevents.{time.time():.0f}"  # noqa: TID251 - a label
        if files and name <= files[-1].name:  # TensorBoard reads them by name
            name = f"{files[-1].name}.1"
        self._gradients, self._point_s, self._now_s = kept.gradients, kept.t_s, kept.t_s
        self._seen: dict[str, list[float]] = {}  # by tag, since the last point
        self._updates = 0  # since then
        self._file = GrowingFile(self._folder / name)
        begins = {"wall_time": self._began_s + kept.t_s}
        _write(self._file, Event(**begins, file_version="brain.Event:2"))
        if files:  # one that is watching forgets what it has seen from this step on
            again = SessionLog(status=SessionLog.START)
            _write(self._file, Event(**begins, step=kept.gradients + 1, session_log=again))

    def update(self, update: Update) -> None:
        """Count an update, and write a point if one is due."""
        for name, points in self._points.items():
            for value in points(update):
                self._seen.setdefault(f"update/{name}", []).append(value)
        for name, value in update.extra.items():
            self._seen.setdefault(f"extra/{name}", []).append(value)
        self._updates += 1
        before = self._gradients
        self._gradients += sum(done.batches for done in update.dones)
        self._now_s = update.finished_s
        if self._gradients // self._every > before // self._every:  # the same steps if a run goes on
            self._point()

    def evaluation(self, evaluated: Evaluated) -> None:
        """Write an evaluation."""
        found = {
            f"{row.name}/{name}": of(evaluated.found)
            for row in QUANTITIES
            for name, of in row.of_evaluation.items()
        }
        scalars = {tag: value for tag, value in found.items() if value is not None}
        self._write(scalars, evaluated.gradients, evaluated.t_s)

    def fault(self, fault: FaultSeen) -> None:
        """Write what a fault cost, at the time when it was over."""
        found = {f"fault/{row.name}": row.of_fault(fault) for row in QUANTITIES if row.of_fault}
        scalars = {tag: value for tag, value in found.items() if value is not None}
        self._write(scalars, self._gradients, fault.t_s + (fault.recovered_s or 0.0))

    def close(self) -> None:
        """Write the point that is due next, and close the file."""
        if self._updates:
            self._point()
        self._file.close()

    def _point(self) -> None:
        scalars = {tag: sum(seen) / len(seen) for tag, seen in self._seen.items()}
        if self._now_s > self._point_s:
            scalars["update/updates_per_s"] = self._updates / (self._now_s - self._point_s)
        self._write(scalars, self._gradients, self._now_s)
        self._seen, self._updates, self._point_s = {}, 0, self._now_s

    def _write(self, scalars: dict[str, float], gradients: int, t_s: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=x) for tag, x in scalars.items() if math.isfinite(x)]
        _write(
            self._file, Event(wall_time=self._began_s + t_s, step=gradients, summary=Summary(value=values))
        )


def _write(file: GrowingFile | IO[bytes], *events: Any) -> None:
    """Write events, and flush for a TensorBoard that is watching."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())
    writer.flush()
