"""A disk that is full or cannot be written to: the file, the reason and the remedy, and no half files."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import PATIENCE_S, ROOT, needs

SIM = "--engine sim --mode asgd --num-workers 4"
MAIN = shlex.join([sys.executable, str(ROOT / "main.py")])


pytestmark = needs("unshare -rm")


class Ran(NamedTuple):
    """What commands on a small disk printed, and the files there in the end, with their sizes."""

    out: str
    err: str
    code: int
    files: dict[str, int]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return where the small disk is mounted; only the commands see it there."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def on_disk(disk: Path, commands: str, kilobytes: int = 1024) -> Ran:
    """Run shell commands in a separate name space, in which `disk` is a disk of that size."""
    script = (
        f"mount -t tmpfs -o size={kilobytes}k tmpfs . && cd . && cd {shlex.quote(str(disk))}\n{commands}\n"
        "code=$?\nfind . -type f -printf 'file %s %P\\n'\nexit $code"
    )
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], cwd=disk, capture_output=True, text=True, timeout=PATIENCE_S
    )  # fmt: skip
    printed = done.stdout.splitlines()
    files = [line.split(" ", 2) for line in printed if line.startswith("file ")]
    out = "\n".join(line for line in printed if not line.startswith("file "))
    return Ran(out, done.stderr, done.returncode, {name: int(size) for _, size, name in files})


def test_a_disk_that_fills_up_leaves_the_summary_on_the_terminal(disk: Path) -> None:
    """A run that fills the disk: exit 1, one line with file and remedy, the summary, no partial file."""
    ran = on_disk(disk, f"{MAIN} {SIM} --steps 2000 --out . --run-name r")
    assert ran.code == 1
    assert ran.err == (
        "main.py: the record is not complete: r/updates.jsonl: cannot be written (No space left on device); "
        "make room there, or choose another folder with --out\n"
    )
    for row in ("updates", "loss", "staleness", "theory says"):
        assert f"\n{row} " in ran.out
    assert not [name for name in ran.files if name.endswith(".partial")]
    assert "r/summary.json" not in ran.files  # it did not fit


def test_a_disk_that_is_full_gets_no_record(disk: Path) -> None:
    """A run on a full disk fails before its first update, and leaves no folder behind."""
    run = f"{MAIN} {SIM} --steps 3 --out . --run-name r"
    ran = on_disk(disk, f"head -c 1M /dev/zero > fill; {run}; code=$?; ls -d r; (exit $code)")
    assert ran.code == 1
    assert ran.err.splitlines()[0] == (
        "main.py: r/config.yaml: cannot be written (No space left on device); "
        "make room there, or choose another folder with --out"
    )
    assert "cannot access 'r'" in ran.err
    assert set(ran.files) == {"fill"}


@pytest.mark.thorough
def test_an_experiment_on_a_disk_that_fills_up_names_each_file(disk: Path) -> None:
    """Each run that does not fit is named with file and remedy, others are kept, and so are the results."""
    (disk.parent / "e.yaml").write_text(
        "title: t\nquestion: q\nbase: {engine: sim, steps: 200, num_workers: 8, trace_last: 0}\n"
        "variants: {asgd: {mode: asgd}}\nseeds: 4\n"
    )
    ran = on_disk(disk, f"{MAIN} compare ../e.yaml --out . --processes 1")
    assert ran.code == 1
    full = (
        r"cannot be written (No space left on device); make room there, or choose another folder with --out"
    )
    assert f"asgd-s3 failed: e/asgd-s3/config.yaml: {full}" in ran.out
    assert "the record is not complete: e/asgd-s" in ran.out
    assert ran.err.startswith("main.py: e/results.parquet: cannot be written (No space left on device); ")
    assert len(ran.err.splitlines()) == 1
    assert not [name for name in ran.files if name.endswith(".partial")]


@pytest.mark.thorough
def test_a_report_that_does_not_fit_says_which_file(disk: Path) -> None:
    """A report on a full disk: exit 1, one line with the file and the remedy; the same, read-only."""
    make = f"{MAIN} {SIM} --steps 20 --trace-last 0 --out . --run-name r --quiet"
    ran = on_disk(disk, f"{make}; head -c 2M /dev/zero > fill 2> ../fill.txt; {MAIN} report r")
    assert ran.code == 1
    assert ran.err.endswith(
        "cannot be written (No space left on device); make room there, or copy the records to another disk\n"
    )
    assert ran.err.startswith("main.py: r/")
    ran = on_disk(disk, f"{make}; mkdir r/figures; mount -o remount,ro .; {MAIN} report r")
    assert ran.code == 1
    assert ran.err.startswith("main.py: r/figures/")
    assert "cannot be written (Read-only file system); make it writable, or copy" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_disk_that_is_read_only_is_refused_before_anything_runs(disk: Path) -> None:
    """A run on a read-only disk: exit 2, one line that names --out."""
    ran = on_disk(disk, f"mount -o remount,ro .; {MAIN} {SIM} --steps 3 --out .")
    assert ran.code == 2
    assert ran.err == "main.py: --out .: . is not a folder that can be written to; choose another folder\n"
