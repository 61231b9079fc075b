"""The theory gate: every closed form of tests/theory/gate, measured by the simulator."""

from __future__ import annotations

import pytest
from gate.__main__ import main, rows
from gate.row import Row

FLEETS = " hosts lost every "  # twenty runs of many losses each: 19 s


@pytest.mark.crossing(one_in=6)
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.what, marks=[pytest.mark.thorough] if FLEETS in row.what else [])
        for row in rows()
    ],
)
def test_measurement_agrees_with_theory(row: Row) -> None:
    """The closed form lies in the measurement's interval at the stated level, or equals it to rounding."""
    result = row.check()
    assert result.holds, f"theory {row.value:.5g}, measured {result.measured:.5g} ± {result.allowed:.2g}"


def test_the_table_says_what_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failing row is marked as failed, and the command's exit code says it too."""
    wrong = Row("two and two", "4", 5, lambda seed: 4.0, seeds=1)
    right = Row("two and one", "3", 3, lambda seed: 3.0, seeds=1)
    monkeypatch.setattr("gate.__main__.GROUPS", {"Time": lambda: [right, wrong]})
    assert main(markdown=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert ["holds" in lines[1], "FAILS" in lines[2]] == [True, True]
