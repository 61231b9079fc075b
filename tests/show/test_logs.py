"""The log: who says what, when, of which run; on standard error, as text or as JSON lines."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CommandLine, keys

from dsgd import Watcher, run
from dsgd.core.protocol import Update
from dsgd.engines.ray.worker.captured_output import MOST_CHARACTERS, CapturedOutput
from dsgd.running.keeper import Running
from dsgd.show.live.logs import logged
from dsgd.show.live.run_now import gradient_norm
from dsgd.show.watching_options import LogConfig

QUADRATIC = "--num-workers 2 --steps 4 --eval-every 0 --workload quadratic --dim 3"
SIM = f"--engine sim --mode ssgd {QUADRATIC}"


@pytest.fixture
def a_line_each_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsgd.show.live.logs.LINE_S", 0.0)


# What the driver logs


@pytest.mark.usefixtures("a_line_each_update")
def test_a_long_run_says_how_far_it_is(cli: CommandLine) -> None:
    """Where no terminal is, lines have time, level, rank and run, and the numbers of an update."""
    ran = cli(f"{SIM} --compute-time constant:1 --schedule linear --lr .5")
    lines = ran.err.splitlines()
    assert len(lines) == 4
    head = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    driver    run1  "
    assert all(re.match(head, line) for line in lines)
    said = re.sub(head, "", lines[1])
    assert said.startswith("50% · 2 updates · loss ")
    assert " · 2 samples/s · lr 0.25 · gradient norm " in said
    assert said.endswith(" · staleness 0.00 · 0/2 busy")
    assert "updates" not in cli(f"{SIM} --quiet").err
    assert "updates" not in cli(f"{SIM} --log-level warning").err


@pytest.mark.usefixtures("a_line_each_update")
@pytest.mark.parametrize("chosen", ["--log-format json", "in a pod"])
def test_json_lines_have_the_numbers_as_numbers(
    cli: CommandLine, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --log-format json, and by itself in a pod, each line is an object."""
    if chosen == "in a pod":
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        chosen = ""
    lines = [json.loads(line) for line in cli(f"{SIM} {chosen} --compute-time constant:1").err.splitlines()]
    assert [line["updates"] for line in lines] == [1, 2, 3, 4]
    first = lines[0]
    assert (first["level"], first["rank"], first["run"], first["logger"]) == (
        "info", "driver", "run1", "dsgd.run",
    )  # fmt: skip
    assert first["message"].startswith("25% · 1 updates · ")
    assert (first["lr"], first["staleness"], first["samples_per_s"]) == (0.1, 0.0, 2.0)
    assert first["gradient_norm"] > 0


def test_levels_and_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    """Less than --log-level is left out, libraries' own chatter always; afterwards nothing is changed."""
    root = logging.getLogger()
    before = root.level, list(root.handlers), logging.getLogger("botocore").level
    with logged(LogConfig(log_level="debug")):
        logging.getLogger("mine").debug("a detail")
        logging.getLogger("botocore.credentials").info("found")
        try:
            raise OSError("no such host")
        except OSError:
            logging.getLogger("mine").exception("lost")
    with logged(LogConfig(log_level="error")):
        logging.getLogger("mine").warning("hidden")
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("Z DEBUG   driver    -  a detail")
    assert said[1].endswith("Z ERROR   driver    -  lost")
    assert said[-1].endswith("driver    -  OSError: no such host")
    assert not {"found", "hidden"} & {line.rpartition("  ")[2] for line in said}
    assert (root.level, list(root.handlers), logging.getLogger("botocore").level) == before


class Norms(Watcher):
    """Compares the gradient norm of each update with the step that it made."""

    def started(self, running: Running) -> None:
        self.cfg = running.cfg
        self.before: np.ndarray | None = None
        self.pairs: list[tuple[float, float]] = []

    def updated(self, update: Update) -> None:
        norm, now = gradient_norm(self.cfg, update), update.weights.vector
        if self.before is not None and norm is not None:
            batches = sum(done.batches for done in update.dones) / len(update.dones)
            moved = float(np.linalg.norm(now - self.before))
            self.pairs.append((norm, moved / (self.cfg.lr * batches)))
        self.before = now.copy()


@pytest.mark.parametrize(
    ("mode", "options"),
    [("ssgd", {}), ("asgd", {}), ("kasync", {"k": 2}), ("localsgd", {"local_steps": 3, "momentum": 0.0})],
)
def test_the_gradient_norm_is_that_of_the_step(mode: str, options: dict[str, Any]) -> None:
    """Without momentum, lr times the norm is how far an update moves the weights, per mini-batch."""
    norms = Norms()
    run(mode, engine="sim", num_workers=4, steps=12, watch=[norms], **options)
    assert len(norms.pairs) >= 3
    for norm, moved in norms.pairs:
        assert norm == pytest.approx(moved, rel=1e-3)


# What workers print and log


@contextmanager
def captured() -> Iterator[CapturedOutput]:
    root = logging.getLogger()
    before = sys.stdout, sys.stderr, list(root.handlers), root.level
    output = CapturedOutput(logging.INFO, most_lines=5)
    output.install()
    try:
        yield output
    finally:
        sys.stdout, sys.stderr, root.handlers, root.level = before


def test_prints_and_logs_are_kept_with_their_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole lines are kept, with the worker whose task was computing; all goes to the own log as well."""
    with captured() as output:
        print("before")
        output.worker = 3
        print("half a ", end="")
        print("line", file=sys.stdout)
        print("10%\r20%\r30%", file=sys.stderr)
        logging.getLogger("mine").warning("%d left", 2)
        logging.getLogger("mine").debug("a detail")
    lines = output.news(0.0).lines
    assert [(line.worker, line.level, line.text) for line in lines] == [
        (None, logging.INFO, "before"),
        (3, logging.INFO, "half a line"),
        (3, logging.WARNING, "30%"),
        (3, logging.WARNING, "mine: 2 left"),
    ]
    own = capsys.readouterr()
    assert "before\nhalf a line\n" in own.out
    assert "WARNING mine: 2 left\n" in own.err


def test_a_process_that_prints_in_a_loop_is_bounded() -> None:
    """Of many and long lines the first are kept, cut; the others are only counted."""
    with captured() as output:
        for n in range(10_000):
            print(n, "x" * 3000)
    news = output.news(0.0)
    assert len(news.lines) == 5
    assert {len(line.text) for line in news.lines} == {MOST_CHARACTERS}
    assert news.left_out == 9_995
    assert news.memory_bytes > 1e6
    assert output.news(0.0)[:2] == ([], 0)


def test_what_followers_print_is_within_their_leaders_bound() -> None:
    """Together no more lines are kept than of one process; each keeps its rank, and all are counted."""
    leader, follower = CapturedOutput(logging.INFO, most_lines=5), CapturedOutput(logging.INFO, most_lines=5)
    for n in range(8):
        follower.add(logging.INFO, f"line {n}")
    leader.add(logging.INFO, "of the leader")
    leader.relay(follower.news(0.0), 2)
    news = leader.news(0.0)
    assert [(line.rank, line.text) for line in news.lines[:2]] == [(0, "of the leader"), (2, "line 0")]
    assert (len(news.lines), news.left_out) == (5, 4)


AFTER_AN_UPDATE = """
import ctypes
import logging
import os

import torch
from torch import nn

from dsgd import Problem


def loss(module, x):
    if module.training and module.weight.any():  # not in the trial
        DO
    return (module(x) - 1).square().mean()


def make():
    module = nn.Linear(2, 1)
    nn.init.zeros_(module.weight)
    return Problem(module, loss, train=(torch.ones(80, 2),), test=(torch.ones(8, 2),))
"""
LOUD = """print("a mini-batch")
        logging.getLogger("loud").warning("a mini-%s", "batch")
        for n in range(5000):
            print("again and again", n)"""
CRASHES = """os.write(2, b"NCCL WARN so says native code\\n")
        ctypes.string_at(0)"""


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_what_workers_print_is_in_the_drivers_log(cli: CommandLine, tmp_path: Path) -> None:
    """What workers print and log is in the driver's log, marked with them; a loop of prints stops nothing."""
    (tmp_path / "loud.py").write_text(AFTER_AN_UPDATE.replace("DO", LOUD))
    ran = cli(f"--mode ssgd --workload {tmp_path}/loud.py --num-workers 2 --steps 5 --batch-size 4")
    assert ran.code == 0, ran.err
    for worker in "01":
        assert f" INFO    worker {worker}  run1  a mini-batch\n" in ran.err
        assert f" WARNING worker {worker}  run1  loud: a mini-batch\n" in ran.err
        assert re.search(rf" WARNING worker {worker}  run1  [\d,]+ more lines are left out; ", ran.err)
    logged = ran.err.count("again and again")
    left_out = sum(int(n.replace(",", "")) for n in re.findall(r"([\d,]+) more lines are left out", ran.err))
    assert logged < left_out
    assert logged + left_out >= 20_000


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_the_end_of_the_log_of_a_process_that_died_is_with_the_record(
    cli: CommandLine, aws: Any, tmp_path: Path
) -> None:
    """On a cluster what native code wrote before it crashed, and Ray's stack trace, go to the bucket with the
    record, by worker.
    """
    (tmp_path / "crashes.py").write_text(AFTER_AN_UPDATE.replace("DO", CRASHES))
    given = f"--workload {tmp_path}/crashes.py --num-workers 2 --steps 9 --batch-size 4 --restarts 0"
    ran = cli(f"--mode ssgd {given} --out s3://lab/runs --run-name it")
    assert ran.code == 1, ran.err
    there = sorted(key for key in keys(aws) if "/logs/" in key)
    assert there, ran.err
    for key in there:
        assert re.fullmatch(r"runs/it/logs/worker-[01]\.txt", key)
    log = aws.get_object(Bucket="lab", Key=there[0])["Body"].read().decode()
    first, *lines = log.splitlines()
    assert re.fullmatch(r"=== process \d+ on [\d.]+: the last of \d+ lines", first)
    assert "NCCL WARN so says native code" in lines
    assert any("SIGSEGV" in line for line in lines[lines.index("NCCL WARN so says native code") :])
