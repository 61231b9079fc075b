"""Pages of help, and a summary of each mode, as files: what a change does to them is read in its diff.

DSGD_REWRITE_GOLDEN=1 rewrites them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from golden_lattice import COMMON
from golden_left import FOLDER
from test_usage import page

from dsgd.running.execute import execute
from dsgd.show.terminal.cli import parse
from dsgd.show.terminal.commands import PLACES
from dsgd.strategies import modes

REWRITE = bool(os.environ.get("DSGD_REWRITE_GOLDEN"))


@pytest.mark.parametrize("command", ["", "--help all", *list(PLACES)[1:-1]])
def test_a_page_of_help_is_the_one_in_its_file(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("UV", raising=False)
    asked, name = (command, "all") if "all" in command else (f"{command} --help", command or "main")
    found, file = page(asked, capsys), FOLDER / "help" / f"{name}.txt"
    if REWRITE:
        file.write_text(found)
    assert found == file.read_text()


@pytest.mark.parametrize("mode", modes())
def test_a_summary_is_the_one_in_its_file(mode: str) -> None:
    """Names, order and values; numbers to what processors differ in, and times of the wall left out."""
    summary = execute(parse(shlex.split(f"{COMMON} --mode {mode}"))).summary
    found = {name: value for name, value in summary.items() if name not in ("wall_s", "startup_s")}
    file = FOLDER / "summaries" / f"{mode}.json"
    if REWRITE:
        file.write_text(json.dumps(found, indent=1) + "\n")
    kept = [*leaves(json.loads(file.read_text()))]
    seen = [*leaves(json.loads(json.dumps(found)))]
    assert [name for name, _ in seen] == [name for name, _ in kept]
    for (name, value), (_, was) in zip(seen, kept, strict=True):
        assert value == (pytest.approx(was, rel=1e-3, abs=1e-6) if isinstance(was, float) else was), name


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is at the ends of a JSON value, each with its path."""
    if isinstance(value, dict | list) and value:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, f"{name}/{key}")
    else:
        yield name, value
