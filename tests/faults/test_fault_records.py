"""What a run leaves of its faults: lines of faults.jsonl, counts in summary.json, points in TensorBoard."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pytest
from test_tensorboard import scalars

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Update
from dsgd.records.output_options import OutputConfig
from dsgd.records.reader import read_record
from dsgd.records.schema import RecordedFault, RecordError
from dsgd.records.whole import lost
from dsgd.records.writer import RunRecord
from dsgd.running.execute import Ended, execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.quick_run import config

KILL = FaultSeen(1.25, "kill", (2,), True, 5, 6, "worker 2 got a new process", 0.25, 1.5, repeated=1)
PAUSE = FaultSeen(1.0, "pause", (0, 1), True, 4, 4, "waited", 0.0, 2.5)
COPIED = FaultSeen(3.0, "kill", (1,), False, 9, 9, "moved to host 0", 0.5, 0.75, repeated=2, wasted=1)
NEVER_OVER = FaultSeen(4.0, "cut", (0,), True, 12, 12, "nothing passes", 0.5)
SEEN = {6: [KILL], 7: [], 8: [PAUSE, COPIED], 20: [NEVER_OVER]}


class Happening(Watcher):
    """Has an engine see faults at versions of the weights, and keeps what a watcher is shown."""

    def __init__(self, at: Mapping[int, Sequence[FaultSeen]]) -> None:
        self._at = at
        self.shown: list[FaultSeen] = []

    def started(self, running: Running) -> None:
        self._cluster = running.cluster

    def updated(self, update: Update) -> None:
        seen = self._cluster.faults_seen
        assert isinstance(seen, list)
        seen += self._at.get(update.weights.version, [])

    def fault(self, fault: FaultSeen) -> None:
        self.shown.append(fault)


def run_with(
    folder: Path, at: Mapping[int, Sequence[FaultSeen]], *, tensorboard: bool = False
) -> tuple[Ended, Happening]:
    """Run asgd for 20 updates, with faults that the engine sees at some of them."""
    happening = Happening(at)
    kept = OutputConfig(out=str(folder), run_name="r", tensorboard=tensorboard)
    cfg = config("asgd", num_workers=4, steps=5, compute_time="exponential:1", output=kept)
    ended = execute(cfg, [happening], record=RunRecord(cfg))
    assert ended.path
    return ended, happening


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Leave the record of a run with four faults."""
    ended, _ = run_with(tmp_path, SEEN)
    assert ended.path
    return ended.path


def test_what_is_seen_is_recorded_and_read(tmp_path: Path) -> None:
    """Each fault that the engine sees is a line of faults.jsonl, read as it was seen, in the same order."""
    ended, happening = run_with(tmp_path, SEEN)
    assert ended.path
    seen = [KILL, PAUSE, COPIED, NEVER_OVER]
    assert happening.shown == seen
    assert list(read_record(ended.path).faults) == [RecordedFault(**fault._asdict()) for fault in seen]
    first = json.loads((ended.path / "faults.jsonl").read_text().splitlines()[0])
    assert first == KILL._asdict() | {"workers": [2]}


def test_a_fault_is_on_the_disk_at_once(tmp_path: Path) -> None:
    """A fault's line is whole on the disk before the next update: the driver may be killed by then."""
    file, found = tmp_path / "r" / "faults.jsonl", []

    class Looking(Happening):
        def updated(self, update: Update) -> None:
            found.append(file.read_text().count("\n"))
            super().updated(update)

    happening = Looking(SEEN)
    kept = OutputConfig(out=str(tmp_path), run_name="r")
    cfg = config("asgd", num_workers=4, steps=5, compute_time="exponential:1", output=kept)
    execute(cfg, [happening], record=RunRecord(cfg))
    assert found == [0] * 6 + [1] * 2 + [3] * 12


def test_the_summary_counts_the_lines(record: Path) -> None:
    """Counts by kind, mini-batches repeated and wasted, and times of recovery are those of faults.jsonl."""
    read = read_record(record)
    recovered = [fault.recovered_s for fault in read.faults if fault.recovered_s is not None]
    kinds = Counter(fault.kind for fault in read.faults)
    assert read.summary.faults == kinds == {"kill": 2, "pause": 1, "cut": 1}
    assert read.summary.repeated == sum(fault.repeated for fault in read.faults) == 3
    assert read.summary.wasted.faults == read.summary.wasted.total == 1
    assert (read.summary.recovery_s.p50, read.summary.recovery_s.max) == (median(recovered), max(recovered))
    (record / "faults.jsonl").write_text("\n")
    assert lost(read_record(record)) == ["faults.jsonl has 0 of 4 faults"]


def test_a_quiet_run_has_no_faults(tmp_path: Path) -> None:
    """Without faults faults.jsonl is empty, the counts are 0, and there is no time of recovery."""
    ended, _ = run_with(tmp_path, {})
    assert ended.path
    assert (ended.path / "faults.jsonl").read_bytes() == b""
    summary = json.loads((ended.path / "summary.json").read_text())
    assert summary["faults"] == {}
    assert summary["repeated"] == summary["wasted"]["faults"] == 0
    assert summary["recovery_s"] == {"p50": None, "max": None}


def test_a_record_from_before_faults_is_read(record: Path) -> None:
    """A record without faults.jsonl and its counts in summary.json is read as one without faults."""
    (record / "faults.jsonl").unlink()
    summary = json.loads((record / "summary.json").read_text())
    for name in ("faults", "repeated", "recovery_s"):
        del summary[name]
    del summary["wasted"]["faults"]
    (record / "summary.json").write_text(json.dumps(summary))
    read = read_record(record)
    assert read.faults == ()
    assert read.summary.faults == {}
    assert read.summary.repeated == read.summary.wasted.total == 0


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_torn_last_line_is_left_out(record: Path, cut: int) -> None:
    """A last line that was cut off, by a kill or a full disk, is dropped; the lines before it are read."""
    file = record / "faults.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][:-1][:-cut])
    assert [fault.kind for fault in read_record(record).faults] == ["kill", "pause", "kill"]


def test_a_damaged_line_is_named(record: Path) -> None:
    """A line that is not a fault is named with its file, number and field."""
    file = record / "faults.jsonl"
    file.write_text(file.read_text().replace('"t_s":1.0', '"t_s":"soon"'))
    with pytest.raises(RecordError, match=r"faults\.jsonl, line 2: t_s is not a number"):
        read_record(record)


def test_tensorboard_has_a_point_a_fault(tmp_path: Path) -> None:
    """fault/repeated has a point for each fault, fault/recovery_s for each that ended, when it did."""
    ended, _ = run_with(tmp_path, SEEN, tensorboard=True)
    assert ended.path
    found = scalars(ended.path)
    assert [(p.step, p.value) for p in found["fault/repeated"]] == [(6, 1), (8, 0), (8, 2), (20, 0)]
    assert [(p.step, p.value) for p in found["fault/recovery_s"]] == [(6, 1.5), (8, 2.5), (8, 0.75)]
    kill, pause, _ = (point.wall_time for point in found["fault/recovery_s"])
    assert pause - kill == pytest.approx((1.0 + 2.5) - (1.25 + 1.5), rel=1e-6)


def test_what_is_not_over_when_the_driver_is_lost_never_ends() -> None:
    """A slowdown and a loss that end with the simulated driver are recorded, as when they outlive a run."""
    options = {"num_workers": 3, "steps": 10, "restart_s": 2.0, "checkpoint_every": "2"}
    cfg = config("ssgd", **options, faults="slow:1=3@t=2.5; kill:2@t=2.6+9; driver@t=4.5")
    seen = [(fault.kind, fault.workers, fault.t_s, fault.recovered_s) for fault in execute(cfg).faults]
    assert seen == [("driver", (), 4.5, 0.0), ("slow", (1,), 2.5, None), ("kill", (2,), 2.6, None)]
