"""A `make()` that returns something else in another process is noticed there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsgd
from dsgd.data import make_workload
from dsgd.models.beginnings import other_beginnings
from dsgd.models.workloads import names
from dsgd.running.quick_run import config
from dsgd.running.replaying import recorded_run, replayed_run
from main import main

MINE = """
import os
import torch
from torch import nn
from dsgd import Problem

class Items(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]

def loss(module, x, y):
    return (module(x) - y).square().mean()

def make():
    other = os.environ["OTHER"]
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(int(other == "samples")))
    x = x.flip(0) if other == "order" else x[:63] if other == "count" else x
    module = nn.Linear(4, 1)
    with torch.no_grad():
        module.weight += (other == "weights") + 1e-6 * (other == "rounding")
    data = x, x.sum(1, keepdim=True)
    test = (data[0] + 1, data[1]) if other == "test" else data
    if os.environ["FORM"] == "items":
        return Problem(module, loss, Items(*data), Items(*test))
    return Problem(module, loss, data, test)
"""
OTHERS = {
    "samples": "other training data and other test data",
    "order": "other training data and other test data",
    "count": "other training data and other test data",
    "test": "other test data",
    "weights": "other initial weights",
    "rounding": "",
    "": "",
}


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a run with samples in one form, and returns its record."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.setenv("OTHER", "")

    def made(form: str, mode: str = "ssgd") -> Path:
        monkeypatch.setenv("FORM", form)
        options: dict[str, Any] = {
            "workload": str(tmp_path / "mine.py"),
            "steps": 4,
            "batch_size": 4,
            "num_workers": 2,
        }
        ran = dsgd.run(mode, engine="sim", out=tmp_path, run_name=mode, checkpoint_every="2", **options)
        assert ran.path
        return ran.path

    return made


def said_by(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    """Return what a command prints, its lines put together."""
    assert main([str(part) for part in command]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("other", OTHERS)
def test_what_another_process_makes_is_compared(
    other: str, begun: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evaluations, exports, replays and runs that go on say in one line what differs; rounding does not."""
    run = begun("arrays")
    monkeypatch.setenv("OTHER", other)
    words = f"make() gives {OTHERS[other]} here than when the run began"
    loaded = dsgd.load(run)
    assert not loaded.notes
    loaded.evaluate()
    replay = replayed_run(recorded_run(run))[0].workload.objective.trial.notes
    page = said_by(capsys, "evaluate", run)
    on = said_by(capsys, "--resume", run, "--steps", "6")
    for said in (" ".join(loaded.notes), " ".join(replay), page, on):
        assert (words in said) == bool(OTHERS[other])
        assert "make() gives" not in said or OTHERS[other]


def test_samples_that_are_computed_are_compared_by_their_loss(
    begun: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun("items")
    monkeypatch.setenv("OTHER", "samples")
    loaded = dsgd.load(run)
    loaded.evaluate()
    (note,) = loaded.notes
    assert "make() gives another loss of the same 2 samples" in note


def test_a_report_says_which_runs_did_not_begin_alike(
    begun: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begun("arrays", "ssgd")
    begun("arrays", "asgd")
    page = Path(said_by(capsys, "report", run.parent))
    assert "began with" not in page.read_text()
    monkeypatch.setenv("OTHER", "weights")
    begun("arrays", "localsgd")
    said_by(capsys, "report", run.parent)
    assert (
        "localsgd began with other initial weights than asgd, seed 0: compare them with care."
        in page.read_text()
    )


@pytest.mark.parametrize("name", [name for name in names() if name in ("digits_cnn", "moe", "router")])
def test_what_ships_begins_alike(name: str) -> None:
    first, again, other = (
        make_workload(config("ssgd", workload=name, seed=seed)).about for seed in (0, 0, 1)
    )
    assert not other_beginnings(first, again)
    assert other_beginnings(first, other)
    assert np.isfinite(first["first"]["weights"])
