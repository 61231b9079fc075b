"""--tensorboard: the record's numbers, where TensorBoard looks for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine, run_python
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dsgd.core.protocol import Cluster, Update
from dsgd.records.tensorboard import TensorBoard
from dsgd.running.quick_run import run

SIM = "--engine sim --compute-time exponential:1 --tensorboard --quiet"


def scalars(record: Path) -> Mapping[str, Sequence[Any]]:
    """Return the points that TensorBoard finds, by tag."""
    found = EventAccumulator(str(record / "tensorboard"), size_guidance={"scalars": 0})
    found.Reload()
    return {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}


def near(values: Sequence[float]) -> Any:
    """TensorBoard keeps single precision."""
    return pytest.approx(values, rel=1e-6)


def test_the_points_are_the_records_updates(cli: CommandLine) -> None:
    """In a short run each update is a point: its loss, staleness and drift, at the mini-batches so far."""
    ran = cli(f"{SIM} --mode localsgd --num-workers 3 --steps 24 --local-steps 4")
    updates, found = ran.lines("updates.jsonl"), scalars(ran.record)
    steps = np.cumsum([sum(task["batches"] for task in u["gradients"]) for u in updates])
    expected: dict[str, Any] = {
        "update/loss": [u["loss"] for u in updates],
        "update/drift": [u["drift"] for u in updates],
        "update/staleness": [np.mean([task["staleness"] for task in u["gradients"]]) for u in updates],
        "update/updates_per_s": 1 / np.diff([0, *(u["t_s"] for u in updates)]),
    }
    for tag, values in expected.items():
        assert [point.value for point in found[tag]] == near(values)
        assert [point.step for point in found[tag]] == list(steps)


def test_the_evaluations_are_those_of_the_record(cli: CommandLine) -> None:
    """eval/loss and eval/accuracy are those of evals.jsonl, each at its mini-batches."""
    ran = cli(f"{SIM} --mode asgd --steps 30")
    evals, found = ran.lines("evals.jsonl"), scalars(ran.record)
    for name in ("loss", "accuracy"):
        points = found[f"eval/{name}"]
        assert [(point.step, point.value) for point in points] == [
            (e["gradients"], near(e[name])) for e in evals
        ]


def test_relative_time_is_the_engines(cli: CommandLine) -> None:
    """Two evaluations are as far apart in wall time as on the engine's clock."""
    ran = cli(f"{SIM} --mode asgd --steps 30")
    times = [point.wall_time for point in scalars(ran.record)["eval/loss"]]
    assert np.diff(times) == pytest.approx(np.diff([e["t_s"] for e in ran.lines("evals.jsonl")]), abs=1e-5)


def test_a_long_run_gives_a_thousand_points(cli: CommandLine) -> None:
    """A point is the mean over a thousandth of the budget, and no update is left out."""
    ran = cli(f"{SIM} --mode asgd --steps 1000 --eval-every 0")
    updates, points = ran.lines("updates.jsonl"), scalars(ran.record)["update/staleness"]
    staleness = [u["gradients"][0]["staleness"] for u in updates]
    assert [point.value for point in points] == near(list(np.reshape(staleness, (1000, 4)).mean(1)))


def test_points_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    """A reader during the run finds the points of all updates so far."""
    board = TensorBoard(tmp_path / "tensorboard", budget=40)
    found = []

    def look(_: Cluster, update: Update) -> None:
        board.update(update)
        found.append(len(scalars(tmp_path)["update/staleness"]))

    run("asgd", num_workers=4, steps=10, workload="none", on_update=look)
    board.close()
    assert found == list(range(1, 41))


def test_a_missing_package_is_a_usage_error(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorBoard: exit 2, one line with the remedy, and nothing is written."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    ran = cli(f"{SIM} --steps 2")
    assert ran.code == 2
    assert ran.err == (
        "main.py: --tensorboard: TensorBoard is not installed; uv sync --extra tensorboard brings it\n"
    )
    assert not cli.out.exists()


def test_nothing_of_it_is_imported_unless_asked_for() -> None:
    """A run without --tensorboard, to a folder, starts without TensorBoard's and AWS's packages."""
    code = (
        "import sys, main, tempfile\n"
        "out = tempfile.TemporaryDirectory()\n"
        "main.main(f'--engine sim --workload none --steps 2 --quiet --out {out.name}'.split())\n"
        "assert not {'tensorboard', 'boto3', 'botocore'} & set(sys.modules)\n"
    )
    run_python("-c", code).check_returncode()
