"""A run that is killed at any update goes on as if it had not been."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine, python
from golden_runs import VARIANTS, name

from dsgd.cluster import Update
from dsgd.config import TrainConfig
from dsgd.execution.execute import Ended, Watcher, execute
from dsgd.records.writer import RunRecord
from dsgd.strategies import configured

OPTIONS: Mapping[str, Any] = {
    "engine": "sim", "num_workers": 4, "steps": 24, "lr": 0.05, "eval_every": 3, "trace_last": 0,
    "compute_time": "exponential:1", "slowdown": "0=3", "checkpoint_every": "2",
}  # fmt: skip
WALL = ("wall_s", "startup_s")


class Kill(Watcher):
    """Kills this process after an update."""

    def __init__(self, at: int) -> None:
        self._at = at

    def updated(self, update: Update) -> None:
        if update.weights.version == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def run(cfg: TrainConfig, *watchers: Watcher, resume: str | None = None) -> Ended:
    return execute(cfg, watchers, record=RunRecord(cfg, resume=bool(resume)), resume=resume)


def killed(cfg: TrainConfig, at: int) -> None:
    """Run in a process of its own that is killed after update `at`. A fork needs no second for imports."""
    child = os.fork()
    if not child:
        run(cfg, Kill(at))
        os._exit(3)  # the run has ended before that update
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the run ended with {status}"


def contents(record: Path) -> dict[str, Any]:
    """Return all of a record that does not depend on the machine's speed."""
    summary = json.loads((record / "summary.json").read_text())
    files = ("updates.jsonl", "evals.jsonl", "faults.jsonl", "weights.npy")
    found = {file: (record / file).read_bytes() for file in files}
    return found | {field: value for field, value in summary.items() if field not in WALL}


CASES = [(mode, variant) for mode in VARIANTS for variant in VARIANTS[mode]]


@pytest.mark.parametrize(("mode", "variant"), CASES, ids=[name(mode, variant) for mode, variant in CASES])
def test_a_killed_simulation_goes_on_bit_for_bit(
    mode: str, variant: Mapping[str, Any], tmp_path: Path
) -> None:
    """SIGKILL at random updates, of every mode and variant: the record is that of the run never killed."""

    def cfg(run_name: str) -> TrainConfig:
        return configured({**OPTIONS, "mode": mode, **variant, "out": str(tmp_path), "run_name": run_name})

    whole = run(cfg("whole"))
    assert whole.path
    draws = np.random.default_rng([len(mode), *mode.encode(), CASES.index((mode, variant))])
    for n, at in enumerate(draws.integers(1, whole.tally.updates, 3, endpoint=True)):
        killed(cfg(f"cut{n}"), int(at))
        ended = run(cfg(f"cut{n}"), resume="killed")
        assert not ended.error
        assert ended.path
        assert contents(ended.path) == contents(whole.path), f"killed at update {at}"


def test_a_run_may_be_killed_again_and_again(tmp_path: Path) -> None:
    """Each attempt goes on where the one before was; meta.json lists them."""

    def cfg(run_name: str) -> TrainConfig:
        return configured({**OPTIONS, "mode": "asgd", "out": str(tmp_path), "run_name": run_name})

    whole = run(cfg("whole"))
    killed(cfg("cut"), 30)
    for at in (50, 70):
        child = os.fork()
        if not child:
            run(cfg("cut"), Kill(at), resume="killed")
            os._exit(3)
        os.waitpid(child, 0)
    ended = run(cfg("cut"), resume="killed")
    assert ended.path
    assert whole.path
    assert contents(ended.path) == contents(whole.path)
    attempts = json.loads((ended.path / "meta.json").read_text())["attempts"]
    assert [attempt["why"] for attempt in attempts] == ["killed"] * 3
    assert [attempt["from_version"] for attempt in attempts] == sorted(a["from_version"] for a in attempts)


BEGUN = (
    "--mode asgd --engine sim --num-workers 3 --steps 20 --checkpoint-every 2 --compute-time exponential:1"
)


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the record of a run that was killed in the middle."""
    from dsgd.terminal.cli import parse

    killed(parse([*BEGUN.split(), "--out", str(tmp_path / "runs"), "--run-name", "begun"]), 33)
    return tmp_path / "runs" / "begun"


def resumed(cli: CommandLine, text: str) -> tuple[int, str]:
    from main import main

    code = main(["--resume", *text.split()])
    return code, cli._capsys.readouterr().err


def test_resume_takes_the_options_from_the_record(cli: CommandLine, begun: Path) -> None:
    """`--resume RUN` alone finishes the run; a second one is refused, unless it asks for more steps."""
    assert resumed(cli, str(begun)) == (0, "")
    assert json.loads((begun / "summary.json").read_text())["updates"] == 60
    code, said = resumed(cli, str(begun))
    assert (code, said.count("\n")) == (2, 1)
    assert "is finished (budget); give more --steps than 20" in said
    assert resumed(cli, f"{begun} --steps 30") == (0, "")
    versions = [json.loads(line)["version"] for line in (begun / "updates.jsonl").read_text().splitlines()]
    assert versions == list(range(1, 91))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--lr 3", "--lr 3.0: the run has 0.1; leave it out. Only these may change: --steps, --max-seconds"),
        ("--steps 10", "--steps 10: the run has 20; steps may only grow"),
        ("--seed 4", "--seed 4: the run has 0"),
        ("--run-name other", "--out and --run-name name another folder; leave them out"),
        ("--config x.yaml", "the options are those of that run; leave --config out"),
    ],
)
def test_other_options_are_refused(cli: CommandLine, begun: Path, options: str, said: str) -> None:
    """One line names the option, what the run has, and what may change; nothing is written."""
    before = {file: file.read_bytes() for file in begun.iterdir() if file.is_file()}
    code, line = resumed(cli, f"{begun} {options}")
    assert (code, line.count("\n")) == (2, 1)
    assert said in line
    assert {file: file.read_bytes() for file in begun.iterdir() if file.is_file()} == before


def test_what_is_no_record_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    """One line."""
    code, line = resumed(cli, str(tmp_path))
    assert (code, line.count("\n")) == (2, 1)
    assert "is not the folder of a run record" in line


def test_a_damaged_record_is_refused(cli: CommandLine, begun: Path) -> None:
    """Without readable options nothing can go on."""
    (begun / "config.yaml").write_text("mode: [")
    code, line = resumed(cli, str(begun))
    assert (code, line.count("\n")) == (2, 1)
    assert "config.yaml: cannot be read" in line
    assert "the record is damaged" in line


def test_a_run_that_is_going_on_is_refused(cli: CommandLine, begun: Path) -> None:
    """Two processes never write one record."""
    record = RunRecord(
        configured({**OPTIONS, "mode": "asgd", "out": str(begun.parent), "run_name": "begun"}), resume=True
    )
    code, line = resumed(cli, str(begun))
    assert (code, line.count("\n")) == (2, 1)
    assert "its run is still going on" in line
    record.release()
    assert resumed(cli, str(begun)) == (0, "")


def test_auto_begins_and_goes_on(cli: CommandLine, begun: Path) -> None:
    """The same command line begins a run, or goes on with it: so a job may be started again and again."""
    command = f"{BEGUN} --out {begun.parent} --quiet --run-name"
    assert resumed(cli, f"auto {command} new") == (0, "")
    assert resumed(cli, f"auto {command} begun") == (0, "")
    assert contents(begun) == contents(begun.parent / "new")
    code, line = resumed(cli, f"auto {BEGUN} --out {begun.parent}")
    assert (code, line.count("\n")) == (2, 1)
    assert "goes on with the run of --run-name; give that too" in line


def test_a_process_that_is_killed_goes_on_from_the_command_line(tmp_path: Path) -> None:
    """Nobody in the process helps: main.py is killed from outside, whenever that is, and resumed."""
    command = f"main.py {BEGUN} --steps 3000 --quiet --out {tmp_path} --run-name"
    cut = python(*command.split(), "cut")
    while not list(tmp_path.glob("cut/checkpoints/*.safetensors")):
        assert cut.poll() is None, cut.communicate()
        time.sleep(0.01)
    cut.kill()
    cut.communicate()
    assert cut.returncode == -signal.SIGKILL
    for arguments in (["--resume", str(tmp_path / "cut"), "--quiet"], [*command.split()[1:], "whole"]):
        ended = python("main.py", *arguments)
        assert ended.communicate()[1] == ""
        assert ended.returncode == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
