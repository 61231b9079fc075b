"""Lists and indexes: what a folder of runs holds, and which of them can be compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, needs, where

from dsgd.records.listing import list_folder
from dsgd.records.reader import read_record
from dsgd.show.report.comparable import are_one_comparison, groups
from main import main

Options = dict[str, Any]
BASE: Options = {"engine": "sim", "num_workers": 2, "steps": 4, "workload": "quadratic", "mode": "asgd"}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make one real record; the others of a folder are copies with other options."""
    folder = tmp_path_factory.mktemp("listing")
    given = [f"--{name.replace('_', '-')}={value}" for name, value in BASE.items()]
    assert main([*given, "--quiet", f"--out={folder}", "--run-name=one"]) == 0
    return folder / "one"


def like(record: Path, path: Path, loss: float | None = None, /, **options: Any) -> Path:
    """Copy a record under other options, with a last loss, and later than all that is there."""
    shutil.copytree(record, path)
    (path / "config.yaml").write_text(yaml.safe_dump(edited(path / "config.yaml", options), sort_keys=False))
    begun = edited(path / "meta.json", {})
    del begun["options_sha256"]  # as in a record of an earlier version: its options may be any
    begun["started_epoch_s"] += len(list(path.parent.iterdir()))
    (path / "meta.json").write_text(json.dumps(begun))
    known = {
        name: value for name, value in options.items() if name in ("mode", "engine", "num_workers", "seed")
    }
    summary = edited(path / "summary.json", known)
    summary["eval"]["loss"] = loss if loss is not None else summary["eval"]["loss"]
    (path / "summary.json").write_text(json.dumps(summary, indent=2))
    return path


def edited(file: Path, changes: Options) -> Options:
    values: Options = yaml.safe_load(file.read_text())
    return values | changes


def end(path: Path, **ended: Any) -> None:
    file = path / "summary.json"
    file.write_text(json.dumps(edited(file, ended), indent=2))


@pytest.fixture
def unrelated(record: Path, tmp_path: Path) -> Path:
    """Make a folder of runs of two workloads on both engines, one of them failed, and an experiment."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for seed in range(2):
        like(record, folder / f"asgd-{seed}", 0.5 - 0.1 * seed, seed=seed)
    like(record, folder / "ssgd", 0.3, mode="ssgd", lr=0.2)
    end(like(record, folder / "broken", 0.01, mode="ssp", slack=1), stopped_by="failed", error="no more")
    like(record, folder / "larger", 0.2, num_workers=4)
    like(record, folder / "real", 0.1, engine="ray")
    like(record, folder / "of-an-experiment" / "v0-s0")
    (folder / "of-an-experiment" / "experiment.yaml").write_text("title: A <title>")
    return folder


# --- The list -----------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_the_list_has_each_run_newest_first(unrelated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Name, mode, engine, workers, result and options; experiments are named as such; the lines fit."""
    lines = printed(capsys, "list", str(unrelated))
    names = [line.split()[0] for line in lines if re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d$", line)]
    assert names == ["real", "larger", "broken", "ssgd", "asgd-1", "asgd-0"]
    text = "\n".join(lines)
    assert re.search(
        r"^ssgd +ssgd +sim +2 .*\n    loss 0.3 after 8 updates, .* virtual s; .*lr=0.2", text, re.M
    )
    assert re.search(r"^real +asgd +ray .*\n.* wall s", text, re.M)
    assert re.search(r"^broken .*\n.* failed; .*\n? .*slack=1", text, re.M)
    assert "  of-an-experiment: experiment “A <title>”, 1 run" in lines
    assert max(len(line) for line in lines if str(unrelated) not in line) <= 80


def test_the_list_may_be_cut_to_the_newest(unrelated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--last N` shows the newest N runs and says of how many."""
    lines = printed(capsys, "list", str(unrelated), "--last", "2")
    assert " ".join(lines).count(" virtual s") + " ".join(lines).count(" wall s") == 2
    assert "6 runs, the newest 2" in " ".join(lines)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("list nowhere", "list nowhere: there is no such folder"),
        ("list --last 0", "--last 0: must be at least 1"),
        ("list --last few", "--last few: must be a whole number or None"),
        ("list --lats 3", "--lats: is not an option of list; did you mean --last?"),
    ],
)
def test_a_mistake_in_a_list_gets_one_line(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2 and one line that names the option."""
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err == f"main.py: {says}\n"


def test_without_runs_the_list_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a fresh clone `list` is no error."""
    monkeypatch.chdir(tmp_path)
    assert any("--engine sim" in line for line in printed(capsys, "list"))


def test_a_listed_run_has_what_its_record_has(record: Path) -> None:
    """The listing agrees with the whole record."""
    (run,) = list_folder(record.parent).runs
    whole = read_record(record)
    assert run.config == whole.config
    assert run.result
    assert run.result.eval == whole.summary.eval
    assert run.result.updates == whole.summary.updates
    assert run.result.staleness_mean == whole.summary.staleness.mean
    assert run.started_epoch_s == whole.meta.started_epoch_s
    assert run.given() == {"steps": 4, "workload": "quadratic"}


def test_of_a_large_summary_only_the_beginning_is_read(record: Path, tmp_path: Path) -> None:
    """A run of very many workers is listed from the first part of its summary, whatever the rest is."""
    path = like(record, tmp_path / "large")
    small = list_folder(tmp_path).runs[0]
    summary = edited(path / "summary.json", {})
    summary["workers"] = {str(i): summary["workers"]["0"] for i in range(3000)}
    text = json.dumps(summary, indent=2)
    for cut in (text, text[: len(text) // 2]):
        (path / "summary.json").write_text(cut)
        listed = list_folder(tmp_path).runs[0].result
        for name in ("stopped_by", "eval", "updates", "gradients", "clock_s", "loss", "staleness_mean"):
            assert getattr(listed, name) == getattr(small.result, name)


def test_what_is_under_way_or_damaged_is_said(unrelated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without a summary is listed; a record that cannot be read is named with the reason."""
    (unrelated / "ssgd" / "summary.json").unlink()
    (unrelated / "larger" / "config.yaml").write_text("mode: [")
    (unrelated / "real" / "meta.json").write_text("{" + " " * (5 << 20))
    text = " ".join(" ".join(printed(capsys, "list", str(unrelated))).split())
    assert "under way or killed" in text
    assert "Not read: 2" in text
    assert "larger: config.yaml: is not YAML" in text
    assert "real: meta.json: is larger than 4 MB, so not read" in text
    (unrelated / "real" / "meta.json").unlink()
    os.mkfifo(unrelated / "real" / "meta.json")
    assert "real: meta.json: is not a file" in "".join(printed(capsys, "list", str(unrelated)))


# --- What can be compared -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "comparable"),
    [
        ({"mode": "ssgd"}, True),
        ({"lr": 0.5}, True),
        ({"seed": 7}, True),
        ({"eval_every": 3}, True),
        ({"engine": "ray"}, False),
        ({"workload": "xor"}, False),
        ({"steps": 8}, False),
        ({"num_workers": 4}, False),
        ({"ranks_per_worker": 2}, False),
        ({"compute_time": "exponential:1"}, False),
        ({"target_loss": 0.1}, False),
    ],
)
def test_only_like_runs_share_a_group(record: Path, tmp_path: Path, other: Options, comparable: bool) -> None:
    """Runs compete if workload, engine, workers, times and budget are the same, whatever the strategy."""
    like(record, tmp_path / "one")
    like(record, tmp_path / "two", **other)
    assert len(groups(list_folder(tmp_path).runs)) == (1 if comparable else 2)


@pytest.mark.parametrize(
    ("runs", "one"),
    [
        ([{}, {"mode": "ssgd"}, {"lr": 0.3}], True),
        ([{"num_workers": p, "mode": m} for p in (2, 4, 8) for m in ("asgd", "ssgd")], True),
        ([{"num_workers": 2, "mode": "asgd"}, {"num_workers": 4, "mode": "ssgd"}], False),
        ([{"num_workers": 2}, {"num_workers": 4, "compute_time": "constant:2"}], False),
        ([{}, {"engine": "ray"}], False),
        ([{}, {"workload": "xor"}], False),
        ([{}, {"steps": 8}], False),
    ],
)
def test_one_report_draws_what_belongs_together(
    record: Path, tmp_path: Path, runs: list[Options], one: bool
) -> None:
    """A comparison, or a sweep of one scenario option by all variants, is one report; other runs are not."""
    for place, options in enumerate(runs):
        like(record, tmp_path / f"run-{place}", **options)
    assert are_one_comparison(list_folder(tmp_path)) == one


def test_a_run_that_was_cut_off_makes_no_index(record: Path, tmp_path: Path) -> None:
    """An interrupted run of other options leaves the comparison of the others as it was."""
    like(record, tmp_path / "one")
    end(like(record, tmp_path / "two", steps=99), stopped_by="interrupted")
    assert are_one_comparison(list_folder(tmp_path))


# --- The index ----------------------------------------------------------------------------------------------


@pytest.fixture
def index(unrelated: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    (page,) = printed(capsys, "report", str(unrelated))
    assert Path(page) == unrelated / "report.html"
    return Path(page)


def test_unrelated_runs_get_an_index(index: Path) -> None:
    """Comparable runs share a table; the best that ended is marked; seconds of two kinds never mix."""
    text = index.read_text()
    tables = [re.findall(r"\n([\w-]+)</a></th>", table) for table in text.split("<table>")[1:]]
    assert tables == [["broken", "ssgd", "asgd-1", "asgd-0"], ["real"], ["larger"]]
    units = [re.findall(r">((?:virtual|wall) s)<", table) for table in text.split("<table>")[1:]]
    assert units == [["virtual s"], ["wall s"], ["virtual s"]]
    (best,) = [row for row in text.split("<tr>") if 'class="best"' in row]
    assert "\nssgd</a>" in best  # the failed run has the lowest number
    assert ">failed<" in text
    assert "watch" in text
    assert "experiment “A &lt;title&gt;”, 1 run" in text
    assert not (index.parent / "results.csv").exists()


def test_the_same_records_give_the_same_index(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn again, the index has the same bytes."""
    before = index.read_bytes()
    printed(capsys, "report", str(index.parent))
    assert index.read_bytes() == before


def test_a_group_has_its_own_report(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--like RUN` compares the run with those like it, in the folder that the index then links."""
    folder = index.parent
    (page,) = printed(capsys, "report", str(folder), "--like", "ssgd")
    text = Path(page).read_text()
    assert "broken" in text  # as left out
    assert "larger" not in text
    assert len((Path(page).parent / "results.csv").read_text().splitlines()) == 1 + 3
    printed(capsys, "report", str(folder))
    link = Path(page).relative_to(folder).as_posix()
    assert f'href="{link}"' in index.read_text()
    assert list_folder(folder).folders == [(folder / "of-an-experiment", "experiment “A <title>”", 1)]


@pytest.mark.thorough
def test_the_run_that_like_names_is_in_the_report(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--like RUN` reports on that run, also where later ones have the same options and seed."""
    for place, name in enumerate(("first", "second", "third")):
        like(record, tmp_path / name, 0.5 - 0.1 * place)
    like(record, tmp_path / "larger", num_workers=4)
    for name in ("second", "third"):
        (page,) = printed(capsys, "report", str(tmp_path), "--like", name)
        text = Path(page).read_text()
        rows = (Path(page).parent / "results.csv").read_text().splitlines()
        assert len(rows) == 2
        assert f",{name}," in rows[1]
        assert text.count(f"has the same options and seed as {name}; only that one counts") == 2


def test_like_names_a_run_of_the_folder(unrelated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another name, or another kind of folder, is a usage error."""
    for folder, says in (
        (unrelated, "has no such run; list"),
        (unrelated / "of-an-experiment", "is for a folder of single runs"),
        (unrelated / "ssgd", "is for a folder of single runs"),
    ):
        assert main(["report", str(folder), "--like", "sgd"]) == 2
        err = capsys.readouterr().err
        assert err.startswith("main.py: --like sgd: ")
        assert says in err


def test_a_folder_of_experiments_has_an_index(unrelated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without any loose run, the index has the experiments."""
    for path in unrelated.iterdir():
        if path.name != "of-an-experiment":
            shutil.rmtree(path)
    (page,) = printed(capsys, "report", str(unrelated))
    assert "of-an-experiment/" in Path(page).read_text()


# --- In a browser -------------------------------------------------------------------------------------------


@pytest.mark.thorough
@needs("chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_index_can_be_read(index: Path, width: int, scheme: Any) -> None:
    """The page fits the screen, and all its text has contrast enough."""
    from playwright.sync_api import sync_playwright
    from test_report_browser import CONTRASTS

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=where("chromium"), args=["--no-sandbox"])
        messages: list[str] = []
        page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
        page.on("console", lambda message: messages.append(message.text))
        page.goto(index.as_uri())
        assert page.locator("tbody tr:visible").count() == 6
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [entry for entry in page.evaluate(CONTRASTS) if entry[0] < 4.5] == []
        browser.close()
    assert messages == []


# --- --open -------------------------------------------------------------------------------------------------


def opened(tmp_path: Path, page_of: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")}
    command = [sys.executable, str(ROOT / "main.py"), "report", str(page_of), "--open"]
    return subprocess.run(
        command, cwd=tmp_path, env=kept | environment, capture_output=True, text=True, check=False
    )


def test_open_shows_the_page_in_the_browser(unrelated: Path, tmp_path: Path) -> None:
    """`--open` gives the finished page's URL to the user's browser."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/seen\n')
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    ran = opened(tmp_path, unrelated, BROWSER=str(browser))
    page = unrelated / "report.html"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"{page}\n", "")
    assert (tmp_path / "seen").read_text().strip() == page.as_uri()


def test_open_without_a_browser_says_where_the_page_is(unrelated: Path, tmp_path: Path) -> None:
    """Where nothing can be opened, one line has the page's URL, and the exit code stays 0."""
    ran = opened(tmp_path, unrelated, PATH=str(tmp_path))
    assert ran.returncode == 0
    (line,) = ran.stderr.splitlines()
    assert line.endswith((unrelated / "report.html").as_uri())
