"""The documents show the current output of their commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import ROOT, CommandLine
from test_labs import without_start

from docs.tools.examples import EXAMPLE

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/strategies").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_its_command_prints(page: Path, cli: CommandLine) -> None:
    """Each example of a page, run again, prints the block after it: `make docs` would change nothing."""
    examples = list(EXAMPLE.finditer(page.read_text()))
    assert examples, "a page shows at least one run"
    for example in examples:
        command = " ".join(example["command"].replace("\\\n", " ").split())
        ran = cli(command.removeprefix("uv run python main.py ") + " --trace-last 0")
        assert ran.code == 0, ran.err
        shown = example[0].rpartition("```\n")[2]
        # A run that takes seconds prints its progress first.
        printed = ran.out[ran.out.index("run   ") :].partition("\nrecord ")[0]
        assert without_start(shown) == without_start(printed), "run `make docs`"
