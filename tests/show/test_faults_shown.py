"""What people see of a run's faults: on the terminal, the live page and in reports."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
import pytest
from conftest import CommandLine
from rich.console import Console
from test_fault_records import PAUSE, SEEN, run_with
from test_live import PHONE, Visit, in_a_browser, read_all

import dsgd
from dsgd.core.fault_seen import FaultSeen
from dsgd.records.reader import read_record
from dsgd.records.schema import RecordedFault, encode
from dsgd.show.live import page
from dsgd.show.live.followed_run import FollowedRun
from dsgd.show.report import tables
from dsgd.show.report.build import build_report
from dsgd.show.report.figures import draw_sections
from dsgd.show.report.frames import read_folder
from dsgd.show.report.panels import timeline
from dsgd.show.report.panels.drawing import Section
from dsgd.show.report.style import RC
from dsgd.show.terminal.console import print_summary

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


def test_the_page_shows_the_faults_of_the_record(struck: Path) -> None:
    """All faults are counted, each has a mark, and the last eight to begin are in words."""
    shown = read_all(FollowedRun(struck)).view()["faults"]
    assert shown["counts"] == {"kill": 1, "slow": 1, "leave": 1, "pause": 9, "cut": 1}
    in_order = sorted(FAULTS, key=lambda fault: fault.t_s)
    marks = [(mark["t_s"], mark["kind"], mark["workers"]) for mark in shown["marks"]]
    assert marks == [(fault.t_s, fault.kind, fault.workers) for fault in in_order]
    assert [mark["over_s"] for mark in shown["marks"][:3]] == [9.0, 4.5, 9.0]
    assert shown["marks"][-1]["over_s"] is None
    assert [fault["t_s"] for fault in shown["in_words"]] == [f.t_s for f in in_order[:-9:-1]]
    assert shown["in_words"][0] == {
        "t_s": 30.0, "kind": "cut", "who": "worker 0", "text": "nothing passes",
        "cost": "not over when the run ended",
    }  # fmt: skip


def test_the_page_shows_no_faults_where_none_are_recorded(quiet: Path, struck: Path) -> None:
    """A quiet run, and a record from before there was faults.jsonl, have no marks."""
    (struck / "faults.jsonl").unlink()
    for record in (quiet, struck):
        assert read_all(FollowedRun(record)).view()["faults"] == {"counts": {}, "marks": [], "in_words": []}


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


@pytest.mark.crossing(one_in=2)
@in_a_browser
@pytest.mark.parametrize("phone", [False, True])
def test_faults_are_seen_in_the_browser(browser: Any, quiet: Path, struck: Path, phone: bool) -> None:
    """Desktop and phone show a line of marks and a list in words, for the run that had faults alone."""
    shutil.copytree(quiet, struck.parent / "quiet")
    options = PHONE if phone else {"viewport": {"width": 1280, "height": 900}}
    with page.serve(struck.parent, 0) as url, Visit(browser, url, **options) as visit:
        visit.until("document.querySelectorAll('.card .timeline path.compute').length === 2")
        shown = visit.page
        card = shown.locator(".card", has_text="struck")
        assert (
            card.locator(".had-faults h3").inner_text() == "Faults: 1 kill, 1 slow, 1 leave, 9 pause, 1 cut"
        )
        assert card.locator(".marks path.fault").count() == len(FAULTS)
        assert card.locator(".marks rect.lasting").count() == 12
        assert "cut, worker 0" in card.locator(".faults li").first.inner_text()
        assert card.locator(".earlier").inner_text() == "and 5 earlier"
        other = shown.locator(".card", has_text="quiet")
        assert other.locator(".had-faults").is_hidden()
        assert (
            shown.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        )
        assert visit.complaints == []


# ---- reports


def words_of(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def section_of(record: Path, name: str) -> Section:
    with mpl.rc_context(RC):
        return next(section for section in draw_sections(read_folder(record)) if section.name == name)


def test_a_run_has_a_table_of_its_faults(struck: Path, quiet: Path) -> None:
    """The report of one run lists its faults as they began, and says what was done and what it cost."""
    table = tables.faults(read_folder(struck))
    assert table
    assert tables.faults(read_folder(quiet)) is None
    assert len(table.rows) == len(FAULTS)
    times = [float(row[0]) for row in table.rows]
    assert times == sorted(fault.t_s for fault in FAULTS)
    assert table.rows[1] == [
        "2", "kill of worker 1", "3", "yes", "worker 1 got a new process", "0.25", "2.5", "1", "–"
    ]  # fmt: skip
    assert table.rows[-1][6] == "not over"
    strike(struck, [PAUSE._replace(t_s=float(k)) for k in range(30)])
    long = tables.faults(read_folder(struck))
    assert long
    assert long.more
    assert (len(long.rows), len(long.more.rows)) == (20, 30)


def test_the_loss_against_time_has_a_mark_a_fault(struck: Path, quiet: Path) -> None:
    """Loss against time has triangles and a legend for them; the panels beside it stay as high as it is."""
    panels = section_of(struck, "loss").panels
    heights = {re.search(r'viewBox="0 0 \S+ (\S+)"', panel.svg)[1] for panel in panels}  # type: ignore[index]
    assert len(heights) == 1
    assert ["fault" in words_of(panel.svg) for panel in panels] == [True, False, False]
    assert not any("fault" in words_of(panel.svg) for panel in section_of(quiet, "loss").panels)
    assert "Triangles on the time axis: the faults" in section_of(struck, "loss").caption


@pytest.mark.parametrize(("first_s", "from_s"), [(3.0, 0.0), (40.0, 36.0)])
def test_the_timeline_shows_the_first_fault(struck: Path, first_s: float, from_s: float) -> None:
    """The window of the timeline begins with the run, or a quarter before a first fault that is later."""
    strike(struck, [PAUSE._replace(t_s=first_s), PAUSE._replace(t_s=55.0)])
    record = read_record(struck)
    begin_s, end_s = timeline._span([record])
    assert (begin_s, end_s) == pytest.approx((from_s, from_s + 16.0), abs=1.0)
    found = timeline.window(record, end_s, from_s=begin_s)
    assert [fault.t_s for fault in found.faults] == [first_s]
    for tasks in found.tasks:
        assert all(task.finished_s > begin_s and task.started_s < end_s for task in tasks)
    assert all(begin_s <= t_s <= end_s for t_s in found.updates_s)
    assert "A triangle is where a fault began" in section_of(struck, "timeline").caption


@pytest.mark.parametrize(
    "faults", ["kill:1@t=3.5+4", "pause:1=4@t=3.5", "cut:1@t=3.5+4", "node:b@t=3.5+4", "slow:1=3@t=3.5+4"]
)
@pytest.mark.parametrize("mode", ["ssgd", "asgd"])
def test_no_task_is_drawn_as_computed_while_its_process_stood_still(
    faults: str, mode: str, tmp_path: Path, cli: CommandLine
) -> None:
    """A task's colours cover its time; it computes as recorded, and never while its process is away."""
    ran = cli(
        f"--engine sim --mode {mode} --num-workers 3 --steps 8 --compute-time uniform:.7,1.1 --nodes 3 "
        f"--trace-last 0 --workload none --faults {faults}"
    )
    record = read_record(ran.record)
    (fault,) = record.faults
    away = fault.kind in ("kill", "pause", "node")
    for update in record.updates():
        for task in update.gradients:
            drawn = timeline.spans_of(task, record.faults, disturbed=True)
            pieces = sorted(piece for kind in drawn for piece in kind if piece[1] > piece[0])
            assert (pieces[0][0], pieces[-1][1]) == pytest.approx((task.started_s, task.finished_s))
            assert all(a[1] == pytest.approx(b[0]) for a, b in itertools.pairwise(pieces))
            assert sum(b - a for a, b in drawn.computing) == pytest.approx(task.compute_s)
            if away and task.worker in fault.workers:
                assert all(b <= fault.t_s + 1e-9 or a >= fault.t_s + 4 - 1e-9 for a, b in drawn.computing)
            lost = sum(b - a for a, b in drawn.lost)
            assert (lost > 0) == (
                fault.repeated > 0
                and task.started_s < fault.t_s < task.finished_s
                and task.worker in fault.workers
            )


def test_runs_that_are_the_same_have_one_panel(tmp_path: Path) -> None:
    """Of variants that are the same runs, the timeline draws the first, and names the others."""
    base = {"engine": "sim", "mode": "asgd", "num_workers": 2, "steps": 9, "workload": "none"}
    variants = {"wait": {}, "move": {"on_loss": "rehost"}, "slow": {"slowdown": "0=2"}}
    experiment = {
        "title": "x",
        "question": "Which?",
        "base": base,
        "variants": variants,
        "seeds": 1,
        "show": ["timeline"],
    }
    dsgd.experiment(experiment, out=tmp_path)
    section = section_of(tmp_path / "experiment", "timeline")
    assert [panel.title for panel in section.panels] == ["Timeline, wait", "Timeline, slow"]
    assert "wait and move share a panel: they are the same runs." in section.caption


def test_a_report_says_what_faults_there_were(struck: Path) -> None:
    """The page of a run has its faults in a sentence, in both figures and in the table; a CSV has counts."""
    summary = json.loads((struck / "summary.json").read_text())
    summary |= {"faults": {"kill": 1, "pause": 9}, "repeated": 1, "recovery_s": {"p50": 0.5, "max": 2.5}}
    (struck / "summary.json").write_text(json.dumps(summary))
    text = build_report(struck).read_text()
    assert "Faults: 10 (1 kill, 9 pause): recovered in 0.5 virtual s (median), 1 mini-batch repeated." in text
    assert "kill of worker 1" in text
    row = pl.read_csv(struck / "results.csv").row(0, named=True)
    assert (row["faults"], row["repeated"], row["recovery_p50_s"]) == (10, 1, 0.5)
