"""docs/faults.md says what there is: its tables are held to the vocabulary and to real runs."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import pytest
from conftest import ROOT, CommandLine

from dsgd.running.quick_run import run, same_bytes
from dsgd.scenario.fault import Crash, Fault, Kind, Spot, Trigger
from dsgd.scenario.faults_text import parse_faults

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")

COMMANDS = re.findall(r"^    uv run python (.*)$", PAGE, re.MULTILINE)
RUNS = [command.removeprefix("main.py ") for command in COMMANDS if command.startswith("main.py ")]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a head row that begins so."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table]


def test_the_page_lists_every_kind_with_an_example_of_it() -> None:
    """The kinds are those of fault.py, then the two processes; each example is read as its kind."""
    listed = rows("kind")
    assert [*dict.fromkeys(kind for kind, *_ in listed)] == [*get_args(Kind), "spot", "crash"]
    for kind, example, _ in listed:
        (fault,) = parse_faults(example)
        of = {Spot: "spot", Crash: "crash"}.get(type(fault)) or (
            fault.kind if isinstance(fault, Fault) else ""
        )
        assert of == kind


def test_the_page_lists_every_trigger() -> None:
    """The triggers are those of fault.py."""
    assert {trigger for trigger, *_ in rows("trigger")} == {*get_args(get_type_hints(Trigger)["of"])}


@pytest.mark.parametrize("mode", ["ssgd", "localsgd", "diloco", "easgd"])
def test_barriers_hide_every_fault_of_a_process(mode: str) -> None:
    """The modes of the column `same bytes` keep their weights under each kind, policy and suspicion."""
    options: dict[str, Any] = {"num_workers": 4, "steps": 16, "compute_time": "exponential:1"}
    without = run(mode, **options)
    for faults in (
        {"faults": "kill:1@t=5+6"},
        {"faults": "kill:1@t=5+6", "on_loss": "rehost"},
        {"faults": "pause:1=9@t=5", "suspect_after": 2.0, "spares": 1},
        {"faults": "slow:1=5@t=3+9; cut:2@t=5+9"},
        {"faults": "node:b@t=5+9", "nodes": 2},
    ):
        assert same_bytes(without, run(mode, **options, **faults)), faults


@pytest.mark.parametrize("command", RUNS, ids=lambda command: re.sub(r".*--faults \"(\w+).*", r"\1", command))
def test_a_run_of_the_page_sees_its_faults(command: str, cli: CommandLine) -> None:
    """A run that the page shows spends its budget and sees the faults it asks for; SSGD keeps its bytes."""
    ran = cli(f"{command} --trace-last 0")
    assert ran.code == 0, ran.err
    assert ran.summary["stopped_by"] == "budget"
    words = shlex.split(command)
    at = words.index("--faults")
    asked = {one.kind if isinstance(one, Fault) else "kill" for one in parse_faults(words[at + 1])}
    assert {line["kind"] for line in ran.lines("faults.jsonl")} == asked
    if "ssgd" in words:
        without = cli("--trace-last 0", *words[:at])  # what follows says what is done about the faults
        assert ran.summary["weights_sha256"] == without.summary["weights_sha256"]


def test_the_page_shows_runs_and_the_best_interval() -> None:
    """The page has three runs, and computes one interval: Young's, less a little (Daly 2006)."""
    assert len(RUNS) == 3
    (other,) = (command for command in COMMANDS if not command.startswith("main.py "))
    printed = subprocess.run([sys.executable, *shlex.split(other)], cwd=ROOT, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    assert 0.9 * math.sqrt(2 * 2 * 600) < float(printed.stdout) < math.sqrt(2 * 2 * 600)
