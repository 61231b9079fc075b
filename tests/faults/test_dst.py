"""Deterministic simulation testing: the harness itself. Planted mistakes are in test_dst_catches.py.

A thousand schedules, 80 of each mode, run as a law of all strategies in test_conformance.py; `make dst` runs
10,000.
"""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from dst.__main__ import main, reproducer
from dst.fault_schedule import FaultSchedule, drawn, keeps_weights
from dst.invariants import survives
from dst.many_schedules import many
from dst.shrinking import shrunk, smallest

from dsgd.conformance.strategy_on_trial import Broken, Subject
from dsgd.core.ledger import Ledger
from dsgd.core.option_rules import option_fields
from dsgd.scenario.fault import STORE, Fault, Kind
from dsgd.show.terminal.cli import parse
from dsgd.strategies import modes

ALL = [Subject(mode) for mode in modes()]


@pytest.fixture(scope="module")
def first() -> list[FaultSchedule]:
    """Return the first schedules."""
    return [drawn(seed, ALL) for seed in range(600)]


def test_schedules_are_drawn_from_everything(first: list[FaultSchedule]) -> None:
    """All modes, fault kinds, triggers, policies and choices of a strategy are among the first schedules."""
    assert {schedule.subject.mode for schedule in first} == set(modes())
    configs = [schedule.config() for schedule in first]
    faults = [fault for cfg in configs for fault in cfg.fault.fault_list if isinstance(fault, Fault)]
    assert {fault.kind for fault in faults} == set(get_args(Kind)) - set(STORE)
    assert any(
        len(cfg.fault.fault_list) > sum(isinstance(f, Fault) for f in cfg.fault.fault_list) for cfg in configs
    )
    for kind in ("kill", "leave", "lie"):
        assert {fault.trigger.of for fault in faults if fault.kind == kind} == {"t", "update", "step"}
    for option in ("on_loss", "exchange", "rest", "count", "inner", "adaptive", "workload"):
        drawn_values = {schedule.options.get(option) for schedule in first}
        assert len(drawn_values - {None}) >= 2, option
    for option in ("hosts", "spares", "nodes", "suspect_after", "restart_s", "slowdown", "latency_s"):
        assert any(option in schedule.options for schedule in first), option
    assert {schedule.options["num_workers"] for schedule in first} >= {2, 3, 4, 5, 6}


def test_a_number_is_a_schedule(first: list[FaultSchedule]) -> None:
    """The same seed draws the same schedule, and a schedule gives the same run: both are a reproducer."""
    assert [drawn(seed, ALL).options for seed in range(50)] == [schedule.options for schedule in first[:50]]
    once, again = many(range(20), ALL), many(range(20), ALL)
    assert (once.updates, once.faults) == (again.updates, again.faults)
    assert not once.broken


def test_a_command_line_is_a_schedule(first: list[FaultSchedule]) -> None:
    """The line that is printed for a schedule is read as its configuration."""
    for schedule in first[:40]:
        program, *arguments = shlex.split(reproducer(schedule, "the run failed: x"))
        assert (program, arguments[0]) == ("python", "main.py")
        assert parse(arguments[1:]) == schedule.having(max_seconds=float("inf")).config()


def test_masked_faults_are_compared_where_weights_do_not_depend_on_speed(first: list[FaultSchedule]) -> None:
    """Each mode that claims to be deterministic has such schedules, and no other mode has any."""
    compared = Counter(s.subject.mode for s in first if keeps_weights(s.config(), s.subject))
    claimed = {subject.mode for subject in ALL if subject.laws.deterministic is not None}
    assert compared.keys() == claimed
    for subject in ALL:
        for fault in ("leave:1@t=3; join:1@t=9", "kill:1@t=3"):
            policy = {"on_loss": "drop"} if "kill" in fault else {}
            options = {"num_workers": 3, **(subject.laws.deterministic or {}), "faults": fault, **policy}
            assert not keeps_weights(FaultSchedule(subject, options).config(), subject)


def test_a_schedule_shrinks_to_what_matters(first: list[FaultSchedule]) -> None:
    """Faults, options, workers and steps that have no part in a failure are left out."""
    large = next(s for s in first if len(s.faults) > 4 and any(f.startswith("leave") for f in s.faults))

    def fails(schedule: FaultSchedule) -> bool:
        left = any(fault.startswith("leave") for fault in schedule.faults)
        return left and schedule.options["num_workers"] >= 2 and schedule.options["steps"] >= 2

    small = shrunk(large, fails)
    assert small.options.keys() == {"num_workers", "steps", "faults"}
    assert (small.options["num_workers"], small.options["steps"]) == (2, 2)
    assert len(small.faults) == 1


@pytest.mark.thorough
def test_a_failure_is_one_short_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake is reported with the shrunk schedule as a command, which shows it until it is corrected."""
    leave = Ledger.leave

    def skips(ledger: Ledger, worker: int) -> object:  # type: ignore[type-arg]
        flight = leave(ledger, worker)
        ledger.steps[worker] += flight.task.batches if flight else 0
        return flight

    monkeypatch.setattr(Ledger, "leave", skips)
    assert main(["--schedules", "4", "--first", "24", "--mode", "asgd", "--processes", "1"]) == 1
    printed = capsys.readouterr().out
    (command, *_) = (line.partition("run:")[2].strip() for line in printed.splitlines() if "run:" in line)
    program, arguments = command.split(" --", 1)
    assert program == "PYTHONPATH=tests python -m dst"
    assert len(shlex.split(arguments)) <= 16
    assert main(shlex.split(f"--{arguments}")) == 1
    assert "asgd breaks an invariant: " in capsys.readouterr().err
    monkeypatch.undo()
    assert main(shlex.split(f"--{arguments}")) == 0
    assert capsys.readouterr().out == "all invariants hold\n"


@pytest.mark.thorough
def test_the_end_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """It says how many schedules, updates and faults of which kind, and what they cost."""
    assert main(["--schedules", "10", "--first", "7", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    counted = many(range(7, 17), ALL)
    assert f"all {10:>18} {counted.updates.total():>9}" in printed
    assert f"{counted.faults.total()} faults: " in printed
    assert printed.endswith("0 schedules break an invariant\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--schedules many", "--schedules: invalid int value: 'many'"),
        ("--schedules 1 --mode sgd", "--mode"),
        ("--schedules 1 --mode x.py", "--mode x.py"),
        (
            "--mode ssp --fault kill:1@t=3",
            "--fault: there is no such option in --mode ssp; did you mean --faults?",
        ),
    ],
)
def test_a_bad_option_is_one_line(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the option; nothing runs, and the exit code is 2."""
    assert main(arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_users_strategy_is_tested_too(tmp_path: Path) -> None:
    """A strategy in a user's file that gives a worker which is about to leave another task is found out."""
    source = Path(str(Subject("asgd").strategy.__file__)).read_text()
    file = tmp_path / "train_mine.py"
    file.write_text(
        source.replace(
            'class Config(AsynchronousConfig):\n    mode: str = "asgd"',
            'class Config(AsynchronousConfig):\n    mode: str = "mine"',
        ).replace(
            "            start_idle(cluster, gradient, w)  # before",
            "            cluster.start(done.worker, gradient, w)  # before",
        )
    )
    subject = Subject.of(file)
    seed = next(seed for seed in range(100) if many(range(seed, seed + 1), [subject]).broken)
    small, seen = smallest(drawn(seed, [subject]))
    assert seen.endswith("is given a task, and is not idle: it is about to leave")
    assert any(fault.startswith("leave") for fault in small.faults)
    with pytest.raises(Broken):
        survives(small, cuts=24)
    assert f"--mode {file}" in reproducer(small, seen)


def test_the_options_that_are_drawn_exist() -> None:
    """Each option of a strategy for which values are listed is one of some mode."""
    from dst.fault_schedule import VALUES

    known = {name for subject in ALL for name in option_fields(subject.strategy.Config)}
    assert set(VALUES) <= known
