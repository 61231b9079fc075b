"""The documents show the current output of their commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, CommandLine
from test_labs import alike, lines_of

from docs.tools.examples import EXAMPLE
from docs.tools.house import README, counts, with_counts
from docs.tools.strategy_pages import with_first_part
from dsgd.strategies import modes


def test_the_front_page_counts_of_all_strategies_labs_experiments_and_closed_forms() -> None:
    """README says how many there are of each, made by `make docs`."""
    page = README.read_text(encoding="utf-8")
    assert all(f"{count} {name}" in page for name, count in counts().items()), "run `make docs`"
    assert with_counts(page) == page, "run `make docs`"


def test_the_front_page_is_short() -> None:
    """README has at most 150 lines."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_what_is_of_all_strategies_has_each() -> None:
    """README has a row for each, and two experiments compare all of them."""
    first = re.findall(r"^\| \[(\w+)\]\(docs/strategies/\1\.md\) \|", README.read_text(), re.MULTILINE)
    assert tuple(sorted(first)) == modes()
    for name in ("all-strategies", "fashion-heavy-tail"):
        variants = yaml.safe_load((ROOT / f"experiments/{name}.yaml").read_text())["variants"]
        assert tuple(sorted(options["mode"] for options in variants.values())) == modes()


def test_the_page_about_clusters_says_how_long_a_test_may_take() -> None:
    """The deadline of its RayJob is the sum of four limits."""
    limits = yaml.safe_load((ROOT / "deploy/jobs/thresholds.yaml").read_text())["limits"]
    all_s = sum(limits[name] for name in ("pods_running_s", "first_update_s", "job_over_s", "gone_s"))
    assert (
        f"the sum of its limits, {all_s // 60} minutes as shipped" in (ROOT / "docs/runbook.md").read_text()
    )


def test_the_last_lines_say_what_the_record_says_was_sent(cli: CommandLine, tmp_path: Path) -> None:
    command = "--engine sim --mode ksync --k 3 --num-workers 4 --steps 20 --compute-time exponential:1"
    ran = cli(f"{command} --topology sharded:2,replicas=2 --out {tmp_path} --run-name it")
    summary = json.loads((tmp_path / "it/summary.json").read_text())
    of = {way: f"{n / 1e3:.3g} kB" for way, n in summary["bytes"].items() if n}
    assert set(of) == {"to_workers", "to_server", "between_servers"}
    shown = " ".join(ran.out[ran.out.index("sent ") : ran.out.index("staleness")].split())
    assert shown == (
        f"sent {of['to_workers']} to workers, {of['to_server']} to the server, "
        f"{of['between_servers']} between servers, {summary['wasted_bytes'] / 1e3:.3g} kB of it wasted"
    )


@pytest.mark.parametrize("mode", modes())
def test_a_strategy_s_page_begins_with_what_its_file_says(mode: str) -> None:
    """The rule, limits and differences are those of the file; a page has at most 400 words."""
    page = (ROOT / f"docs/strategies/{mode}.md").read_text(encoding="utf-8")
    assert with_first_part(mode, page) == page, "run `make docs`"
    assert len(page.split()) <= 400


def test_the_front_page_shows_what_its_commands_print(cli: CommandLine) -> None:
    """Each example, run again, prints the block after it: `make docs` would change nothing."""
    examples = list(EXAMPLE.finditer(README.read_text()))
    assert examples
    for example in examples:
        command = " ".join(example["command"].replace("\\\n", " ").split())
        ran = cli(command.removeprefix("uv run python main.py ") + " --trace-last 0")
        assert ran.code == 0, ran.err
        shown = example[0].rpartition("```\n")[2]
        # A run that takes seconds prints its progress first.
        printed = ran.out[ran.out.index("run   ") :].partition("\nrecord ")[0]
        assert lines_of(printed) == alike(shown), "run `make docs`"
