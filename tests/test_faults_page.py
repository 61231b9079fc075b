"""docs/faults.md says what there is: its tables are held to the vocabulary and to real runs."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from conftest import ROOT

from dsgd.execution.quick import run, same_bytes
from dsgd.faults.fault import Crash, Fault, Kind, Spot, Trigger
from dsgd.faults.faults_text import parse_faults

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a head row that begins so."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table]


def test_the_page_lists_every_kind_with_an_example_of_it() -> None:
    """The kinds are those of fault.py, then the two processes; each example is read as its kind."""
    listed = rows("kind")
    assert [kind for kind, *_ in listed] == [*get_args(Kind), "spot", "crash"]
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
