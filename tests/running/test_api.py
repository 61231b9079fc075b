"""Runs from Python: the same as from the command line, from any folder, as values."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from conftest import HANGS, PATIENCE_S, ROOT, CommandLine, python, run_python

import dsgd
from dsgd.core.protocol import Update
from dsgd.records.reader import read_record
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.keeper import Running
from dsgd.running.quick_run import config

SIM: dict[str, Any] = {
    "engine": "sim",
    "num_workers": 3,
    "steps": 20,
    "workload": "quadratic",
    "optima": "1,2,3",
    "compute_time": "exponential:1",
}

# What a user may well have next to a notebook; importing one by mistake fails.
THEIRS = {
    name: f"raise AssertionError('{name} of the user was imported')\n"
    for name in ("config.py", "data.py", "metrics.py", "main.py", "records.py", "train_asgd.py", "work.py")
}


def elsewhere(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script of the user's in the user's folder."""
    script = folder / "mine.py"
    script.write_text(code)
    return run_python(script, *arguments, cwd=folder)


def test_a_run_from_python_is_the_run_of_the_command_line(cli: CommandLine) -> None:
    """The same options give the same weights and the same summary, its wall times excepted."""
    text = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in SIM.items())
    theirs = cli(f"--mode ssp --slack 2 {text}")
    ours = dsgd.run("ssp", slack=2, out=cli.out, run_name="ours", **SIM)
    assert ours.path == cli.out / "ours"
    assert np.array_equal(ours.weights, np.load(theirs.record / "weights.npy"))
    both = [
        {k: v for k, v in yaml.safe_load((path / "summary.json").read_text()).items() if not k.endswith("_s")}
        for path in (ours.path, theirs.record)
    ]
    assert both[0] == both[1]


def test_without_out_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run and an experiment leave no file in the folder they were called in."""
    monkeypatch.chdir(tmp_path)
    assert dsgd.run("asgd", **SIM).path is None
    asked = {"title": "T", "question": "Q?", "base": SIM, "variants": {"a": {"mode": "asgd"}}, "seeds": 1}
    assert dsgd.experiment(asked).report is None
    assert list(tmp_path.iterdir()) == []


def test_the_tables_of_a_run_are_those_of_its_record(tmp_path: Path) -> None:
    """Updates, tasks and evaluations in memory are what the record has of them, row by row."""
    result = dsgd.run("ksync", k=2, rest="ignore", out=tmp_path, **SIM)
    assert result.path
    record = read_record(result.path)
    updates = list(record.updates())
    assert result.updates["version"].to_list() == [u.version for u in updates]
    assert result.updates["loss"].to_list() == [u.loss for u in updates]
    applied = result.tasks.filter(pl.col("applied"))
    assert applied["staleness"].to_list() == [g.staleness for u in updates for g in u.gradients]
    assert applied["finished_s"].to_list() == [g.finished_s for u in updates for g in u.gradients]
    assert sum(result.tasks["batches"].filter(~result.tasks["applied"])) > 0
    lines = [yaml.safe_load(line) for line in (result.path / "evals.jsonl").read_text().splitlines()]
    assert result.evaluations.to_dicts() == [line | {"bits_per_byte": None} for line in lines]
    assert result.loss == lines[-1]["loss"]
    assert sum(result.staleness.values()) == len(applied)


def test_what_a_cell_of_a_notebook_shows_is_short() -> None:
    """The repr of a result names the run in one line, however long the run was."""
    shown = repr(dsgd.run("asgd", **SIM | {"steps": 2000}))
    assert shown.startswith("<Result: asgd on sim, 3 workers, 6000 updates, stopped by budget, loss ")
    assert len(shown) < 120


@pytest.mark.parametrize(
    ("mode", "options", "says"),
    [
        ("asgd", {"lrr": 1}, "dsgd.run: lrr: there is no such option in --mode asgd; did you mean lr?"),
        ("asgd", {"slack": 3}, "dsgd.run: slack is an option of --mode ssp, not of --mode asgd"),
        ("sgd", {}, "--mode sgd: there is no such strategy; choose one of "),
        ("asgd", {"lr": -1}, "--lr -1.0: must be "),
        ("asgd", {"steps": [1, 2]}, "dsgd.run: 'steps' must be one value, not a list"),
        ("asgd", {"engine": "both"}, 'engine="both" is two runs'),
        ("asgd", {"run_name": "x"}, "dsgd.run: run_name is about the record; say with out="),
        ("asgd", {"workload": "xor", "samples": 64, "num_workers": 4}, "--batch-size 32"),
    ],
)
def test_a_mistake_is_a_value_error_in_the_words_of_the_command_line(
    mode: str, options: dict[str, Any], says: str
) -> None:
    """One line, with no chained exception that a notebook would show too."""
    with pytest.raises(ValueError, match=r".") as caught:
        dsgd.run(mode, **{"engine": "sim"} | options)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": "ray"}, 'engine="ray": only the simulator does this; leave it out'),
        ({"lrr": 1}, "lrr: there is no such option in --mode asgd; did you mean lr?"),
        ({"num_workers": 0}, "--num-workers 0: must be at least 1"),
        ({"workload": "no.py"}, "cannot be read"),
    ],
)
@pytest.mark.parametrize("make", [dsgd.simulation, dsgd.schedule])
def test_mistakes_of_simulations_are_those_of_runs(make: Any, options: dict[str, Any], says: str) -> None:
    """One line that names the option."""
    with pytest.raises(ValueError, match=r".") as caught:
        make("asgd", **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_simulation_is_the_run_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paused anywhere it ends with the run's bytes, its watchers see it, and its repr says where it is."""
    seen: list[int] = []

    class Sees(dsgd.Watcher):
        def updated(self, update: Update) -> None:
            seen.append(update.weights.version)

    monkeypatch.chdir(tmp_path)
    paused = dsgd.simulation("asgd", watch=[Sees()], **SIM)
    assert repr(paused) == "<RunKeeper: asgd on sim, 3 workers, at version 0, 0 s>"
    assert paused.advance(updates=7) is None
    assert "at version 7, " in repr(paused)
    assert paused.advance() == "budget"
    assert repr(paused).endswith("3 workers, budget>")
    whole = dsgd.run("asgd", **SIM)
    assert paused.run.weights.vector.tobytes() == whole.weights.tobytes()
    assert seen == whole.updates["version"].to_list()
    with pytest.raises(
        ValueError, match=r"^dsgd\.simulation: out is about the record, and there is none; leave it"
    ):
        dsgd.simulation("asgd", out="runs")
    assert not list(tmp_path.iterdir())


def test_a_schedule_takes_the_options_of_any_run() -> None:
    """Those of data, of a workload and of the record change nothing in it."""
    asked: dict[str, Any] = {"num_workers": 4, "slowdown": "0=3", "steps": 20}
    others: dict[str, Any] = {
        "workload": "gpt",
        "size": "30m",
        "out": "runs",
        "eval_every": 7,
        "target_loss": 0.1,
        "samples": 9,
    }
    assert dsgd.schedule("ssgd", **asked, **others) == dsgd.schedule("ssgd", **asked)
    assert dsgd.schedule("ssgd", **asked).computing == 0.5
    for wrong in (-5, 1.5, "x"):
        with pytest.raises(ValueError, match=rf"num_weights {wrong}: must be a whole number of at least 0"):
            dsgd.schedule("ssgd", **{**asked, "num_weights": wrong})
    slow = {**asked, "bytes_per_s": "1e6"}
    assert dsgd.schedule("ssgd", **slow, padding_mb="2") == dsgd.schedule("ssgd", **slow, num_weights=500_000)


def test_numbers_of_numpy_and_paths_are_options_too(tmp_path: Path) -> None:
    """A sweep over np.linspace or np.arange needs no conversion."""
    result = dsgd.run("asgd", **SIM | {"lr": np.float32(0.5), "steps": np.int64(2)}, out=tmp_path)
    assert (result.options["lr"], result.options["steps"]) == (0.5, 2)


@pytest.mark.thorough
def test_an_experiment_from_python_is_that_of_the_command_line(cli: CommandLine, tmp_path: Path) -> None:
    """A mapping and its file give the same runs, and the file's folder has the report."""
    asked = {
        "title": "T",
        "question": "Q?",
        "base": SIM,
        "variants": {"a": {"mode": "asgd"}, "s": {"mode": "ssgd"}},
        "seeds": 2,
    }
    ours = dsgd.experiment(asked, settings={"steps": 10})
    assert repr(ours) == "<Comparison: experiment, 2 variants, 4 runs>"
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(asked))
    theirs = dsgd.experiment(tmp_path / "asked.yaml", out=tmp_path / "kept", settings={"steps": 10})
    assert theirs.report
    assert theirs.report.parent == tmp_path / "kept" / "asked"
    assert ours.curves.equals(theirs.curves)
    assert ours.runs.drop("wall_s").equals(theirs.runs.drop("wall_s"))
    with pytest.raises(ValueError, match=r"dsgd\.experiment: variant a: .*did you mean steps"):
        dsgd.experiment(asked | {"variants": {"a": {"mode": "asgd", "stepz": 1}}})


def test_runs_that_all_fail_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment without one result is an error, with that of its first run."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    base = SIM | {"device": "cuda"}
    asked = {"title": "T", "question": "Q?", "base": base, "variants": {"a": {"mode": "asgd"}}, "seeds": 1}
    with pytest.raises(RuntimeError, match=r"^all runs failed; a-s0: --device cuda: this mach"):
        dsgd.experiment(asked)


def test_a_watcher_sees_each_update_and_its_error_is_the_runs() -> None:
    """started, then every update, then ended; what a watcher raises comes out of dsgd.run."""

    class Notes(dsgd.Watcher):
        def __init__(self) -> None:
            self.seen: list[object] = []

        def started(self, running: Running) -> None:
            self.seen.append(running.cfg.mode)

        def updated(self, update: Update) -> None:
            self.seen.append(update.weights.version)
            if update.weights.version == 5:
                raise ZeroDivisionError("a watcher's mistake")

        def ended(self) -> None:
            self.seen.append("ended")

    notes = Notes()
    with pytest.raises(ZeroDivisionError, match="a watcher's mistake"):
        dsgd.run("asgd", watch=[notes], **SIM)
    assert notes.seen == ["asgd", 1, 2, 3, 4, 5, "ended"]


def test_a_mistake_in_a_strategy_comes_out_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception of a strategy reaches the caller with its traceback."""
    from dsgd.strategies import train_ssgd

    def broken(*_: object) -> object:
        raise ZeroDivisionError("a student's mistake")

    monkeypatch.setattr(train_ssgd, "run_all", broken)
    with pytest.raises(ZeroDivisionError) as caught:
        dsgd.run("ssgd", **SIM)
    assert any(Path(entry.path).name == "train_ssgd.py" for entry in caught.traceback)


def test_ctrl_c_ends_a_run_between_two_updates(tmp_path: Path) -> None:
    """KeyboardInterrupt reaches the caller, the record is complete and the handlers are as before."""

    class Interrupt(dsgd.Watcher):
        def updated(self, update: Update) -> None:
            if update.weights.version == 7:
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        dsgd.run("asgd", watch=[Interrupt()], out=tmp_path, run_name="r", **SIM)
    assert signal.getsignal(signal.SIGINT) == before
    summary = read_record(tmp_path / "r").summary
    assert (summary.stopped_by, summary.updates) == ("interrupted", 7)


def test_a_thread_may_run_too() -> None:
    """Where signals cannot be handled, they are left alone."""
    found: list[dsgd.Result] = []
    thread = threading.Thread(target=lambda: found.append(dsgd.run("asgd", **SIM)))
    thread.start()
    thread.join()
    assert found[0].stopped_by == "budget"


def test_execute_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However a run ends: budget, divergence, a failure with its traceback."""
    for options in ({}, {"lr": 1e6}):
        cfg = config("asgd", **SIM | {"curvatures": "1,1,9", "steps": 300} | options, out=str(tmp_path))
        assert execute(cfg, record=RunRecord(cfg)).stopped_by == ("diverged" if options else "budget")
    assert capsys.readouterr() == ("", "")


def test_importing_the_package_takes_no_time() -> None:
    """`import dsgd` alone imports neither torch, ray nor numpy; its names are there all the same."""
    code = (
        "import sys, dsgd\n"
        "assert not {'torch', 'ray', 'numpy'} & set(sys.modules), 'imported too much'\n"
        "assert {'run', 'experiment'} <= set(dir(dsgd))\n"
        "dsgd.run\n"
        "assert not {'torch', 'ray'} & set(sys.modules), 'imported too much'\n"
    )
    run_python("-c", code).check_returncode()
    with pytest.raises(AttributeError, match="'dsgd' has no attribute 'rum'"):
        dsgd.rum  # noqa: B018


ON_BOTH = """
import sys
import dsgd
result = dsgd.run("asgd", engine=sys.argv[1], num_workers=2, steps=5, workload="xor", samples=256)
assert result.updates.height == 10, result
sys.path.insert(0, "theirs")
import config, data, metrics
assert (config.whose, data.whose, metrics.whose) == ("theirs",) * 3
if sys.argv[1] == "sim":
    asked = {"title": "T", "question": "Q?", "seeds": 1, "variants": {"a": {"mode": "asgd"}}}
    print(dsgd.experiment(asked | {"base": {"engine": "sim", "steps": 5, "workload": "none"}}))
print(result)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["sim", pytest.param("ray", marks=pytest.mark.ray)])
def test_files_of_the_users_own_and_ours_do_not_meet(engine: str, tmp_path: Path) -> None:
    """A config.py, data.py … next to a script does not break dsgd, and dsgd does not shadow them."""
    for name, text in THEIRS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "theirs").mkdir()
    for name in ("config.py", "data.py", "metrics.py"):
        (tmp_path / "theirs" / name).write_text("whose = 'theirs'\n")
    ran = elsewhere(tmp_path, ON_BOTH, engine)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1].startswith(f"<Result: asgd on {engine}, 2 workers, 10 updates")


@pytest.mark.crossing(one_in=3)
@pytest.mark.parametrize("called", ["console script", "python -m dsgd"])
@pytest.mark.parametrize(
    "arguments",
    ["--help", "--mode ssp --help", "--stepz 3", "compare x.yaml --sett 1", "lab --help"],
)
def test_each_way_to_call_the_command_line_is_the_same(called: str, arguments: str, tmp_path: Path) -> None:
    """`dsgd` and `python -m dsgd` print what `python main.py` does, under their own name, in any folder."""
    script = shutil.which("dsgd", path=str(Path(sys.executable).parent))
    assert script, "the package is not installed: make setup"
    ours = [script] if called == "console script" else [sys.executable, "-m", "dsgd"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    theirs, ours_ran = (
        subprocess.run(
            [*command, *arguments.split()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        for command in ([sys.executable, str(ROOT / "main.py")], ours)
    )
    assert theirs.returncode == ours_ran.returncode
    assert theirs.returncode == (0 if "--help" in arguments else 2)
    assert theirs.stderr.replace("main.py:", "dsgd:") == ours_ran.stderr
    assert words(theirs.stdout) == words(ours_ran.stdout)


def words(page: str) -> list[str]:
    """Return the words of a page of help, examples in one line and with the script's name."""
    return re.sub(r"(python )?main\.py", "dsgd", page.replace("\\\n", "")).split()


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_load_gets_one_line(which: signal.Signals, tmp_path: Path) -> None:
    """From the first import on: exit 130, one line, no traceback."""
    # Loading stops at a module that reports that it is being loaded, and then takes its time.
    hangs = f"import time\nprint('loading', flush=True)\n{HANGS}\n"
    (tmp_path / "numpy.py").write_text(hangs)
    process = python(
        str(ROOT / "main.py"), "--steps", "1", env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    )
    assert process.stdout
    assert process.stdout.readline() == "loading\n"
    process.send_signal(which)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err == "main.py: interrupted before it began; nothing was written\n"
