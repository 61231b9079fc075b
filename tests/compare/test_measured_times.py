"""A number that decides an answer is given, measured or said: times of mini-batches, ranges of step sizes."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import dsgd
from dsgd.compare.experiment_file import read
from dsgd.compare.measured_times import in_need, with_measured_times
from dsgd.compare.tuning import Selection, widened
from dsgd.show.report.answer import answer
from dsgd.show.report.experiment_yaml import Tuned
from dsgd.show.report.frames import read_folder
from main import main

SLEEPS_S = 0.0025  # for each sample
SLOW = f"""
import time
import torch
from dsgd.core.problem import Problem

def make(seed=0):
    x = torch.linspace(-1, 1, 64)[:, None]

    def loss(module, x, y):
        time.sleep({SLEEPS_S} * len(x))
        return ((module(x) - y) ** 2).mean()

    return Problem(torch.nn.Linear(1, 1), loss, (x, 2 * x), (x, 2 * x))
"""
answered = partial(dsgd.experiment, processes=1)


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """Return the file of a workload whose mini-batches of 8 samples take at least 20 ms."""
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    return str(file)


def asked(workload: str, **keys: Any) -> dict[str, Any]:
    base = {"engine": "sim", "workload": workload, "num_workers": 2, "steps": 3, "batch_size": 8}
    modes = {"ssgd": {"mode": "ssgd"}, "asgd": {"mode": "asgd"}}
    return {"title": "T", "question": "Q?", "base": base, "variants": modes, "seeds": 2} | keys


def given(options: dict[str, Any], workload: str) -> bool:
    content = asked(workload)
    content["base"] |= options
    return bool(in_need(read(content, "x", "x", (), "nowhere")))


IN_SECONDS = [
    {"bytes_per_s": 1e6},
    {"server_bytes_per_s": 1e6},
    {"latency_s": 0.01},
    {"server_time": "constant:.1"},
    {"max_seconds": 5},
    {"racks": "2,1e7"},
    {"faults": "pause:0=5@update=1"},
    {"faults": "kill:0@update=1", "restart_s": 2},
    {"faults": "kill:0@update=1+2"},
    {"faults": "leave:1@t=3"},
    {"faults": "spot:mtbf=9,back=2"},
]
IN_MINI_BATCHES: list[dict[str, Any]] = [{}, {"slowdown": "0=4"}, {"faults": "kill:0@update=2"}]


@pytest.mark.parametrize("options", IN_SECONDS, ids=str)
def test_a_mini_batch_counts_beside_seconds(options: dict[str, Any], slow: str) -> None:
    """One's own module is measured in a simulation with seconds in it, unless its time is given: as `none`,
    too.
    """
    assert given(options, slow)
    assert not given(options | {"compute_time": "constant:1"}, slow)
    assert not given(options | {"compute_time": "none"}, slow)
    assert not given(options, "xor")


@pytest.mark.parametrize("options", IN_MINI_BATCHES, ids=str)
def test_where_all_times_are_mini_batches_their_unit_is_free(options: dict[str, Any], slow: str) -> None:
    """Nothing is measured then, and the answer would be the same."""
    assert not given(options, slow)


def test_what_is_measured_is_the_time_of_all_runs(slow: str) -> None:
    """It is at least what a mini-batch sleeps. Runs that tune have it too, with step sizes beyond the first;
    a variant whose time is given keeps that.
    """
    content = asked(slow, tune="auto")
    content["base"] |= {"bytes_per_s": 1e6}
    content["variants"]["own"] = {"mode": "ssp", "compute_time": "exponential:1"}
    found = with_measured_times(read(content, "x", "x", (), "nowhere"))
    assert found.tuning
    edge = Tuned(variant="ssgd", chosen={"lr": 2.7}, at_the_edge=["lr"], tried=[])
    wider = widened(found, [Selection(found.tuning.tried["ssgd"][-1], edge)])
    assert wider
    assert {run.variant for run in wider.tuning_runs()} > {"ssgd lr=2.7", "ssgd lr=8.1"}
    by_variant: dict[str, set[str]] = {}
    for run in (*wider.runs(), *wider.tuning_runs()):
        by_variant.setdefault(run.variant.partition(" ")[0], set()).add(run.cfg.timing.compute_time)
    seconds = found.variants[0].measured_s or 0
    assert seconds >= 8 * SLEEPS_S
    every = {f"constant:{seconds:g}"}
    assert by_variant == {"ssgd": every, "asgd": every, "own": {"exponential:1"}}


@pytest.mark.thorough
def test_a_measured_time_is_said_and_kept(slow: str, tmp_path: Path) -> None:
    """All runs have the time that the answer says, and a second call goes on with that of the first; those of
    other sizes of mini-batches are compared as if they were no other scenario.
    """
    content = asked(slow, seeds=1, grid={"batch_size": [1, 8]})
    content["base"] |= {"bytes_per_s": 1e6, "batch_size": 8}
    first = answered(content, out=tmp_path / "out")
    frames = read_folder(tmp_path / "out" / "experiment")
    times = {r.variant: f"constant:{frames.measured[r.variant]:g}" for r in frames.records}
    assert times == {r.variant: r.record.config["compute_time"] for r in frames.records}
    assert [*frames.layout.cells] == [""]
    said = (
        r" ms with ssgd batch_size=1 and asgd batch_size=1; \d+ ms with .* \(measured here\)\. Left at the "
    )
    assert re.search(
        said + r"defaults: partition iid and lr 0\.1; others may change the order\.", first.answer
    )
    (tmp_path / "slow.py").write_text(SLOW.replace(str(SLEEPS_S), "1"))
    assert answered(content, out=tmp_path / "out").answer == first.answer


def test_a_default_beside_seconds_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mini-batch of a built-in workload takes a virtual second; a single run prints that, too."""
    content = asked("xor")
    content["base"] |= {"bytes_per_s": 1e6}
    unit = "compute_time none (a mini-batch takes 1 virtual s)"
    assert f"partition iid, lr 0.1 and {unit}; others may change the order." in answered(content).answer
    one = ["--mode", "ssgd", "--engine", "sim", "--num-workers", "2", "--steps", "2", "--out", str(tmp_path)]
    for more, notes in (
        (["--latency-s", ".1"], 1),
        (["--latency-s", ".1", "--compute-time", "constant:1"], 0),
        ([], 0),
    ):
        assert main([*one, *more]) == 0
        assert capsys.readouterr().out.count("a mini-batch takes 1 virtual s") == notes
    record = min(tmp_path.glob("*-ssgd-*"))
    assert answer(read_folder(record)).points[-1].startswith(f"Left at the defaults: {unit}; ")


@pytest.mark.thorough
def test_step_sizes_go_on_until_the_best_lies_inside(tmp_path: Path) -> None:
    """With curvature 1 a step size of 1 is best, above 2 the loss grows: of .01 · 3^n, .81 is chosen. Where
    even the tenth is an edge, that is said.
    """
    content = asked("quadratic", tune="auto", seeds=1)
    content["base"] |= {"grad_noise": 0.0, "mode": "ssgd", "dim": 3}
    del content["base"]["batch_size"]
    content["variants"] = {"near": {"lr": 0.01}, "far": {"lr": 1e-6}}
    found = answered(content, out=tmp_path)
    assert found.chosen["near"] == {"lr": 0.81}
    tuned = {one.variant: one for one in read_folder(tmp_path / "experiment").tuned}
    assert [one.options["lr"] for one in tuned["near"].tried][-2:] == [0.81, 2.4]
    assert len(tuned["far"].tried) == 10
    assert "so a better one may lie beyond: lr 0.0022 (far)." in found.answer
    assert json.loads((tmp_path / "experiment" / "near-s0" / "summary.json").read_text())["eval"]["loss"] < 1
