"""`main.py watch`: bounded whatever the folder holds, true from the first look on, and found again."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PATIENCE_S, CommandLine, python
from hypothesis import given, settings
from hypothesis import strategies as st
from test_live import PHONE, Visit, events, in_a_browser, read_all

from dsgd.core.update_counts import MOST_LISTED
from dsgd.records.reader import read_record
from dsgd.records.schema import RecordedTask, built, encode, update_type
from dsgd.show.live import record_lines as lines
from dsgd.show.live.followed_folder import FollowedFolder
from dsgd.show.live.followed_run import MOST_WORKERS, FollowedRun
from dsgd.show.live.record_lines import UpdateLines
from dsgd.show.report.build import build_report

SIM = "--engine sim --compute-time exponential:1"


@contextmanager
def watching(folder: Path) -> Iterator[tuple[str, int]]:
    """Run `main.py watch`; yield the page's address and the process's number."""
    with python("main.py", "watch", str(folder), "--port", "0") as process:
        try:
            assert process.stdout
            url = re.search(r"http://\S+", process.stdout.readline())
            assert url
            yield url[0], process.pid
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0


# ---- long lines


def tasks(worker: int) -> RecordedTask:
    number = float(np.random.default_rng(worker).random())
    loss = None if worker % 3 else number
    return RecordedTask(
        worker=worker, step=worker, batches=1, staleness=worker % 7, started_s=number, finished_s=2.0,
        compute_s=1.0, loss=loss,
    )  # fmt: skip


SIZES = st.tuples(st.integers(min_value=0, max_value=40), st.integers(min_value=0, max_value=20))


@settings(deadline=None, max_examples=60)
@given(st.lists(SIZES, max_size=5), st.integers(min_value=300, max_value=5000), st.booleans(), st.data())
def test_however_little_is_read_at_once_nothing_is_lost(
    sizes: list[tuple[int, int]], most: int, spaced: bool, data: st.DataObject
) -> None:
    """Updates longer than what is read at once give the same tasks and updates, wherever the file is torn."""
    updates = [
        built(
            {
                "version": i,
                "t_s": float(i),
                "loss": None,
                "drift": 0.5,
                "gradients": list(map(tasks, range(used))),
                "ignored": list(map(tasks, range(ignored))),
            },
            update_type(),
        )
        for i, (used, ignored) in enumerate(sizes, 1)
    ]
    content = b"".join(
        (json.dumps(json.loads(encode(u))).encode() if spaced else encode(u)) + b"\n" for u in updates
    )
    cuts = data.draw(st.lists(st.integers(min_value=0, max_value=len(content)), max_size=4))
    read: list[RecordedTask] = []
    ends: list[tuple[int, float, Any, int]] = []
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(lines, "_MOST_BYTES", most)
        file = UpdateLines(Path(folder) / "updates.jsonl")
        for cut in sorted([*cuts, len(content)]):
            (Path(folder) / "updates.jsonl").write_bytes(content[:cut])
            more = True
            while more:
                for part, update in file.read():
                    assert len(part) * 50 <= most
                    read += part
                    if update:
                        ends.append((update.version, update.t_s, update.measured, len(read)))
                more = file.rest
        assert file.read_bytes == len(content)
    counts = np.cumsum([used for used, _ in sizes]).tolist()
    assert read == [task for update in updates for task in update.gradients]
    assert ends == [(u.version, u.t_s, u.measured, n) for u, n in zip(updates, counts, strict=True)]


@pytest.mark.parametrize("text", [b"x", b'{"version":1,"t_s":0,"gradients":[' + b"1," * 200_000, b'{"a":"'])
def test_a_long_line_that_is_no_update_is_refused(text: bytes, tmp_path: Path) -> None:
    """Rubbish without line ends is neither kept in memory nor read for ever."""
    (tmp_path / "updates.jsonl").write_bytes(text.ljust(3_000_000, b"x"))
    file = UpdateLines(tmp_path / "updates.jsonl")

    def read() -> None:
        while file.rest:
            for _ in file.read():
                pass

    with pytest.raises(ValueError, match=r"line 1"):
        read()


@pytest.mark.parametrize("mode", ["ssgd", "ksync --backup 3000 --rest ignore", "asgd"])
def test_the_page_of_very_many_workers_says_what_the_record_says(mode: str, cli: CommandLine) -> None:
    """Of a run of 6,000 workers, whose updates are longer than a reading, all figures are the summary's."""
    ran = cli(f"{SIM} --mode {mode} --num-workers 6000 --steps 2 --workload none --quiet")
    run, summary = read_all(FollowedRun(ran.record)), ran.summary
    view = run.view()
    assert (view["updates"], view["gradients"]) == (summary["updates"], summary["gradients"])
    assert view["staleness"] == pytest.approx(summary["staleness"]["mean"], rel=1e-5)
    assert view["idle"] == pytest.approx(
        summary["over_workers"]["idle_s"]["mean"] / summary["clock_s"], abs=1e-5
    )
    assert len(view["workers"]) == MOST_WORKERS
    assert view["over_workers"]["slowest"] == list(map(int, summary["workers"]))
    assert len(json.dumps(view)) < 200_000


# ---- bounded, and true from the first look on


def test_a_record_of_a_million_workers_is_watched_in_little_memory(cli: CommandLine) -> None:
    """A line of 130 MB and a summary of 130 MB, as older versions wrote them, take less than 200 MB."""
    cli(f"{SIM} --mode ssgd --steps 5 --quiet --run-name small")
    cli(f"{SIM} --mode ssgd --num-workers 3 --steps 1 --quiet --workload none --run-name large")
    large = cli.out / "large"
    config = (large / "config.yaml").read_text()
    (large / "config.yaml").write_text(config.replace("num_workers: 3", "num_workers: 1000000"))
    meta = (large / "meta.json").read_text()
    (large / "meta.json").write_text(re.sub(r'"options_sha256": "\w+"', '"options_sha256": null', meta))
    line = (large / "updates.jsonl").read_text()
    task = re.search(r"\{[^{}]*\}", line)
    assert task
    many = line.replace(task[0], ",".join([task[0]] * 10**6), 1)
    (large / "updates.jsonl").write_text(many)
    summary = (large / "summary.json").read_text()
    numbers = ",\n".join(f'      "{name}": 0.5' for name in ("steps", "busy_s", "idle_s", "restarts"))
    entry = f'"1": {{\n{numbers}\n    }},\n    '
    old = summary.replace('"workers": {\n    ', '"workers": {\n    ' + entry * 1_400_000, 1)
    (large / "summary.json").write_text(old)
    assert len(many) > 130_000_000
    assert len(old) > 130_000_000
    states, last = Counter[str](), {}
    with watching(cli.out) as (url, pid):
        for name, data in events(url):
            if name == "run":
                states[data["state"]] += 1
                last[data["name"]] = data
                if {"small", "large"} == {n for n, d in last.items() if d["read"] is None}:
                    break
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        status = Path(f"/proc/{pid}/status").read_text()
    peak_kb = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak_kb
    assert int(peak_kb[1]) < 200_000
    assert set(states) == {"budget"}  # at no look was a finished run shown as running
    assert last["large"]["num_workers"] == 10**6
    assert last["large"]["staleness"] == 0


def test_a_finished_run_is_finished_at_the_first_look(cli: CommandLine) -> None:
    """Before its updates have been read, a run has its end, its progress and its loss."""
    ran = cli(f"{SIM} --mode asgd --steps 3000 --quiet --workload quadratic")
    run = FollowedRun(ran.record)
    assert run.read()
    first = run.view()
    assert first["state"] == "budget"
    assert first["read"] is not None
    last = read_all(run).view()
    assert last["read"] is None
    for name in ("state", "updates", "gradients", "t_s", "eval_loss", "gradients_per_s", "left_s"):
        assert first[name] == last[name]


@pytest.mark.parametrize(
    ("options", "share"), [("", 0.5), ("--max-seconds 40", None), ("--record none", 0.5)]
)
def test_the_time_left_is_that_of_the_rate_so_far(
    options: str, share: float | None, cli: CommandLine
) -> None:
    """Half of the budget after ten wall seconds leaves ten, whatever the virtual clock says."""
    ran = cli(f"{SIM} --mode asgd --steps 60 --eval-every 3 {options} --quiet --workload quadratic")
    (ran.record / "summary.json").unlink()
    for name in ("updates.jsonl", "evals.jsonl"):
        file = ran.record / name
        rows = file.read_text().splitlines(keepends=True)
        file.write_text("".join(rows[: len(rows) // 2 + (name == "evals.jsonl")]))
    os.utime(ran.record / "meta.json", (1000, 1000))
    for name in ("updates.jsonl", "evals.jsonl"):
        os.utime(ran.record / name, (1010, 1010))
    view = read_all(FollowedRun(ran.record)).view()
    done = max(view["gradients"] / view["budget"], 0 if share else view["t_s"] / 40)
    assert view["left_s"] == pytest.approx(10 * (1 - done) / done, abs=0.06)
    if share:
        assert done == pytest.approx(share, abs=0.02)
    else:
        assert view["t_s"] / 40 > view["gradients"] / view["budget"]
    assert view["done"] == pytest.approx(done, abs=1e-4)
    assert time.time() - view["wrote_s"] > 10**6  # the last news is old, however lately the page was opened


def test_runs_of_experiments_in_the_folder_are_found(cli: CommandLine) -> None:
    """A folder of runs shows those in the folders of its experiments and of `--engine both` too, with them
    in their names; tuning runs and figures are left out; of too many the newest are shown.
    """
    cli(f"{SIM} --mode asgd --steps 3 --quiet --run-name one")
    for place in ("compare/asgd-s0", "compare/figures/x", "compare/tuning/asgd-s0", "pair/sim"):
        shutil.copytree(cli.out / "one", cli.out / place)
    folder = FollowedFolder(cli.out)
    while any(folder.read()):
        pass
    assert {name for name, _ in folder.runs} == {"one", "compare/asgd-s0", "pair/sim"}
    few = FollowedFolder(cli.out, most_runs=2)
    while any(few.read()):
        pass
    assert (len(few.runs), few.older) == (2, 1)


# ---- notes


def test_a_note_is_kept_and_can_be_replaced(cli: CommandLine) -> None:
    """`--note` is in the record and on the page; a note.txt beside it takes its place, also later."""
    ran = cli(f"{SIM} --steps 3 --quiet", "--note", "first try #slides")
    run = read_all(FollowedRun(ran.record))
    assert run.view()["note"] == "first try #slides"
    before = run.revision
    (ran.record / "note.txt").write_text("second try\n#slides #final\n")
    run.read()
    assert run.view()["note"] == "second try #slides #final"
    assert run.revision > before
    assert read_record(ran.record).summary.updates == 3


# ---- summaries of many workers


def test_a_summary_does_not_grow_with_the_workers(cli: CommandLine) -> None:
    """Beyond 1,024 workers the summary has quantiles and the slowest ten, equal to those of the updates."""
    sizes = {}
    for workers in (MOST_LISTED, 2 * MOST_LISTED, 8 * MOST_LISTED):
        ran = cli(f"{SIM} --mode asgd --num-workers {workers} --steps 3 --workload none --quiet")
        sizes[workers] = (ran.record / "summary.json").stat().st_size
        summary = ran.summary
        assert sum(summary["staleness"]["counts"].values()) == 3 * workers
        if workers == MOST_LISTED:
            assert len(summary["workers"]) == workers
            assert summary["over_workers"] == {}
            continue
        assert len(summary["workers"]) == 10
        assert set(summary["staleness"]["by_worker"]) <= set(summary["workers"])
        own = Counter(g["worker"] for u in ran.lines("updates.jsonl") for g in u["gradients"])
        steps = [own[worker] for worker in range(workers)]
        over = summary["over_workers"]
        assert over["steps"] == {
            "mean": 3, "min": min(steps), "max": max(steps),
            **{f"p{q:02}": np.quantile(steps, q / 100, method="inverted_cdf") for q in (5, 50, 95)},
        }  # fmt: skip
        slowest = {worker: entry["steps"] for worker, entry in summary["workers"].items()}
        assert sorted(slowest.values()) == sorted(steps)[:10]
        assert all(own[int(worker)] == count for worker, count in slowest.items())
        assert over["busy_s"]["mean"] + over["idle_s"]["mean"] == pytest.approx(summary["clock_s"])
    assert sizes[8 * MOST_LISTED] < 2 * sizes[2 * MOST_LISTED] < 200_000


def test_what_reads_a_summary_reads_that_of_many_workers(cli: CommandLine) -> None:
    """Listing workers or not, a summary gives the same shares and times; report and trace are made."""
    ran = cli(f"{SIM} --mode ssgd --num-workers {MOST_LISTED + 76} --steps 2 --workload none")
    assert re.search(r"busy +mean \d+%, minimum \d+%", ran.out)
    summary = read_record(ran.record).summary
    busy = Counter[int]()
    for update in ran.lines("updates.jsonl"):
        for task in update["gradients"]:
            busy[task["worker"]] += task["compute_s"]
    shares = [1 - seconds / summary.clock_s for seconds in busy.values()]
    assert summary.idle_share == pytest.approx(math.fsum(shares) / len(shares))
    assert summary.idle_shares == []
    assert summary.batch_s == pytest.approx(np.quantile(list(busy.values()), 0.5, method="inverted_cdf") / 2)
    assert summary.restarts == 0
    assert (ran.record / "trace.json").exists()
    assert "Workers did not compute for " in build_report(ran.record).read_text()


# ---- in a browser


@pytest.fixture
def sweep(cli: CommandLine) -> Path:
    """Make four runs that differ by an option, a note and a mode."""
    for slack in (1, 3):
        cli(
            f"{SIM} --mode ssp --slack {slack} --steps 40 --quiet --run-name ssp-{slack}",
            "--note",
            f"#try{slack}",
        )
    for lr, name, note in ((0.05, "slow", ""), (0.2, "fast", "for the slides")):
        cli(
            f"{SIM} --mode asgd --lr {lr} --slowdown 0=4 --steps 40 --quiet --run-name {name}", "--note", note
        )
    return cli.out


@pytest.mark.thorough
@in_a_browser
def test_runs_say_how_they_differ_and_are_found_by_it(browser: Any, sweep: Path) -> None:
    """What all runs have in common is said once, what sets one apart in its row, with a value; the filter
    takes them all.
    """
    with watching(sweep) as (url, _), Visit(browser, url) as visit:
        visit.until("document.querySelectorAll('#runs tbody tr').length === 4")
        texts = visit.page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#runs tbody tr')].map((row) =>"
            "['.name', '.options'].map((part) => row.querySelector(part).textContent)))"
        )
        assert texts == {
            "ssp-1": "ssp · lr 0.1 · slowdown none · slack 1",
            "ssp-3": "ssp · lr 0.1 · slowdown none · slack 3",
            "slow": "asgd · lr 0.05 · slowdown 0=4",
            "fast": "asgd · lr 0.2 · slowdown 0=4",
        }
        common = "All: sim · 4 workers · compute time exponential:1 · steps 40"
        assert visit.page.inner_text("#common") == common
        shown = "[...document.querySelectorAll('#runs tbody .name')].map((e) => e.textContent).sort().join()"
        for words, found in (
            ("mode=asgd", "fast,slow"), ("lr=0.20", "fast"), ("slack=3", "ssp-3"), ("#try1", "ssp-1"),
            ("SLIDES", "fast"), ("asgd 0.05", "slow"), ("done", "fast,slow,ssp-1,ssp-3"), ("no such", ""),
        ):  # fmt: skip
            visit.page.get_by_role("searchbox", name="Filter").fill(words)
            visit.until(f"{shown} === '{found}'")
        visit.page.get_by_role("searchbox").fill("")
        visit.page.get_by_role("button", name="#try3").click()
        visit.until(f"{shown} === 'ssp-3'")
        assert visit.page.inner_text("#matching") == "1 of 4 runs"
        assert visit.page.locator("#loss path.curve:not(.faint)").count() == 1
        visit.page.reload()  # the filter is in the address
        visit.until(f"{shown} === 'ssp-3'")
        assert visit.complaints == []


@pytest.mark.thorough
@in_a_browser
def test_numbers_are_read_off_the_curves_by_pointer_keys_and_touch(browser: Any, sweep: Path) -> None:
    """The cursor shows, for each run, the recorded value at or before its place."""
    evals = {path.parent.name: read_record(path.parent).evals for path in sweep.glob("*/summary.json")}
    with watching(sweep) as (url, _), Visit(browser, url) as desk, Visit(browser, url, **PHONE) as phone:
        for visit in (desk, phone):
            visit.until("document.querySelectorAll('#loss path.curve:not(.faint)').length === 4")
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert visit.page.evaluate(wide) == 0
        desk.page.locator("#loss").focus()
        desk.page.keyboard.press("End")
        tip = desk.page.locator("#loss .tip")
        rows = tip.locator("div").all_inner_texts()[1:]
        assert [re.split(r"\s+", row)[0] for row in rows] == [
            name for name, _ in sorted(evals.items(), key=lambda item: item[1][-1].loss or 0)
        ]
        for row in rows:
            name, *_, value = row.split()
            assert float(value) == pytest.approx(evals[name][-1].loss, rel=1e-3)
        desk.page.keyboard.press("Home")
        for row in tip.locator("div").all_inner_texts()[1:]:
            name, *_, value = row.split()
            assert float(value) == pytest.approx(evals[name][0].loss, rel=1e-3)
        first = tip.locator("div").first.inner_text()
        desk.page.keyboard.press("ArrowRight")
        assert tip.locator("div").first.inner_text() != first
        desk.page.keyboard.press("Escape")
        assert tip.count() == 0
        desk.page.locator("#throughput").hover()
        assert desk.page.locator("#throughput .tip").count() == 1
        phone.page.locator("#loss").tap()
        assert phone.page.locator("#loss .tip").count() == 1
        assert phone.page.evaluate(wide) == 0
        assert desk.complaints == phone.complaints == []
