"""Scalars for TensorBoard, those of the table of quantities: `--tensorboard` writes RECORD/tensorboard
while the run goes on.

A point's step is the number of mini-batches applied, as in evals.jsonl, so that modes can be compared. Its
wall time moves with the engine's clock: what TensorBoard calls relative time is the run's, virtual or not.
"""

from __future__ import annotations

import math
import time
from importlib.util import find_spec
from pathlib import Path

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Evaluated, Update
from dsgd.metrics import QUANTITIES
from dsgd.process.files import GrowingFile

_POINTS = 1000  # of a run, at most: as many as TensorBoard shows


def require_tensorboard() -> None:
    """Raise ValueError if TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ValueError("--tensorboard: TensorBoard is not installed; uv sync --extra tensorboard brings it")


class TensorBoard:
    """Writes a point each thousandth of the budget, of the updates since the one before, and evaluations.

    folder: is made. budget: mini-batches of the run. All of it raises OSError if the disk fails.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir()
        self._began_s = time.time()
        self._writer = RecordWriter(GrowingFile(folder / f"events.out.tfevents.{self._began_s:.0f}"))
        self._writer.write(Event(wall_time=self._began_s, file_version="brain.Event:2").SerializeToString())
        self._every = self._due = math.ceil(budget / _POINTS)
        self._points = {row.name: row.points for row in QUANTITIES if row.points}
        self._gradients = 0
        self._point_s = self._now_s = 0.0
        self._seen: dict[str, list[float]] = {}  # by tag, since the last point
        self._updates = 0  # since then

    def update(self, update: Update) -> None:
        """Count an update, and write a point if one is due."""
        for name, points in self._points.items():
            for value in points(update):
                self._seen.setdefault(f"update/{name}", []).append(value)
        for name, value in update.extra.items():
            self._seen.setdefault(f"extra/{name}", []).append(value)
        self._updates += 1
        self._gradients += sum(done.batches for done in update.dones)
        self._now_s = update.finished_s
        if self._gradients >= self._due:
            self._point()
            self._due = self._gradients + self._every

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
        self._writer.close()

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
        event = Event(wall_time=self._began_s + t_s, step=gradients, summary=Summary(value=values))
        self._writer.write(event.SerializeToString())
        self._writer.flush()  # for a TensorBoard that is watching
