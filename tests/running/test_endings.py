"""However a user's code ends, copies or moves the process, nothing looks like a result that is none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import PATIENCE_S, ROOT, CommandLine, wait_for

from dsgd.process.environment import of_python

STRATEGY = (ROOT / "dsgd/strategies/train_asgd.py").read_text().replace('"asgd"', '"evil"')


class Case(NamedTuple):
    """What a strategy does at its fifth update, and how the run then ends."""

    code: int
    stopped_by: str | None
    """None: it has no summary, and can go on."""
    said: str = ""


CHILD = "multiprocessing.get_context('fork').Process(target=time.sleep, args=(400,)).start()"
CASES = {
    "os._exit(0)": Case(1, "failed", "os._exit() would end the process without a result"),
    "posix._exit(0)": Case(1, "failed", "os._exit() would end the process without a result"),
    "os.execl('/bin/true', 'true')": Case(1, "failed", "os.execv() would end the process without"),
    "sys.exit(0)": Case(1, "failed"),
    "raise KeyboardInterrupt": Case(1, "failed", "KeyboardInterrupt"),
    "os.kill(os.getpid(), signal.SIGTERM)": Case(130, "interrupted"),
    "os._exit(7)": Case(7, None),
    "os.abort()": Case(-signal.SIGABRT, None),
    "signal.alarm(1); time.sleep(9)": Case(-signal.SIGALRM, None),
    "threading.Thread(target=time.sleep, args=(99,), name='poller').start()": Case(
        0, "budget", "poller did not"
    ),
    CHILD: Case(0, "budget", "ForkProcess-1 did not end with the run"),
    "os.fork()": Case(0, "budget", "a copy of this process, made by os.fork(), went on"),
    "0 if os.fork() else sys.exit(0)": Case(0, "budget"),
    "os.chdir('/')": Case(0, "budget"),
    "atexit.register(os._exit, 0); sys.exit('so')": Case(1, "failed", "so"),
}


@pytest.mark.parametrize(
    "evil",
    [
        pytest.param(evil, marks=[pytest.mark.thorough] if "did not" in case.said else [])
        for evil, case in CASES.items()
    ],
)
def test_no_way_of_dying_looks_like_a_result(evil: str, tmp_path: Path) -> None:
    """The exit code is 0 only where the record has its summary; the record is where it was asked for, and has
    each update once; and no process is left.
    """
    modules = "import atexit, multiprocessing, os, posix, signal, sys, threading, time\n"
    at = "            yield Update"
    source = STRATEGY.replace(at, f"            if w.version == 5: {evil}\n{at}")
    before, future, after = source.partition("from __future__ import annotations\n")
    (tmp_path / "train_evil.py").write_text(before + future + modules + after)
    expected = CASES[evil]
    command = [
        sys.executable,
        str(ROOT / "main.py"),
        "--engine=sim",
        "--mode=train_evil.py",
        "--workload=none",
    ]
    command += ["--num-workers=2", "--steps=400", "--out=runs", "--run-name=it", "--quiet"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=of_python(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == expected.code, said
    assert expected.said in said
    record = tmp_path / "runs/it"
    summary = record / "summary.json"
    assert (
        json.loads(summary.read_text())["stopped_by"] if summary.exists() else None
    ) == expected.stopped_by
    versions = [json.loads(line)["version"] for line in (record / "updates.jsonl").read_text().splitlines()]
    assert versions == list(range(1, len(versions) + 1))
    wait_for(lambda: not is_there(process.pid))


def is_there(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


LOSS = """
import os, sys, torch
from torch import nn
from dsgd import Problem

calls = 0

class Silent(Exception):
    def __str__(self): raise RuntimeError

def loss(module, x):
    global calls
    calls += torch.is_grad_enabled()
    if calls == 30: {evil}
    return module(x).square().mean()

def make():
    return Problem(nn.Linear(2, 1), loss, train=(torch.ones(80, 2),), test=(torch.ones(8, 2),))
"""
LOSSES = {
    "sys.exit()": "evil.py, line 14: SystemExit",
    "raise KeyboardInterrupt": "evil.py, line 14: KeyboardInterrupt",
    "raise Silent": "evil.py, line 14: Silent",
    "raise ValueError('x' * 5_000_000)": "evil.py, line 14: ValueError: xxx",
    "os.fork()": "",
    "0 if os.fork() else sys.exit()": "",
    "os.chdir('/')": "",
}


@pytest.mark.parametrize("evil", LOSSES)
def test_a_loss_that_ends_the_process_fails_its_run(
    evil: str, cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line that names the user's line; the record, which is where it was asked for, has all of a long
    text. A copy of the process ends, and the run goes on.
    """
    (tmp_path / "evil.py").write_text(LOSS.replace("{evil}", evil))
    monkeypatch.chdir(tmp_path)
    given = "--engine sim --mode ssgd --workload evil.py --num-workers 2 --steps 30 --batch-size 4 --quiet"
    ran = cli(f"{given} --out here --run-name it")
    record, line = tmp_path / "here/it", LOSSES[evil]
    assert (ran.code, ran.err.count("\n"), line in ran.err) == (int(bool(line)), int(bool(line)), True)
    assert len(ran.err) < 1_200
    summary = json.loads((record / "summary.json").read_text())
    assert summary["stopped_by"] == ("failed" if line else "budget")
    assert len((record / "updates.jsonl").read_text().splitlines()) == summary["updates"]
    assert not line or evil.partition("(")[0] in (record / "logs/driver.txt").read_text()
    if "5_000_000" in evil:
        assert "x" * 5_000_000 in (record / "logs/driver.txt").read_text()
    assert Path.cwd() == tmp_path
