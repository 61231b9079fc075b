"""What people see of a run's faults: on the terminal, the live page and in reports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from conftest import where
from rich.console import Console
from test_fault_records import SEEN, run_with
from test_live import PHONE, Visit, in_a_browser, read_all

from dsgd.faults.seen import FaultSeen
from dsgd.live import page
from dsgd.live.follow import FollowedRun
from dsgd.records.schema import RecordedFault, encode
from dsgd.terminal.console import print_summary

FAULTS = [
    FaultSeen(2.0, "kill", (1,), True, 3, 3, "worker 1 got a new process", 0.25, 2.5, repeated=1),
    FaultSeen(1.0, "slow", (0, 2), True, 1, 1, "nothing was done", None, 8.0),
    FaultSeen(9.0, "leave", (3,), False, 20, 20, "its step goes to others", wasted=1),
    *(FaultSeen(10.0 + k, "pause", (2,), True, 30 + k, 30 + k, "waited", 0.0, 0.5) for k in range(9)),
    FaultSeen(30.0, "cut", (0,), True, 60, 60, "nothing passes"),
]


def strike(record: Path, faults: Sequence[FaultSeen]) -> None:
    """Make a record as if its run had had faults."""
    lines = [encode(RecordedFault(**fault._asdict())) + b"\n" for fault in faults]
    (record / "faults.jsonl").write_bytes(b"".join(lines))


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the record of a run without faults."""
    from main import main

    out = tmp_path_factory.mktemp("quiet")
    text = "--engine sim --compute-time exponential:1 --mode asgd --steps 60 --run-name quiet --quiet"
    assert main([*text.split(), "--out", str(out)]) == 0
    return out / "quiet"


@pytest.fixture
def struck(quiet: Path, tmp_path: Path) -> Path:
    """Make the record of a run with faults."""
    record = tmp_path / "struck"
    shutil.copytree(quiet, record)
    strike(record, FAULTS)
    return record


# ---- the terminal


def table_of(folder: Path, seen: Mapping[int, Sequence[FaultSeen]]) -> list[str]:
    """Return the lines of a run's table at its end."""
    console = Console(width=160, record=True, file=StringIO())
    ended, _ = run_with(folder, seen)
    print_summary(ended.summary, ended.path, console)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_the_table_has_a_line_where_there_were_faults(tmp_path: Path) -> None:
    """At the end of a run its faults are in one line, by kind, with what they cost; a quiet run has none."""
    line = "faults 4 (1 cut, 2 kill, 1 pause): recovered in 1.5 virtual s (median), "
    lost = "3 mini-batches repeated, 1 mini-batch wasted"
    assert f"{line}{lost}" in table_of(tmp_path / "struck", SEEN)
    assert not any(line.startswith("faults") for line in table_of(tmp_path / "quiet", {}))


# ---- the live page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=where("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


def test_the_page_shows_the_faults_of_the_record(struck: Path) -> None:
    """All faults are counted, each has a mark, and the last eight to begin are in words."""
    shown = read_all(FollowedRun(struck)).view()["faults"]
    assert shown["counts"] == {"kill": 1, "slow": 1, "leave": 1, "pause": 9, "cut": 1}
    in_order = sorted(FAULTS, key=lambda fault: fault.t_s)
    marks = [(mark["t_s"], mark["kind"], mark["workers"]) for mark in shown["marks"]]
    assert marks == [(fault.t_s, fault.kind, fault.workers) for fault in in_order]
    assert [mark["over_s"] for mark in shown["marks"][:3]] == [9.0, 4.5, 9.0]
    assert shown["marks"][-1]["over_s"] is None
    assert [told["t_s"] for told in shown["told"]] == [f.t_s for f in in_order[:-9:-1]]
    assert shown["told"][0] == {
        "t_s": 30.0, "kind": "cut", "who": "worker 0", "text": "nothing passes",
        "cost": "not over when the run ended",
    }  # fmt: skip


def test_the_page_shows_no_faults_where_none_are_recorded(quiet: Path, struck: Path) -> None:
    """A quiet run, and a record from before there was faults.jsonl, have no marks."""
    (struck / "faults.jsonl").unlink()
    for record in (quiet, struck):
        assert read_all(FollowedRun(record)).view()["faults"] == {"counts": {}, "marks": [], "told": []}


def test_a_fault_is_shown_once_its_line_is_whole(quiet: Path, tmp_path: Path) -> None:
    """A running run's faults are shown as they come; half a line is not, until the rest of it is there."""
    record = tmp_path / "running"
    shutil.copytree(quiet, record, ignore=shutil.ignore_patterns("summary.json"))
    run, counts, revisions = FollowedRun(record), [], []
    strike(record, FAULTS[:2])
    content = (record / "faults.jsonl").read_bytes()
    for end in (0, len(content) // 3, content.index(b"\n") + 1, len(content) - 1, len(content)):
        (record / "faults.jsonl").write_bytes(content[:end])
        read_all(run)
        counts.append(sum(run.view()["faults"]["counts"].values()))
        revisions.append(run.revision)
    assert counts == [0, 0, 1, 1, 2]
    assert revisions[0] == revisions[1] < revisions[2] == revisions[3] < revisions[4]


@in_a_browser
@pytest.mark.parametrize("phone", [False, True])
def test_faults_are_seen_in_the_browser(browser: Any, quiet: Path, struck: Path, phone: bool) -> None:
    """Desktop and phone show a line of marks and a list in words, for the run that had faults alone."""
    shutil.copytree(quiet, struck.parent / "quiet")
    options = PHONE if phone else {"viewport": {"width": 1280, "height": 900}}
    with page.serve(struck.parent, 0) as url, Visit(browser, url, **options) as visit:
        visit.until("document.querySelectorAll('article .timeline path.compute').length === 2")
        shown = visit.page
        card = shown.locator("article", has=shown.get_by_role("heading", name="struck", exact=True))
        assert (
            card.locator(".had-faults h3").inner_text() == "Faults: 1 kill, 1 slow, 1 leave, 9 pause, 1 cut"
        )
        assert card.locator(".marks path.fault").count() == len(FAULTS)
        assert card.locator(".marks rect.lasting").count() == 12
        assert "cut, worker 0" in card.locator(".faults li").first.inner_text()
        assert card.locator(".earlier").inner_text() == "and 5 earlier"
        other = shown.locator("article", has=shown.get_by_role("heading", name="quiet", exact=True))
        assert other.locator(".had-faults").is_hidden()
        assert (
            shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        )
        assert visit.complaints == []
