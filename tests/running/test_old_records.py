"""Records of earlier commits can still be resumed, replayed and read; tests/old_records.py made them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from old_records import KEPT, KINDS, made_on, write_workload

from dsgd.models.objectives import means, module_objective
from dsgd.records.schema import RecordedUpdate
from dsgd.running.execute import execute
from dsgd.running.replaying import difference, recorded_run, replayed
from dsgd.show.terminal.cli import parse
from main import main

ZIPS = sorted(KEPT.glob("*.zip"))
SIMULATED = [name for name, kind in KINDS.items() if kind.engine == "sim"]
ENDED = [name for name, kind in KINDS.items() if kind.killed_at is None and name != "both"]


@pytest.fixture(params=ZIPS, ids=[file.stem for file in ZIPS])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with the records of a commit."""
    write_workload()
    with zipfile.ZipFile(request.param) as kept:
        kept.extractall(tmp_path)
    (tmp_path / "made-on.json").write_text(request.param.with_suffix(".json").read_text())
    return tmp_path


def goes_on(name: str, records: Path) -> None:
    """Resume a run; the weights at its end are those of such a run of today, whatever the processors."""
    record, kind = records / name, KINDS[name]
    steps = 40 if kind.killed_at is None else 20
    assert main(["--resume", str(record), "--steps", str(steps)]) == 0
    today = execute(parse(kind.arguments(name, steps=steps, engine="sim", hosts=None)))
    assert json.loads((record / "summary.json").read_text())["updates"] == today.tally.updates
    found = np.load(record / "weights.npy")
    assert np.linalg.norm(found - today.weights.vector) < 1e-4 * np.linalg.norm(found)


def test_every_kind_is_kept(records: Path) -> None:
    """A kind that is added needs a record."""
    assert {path.name for path in records.iterdir() if path.is_dir()} == {"compared", *KINDS}


@pytest.mark.parametrize("name", SIMULATED)
def test_a_simulation_of_an_earlier_commit_goes_on(name: str, records: Path) -> None:
    """Killed or ended, it ends where a run of today does."""
    goes_on(name, records)


@pytest.mark.ray
def test_a_run_on_ray_of_an_earlier_commit_goes_on(
    records: Path, ray_cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver was killed after its last checkpoint."""
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    goes_on("on-ray", records)


def rounded(recorded: RecordedUpdate, share: float) -> RecordedUpdate:
    """Return an update that equals those whose losses, and what else was measured, differ by no more."""
    gradients, ignored = (
        tuple(replace(task, loss=pytest.approx(task.loss, rel=share, abs=0)) for task in tasks)
        for tasks in (recorded.gradients, recorded.ignored)
    )
    extra = {name: pytest.approx(value, rel=share, abs=0) for name, value in recorded.extra.items()}
    return replace(recorded, gradients=gradients, ignored=ignored, extra=extra)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("both", "every-second")])
def test_a_run_of_an_earlier_commit_is_replayed(name: str, records: Path) -> None:
    """The same tasks with the same losses; on another kind of processor these differ in their last bits."""
    share = 0.0 if json.loads((records / "made-on.json").read_text()) == made_on() else 1e-6
    for update, recorded in replayed(recorded_run(records / name)):
        assert difference(update, rounded(recorded, share)) is None


@pytest.mark.parametrize("name", [*ENDED, "both", "compared/compared"])
def test_a_record_of_an_earlier_commit_is_reported(name: str, records: Path) -> None:
    """Runs, comparisons of engines and experiments."""
    assert main(["report", str(records / name)]) == 0


def test_records_of_an_earlier_commit_are_listed_and_evaluated(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them, also those that were killed."""
    assert main(["list", str(records)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in KINDS)
    for name in (*ENDED, "module"):
        assert main(["evaluate", str(records / name)]) == 0, name


NO_MEANS = '''"""A loss and a score that weigh each sample by its tokens."""
import torch

import dsgd

LENGTHS = torch.arange(1, 301)[:, None]


def weighed(module: torch.nn.Module, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (lengths * (module(x) - 1).square()).sum() / lengths.sum()


def make() -> dsgd.Problem:
    data = torch.randn(300, 2), LENGTHS
    return dsgd.Problem(torch.nn.Linear(2, 1), weighed, data, data, score=weighed)
'''


def test_what_is_no_mean_is_refused_only_to_new_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions trained with any loss: their runs are computed again and go on, with a note each."""
    (tmp_path / "weighed.py").write_text(NO_MEANS)
    record, whole = tmp_path / "cut", tmp_path / "whole"

    def started(path: Path, steps: int) -> int:
        options = f"--steps {steps} --num-workers 2 --batch-size 8 --accumulate 4 --checkpoint-every 2"
        named = f"--workload {tmp_path}/weighed.py --out {tmp_path} --run-name {path.name}"
        return main(["--engine", "sim", "--mode", "ssgd", *options.split(), *named.split()])

    with monkeypatch.context() as earlier:
        for module in means, module_objective:
            earlier.setattr(module, "not_a_mean", lambda *_: None)
        assert started(record, 4) == started(whole, 8) == 0
    capsys.readouterr()
    assert started(tmp_path / "new", 4) == 2
    assert "is no mean over samples, so with --accumulate 4" in capsys.readouterr().err
    for again in (["replay", str(record)], ["--resume", str(record), "--steps", "8"]):
        assert main(again) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert all(f"note its {it} is" in said for it in ("loss", "score of test data"))
    assert (record / "weights.npy").read_bytes() == (whole / "weights.npy").read_bytes()
