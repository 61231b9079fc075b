"""The answers of a class: each student's are checked in a separate process, and a table has a row for each.

A folder of answers has a file NAME.yaml for each student, or a folder NAME with a file named as the lab's,
like NAME/03.yaml. First guesses are those in the NAME.first.yaml beside a file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from dsgd.process.outcomes import EXIT_USAGE, UsageError
from dsgd.teach.labs.class_table import FORMS, StudentRow, row
from dsgd.teach.labs.lab_file import Lab

PROCESSES = 2
_ROOT = Path(__file__).parents[3]
_CHECK = """
import resource, sys
most = 4 << 30  # bytes: a list without end is an error in the student's file, not in this machine
resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
from dsgd.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
_MOST_KEPT = 100_000  # bytes of what a student's process prints


class Leftover(NamedTuple):
    """What is left of a student's process."""

    out: str
    err: str
    code: int | None
    """None if it was ended because its time was over."""


def check_class(lab: Lab, path: Path, folder: Path, *, form: str, limit_s: float) -> str:
    """Check all answers of a folder and return the table, as `form` has it: text, csv or json.

    limit_s: wall seconds after which a student's check is ended.
    Raises UsageError, in one line, for a folder without answers.
    """
    if not 0 < limit_s < 1e6:
        raise UsageError(f"--limit-s {limit_s:g}: must be above 0 seconds")
    students = dict(_answers(folder, path.stem))
    if not students:
        needed = f"NAME.yaml or NAME/{path.stem}.yaml, one a student"
        raise UsageError(f"--check {path} {folder}: has no answers; needed: {needed}")
    running: set[subprocess.Popen[bytes]] = set()

    def checked(student: str) -> StudentRow:
        answers = students[student]
        return _row(student, answers, lab, _checked(path, answers, limit_s, running))

    pool = ThreadPoolExecutor(PROCESSES)
    try:
        rows = list(pool.map(checked, students))
    finally:  # ctrl-C ends those that are running too
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            _end(process)
    return FORMS[form](lab, rows)


def _answers(folder: Path, lab: str) -> Iterator[tuple[str, Path]]:
    """Yield each student's name and file of answers, which may be missing."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield entry.name, entry / f"{lab}.yaml"
        elif entry.suffix in (".yaml", ".yml") and not entry.stem.endswith(".first"):
            yield entry.stem, entry


def _row(student: str, answers: Path, lab: Lab, ended: Leftover) -> StudentRow:
    if ended.code is None:
        return StudentRow(student=student, error="no result in time")
    try:
        return row(
            student, lab, json.loads(ended.out.splitlines()[-1].replace(f"{answers.parent}{os.sep}", ""))
        )
    except (IndexError, ValueError, KeyError, TypeError):  # no verdicts: its last words, if any, say why
        return StudentRow(student=student, error=_reason(ended, answers.parent))


def _reason(ended: Leftover, folder: Path) -> str:
    """Return why a process gave no result."""
    if ended.code == EXIT_USAGE and ended.err.strip():
        return ended.err.strip().splitlines()[-1].partition(": ")[2].replace(f"{folder}{os.sep}", "")
    if ended.err.startswith("Timeout ("):  # as faulthandler says it
        return "its strategy did not come back; look for a loop that never ends"
    return f"ended without a result (exit code {ended.code})"


def _checked(lab: Path, answers: Path, limit_s: float, running: set[subprocess.Popen[bytes]]) -> Leftover:
    """Check one file in a process, and end it after so many seconds with all processes that it has started.

    running: has the process in it while it goes on.
    """
    command = [sys.executable, "-P", "-c", _CHECK, "--check", str(lab), str(answers), "--json"]
    paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
        )
        running.add(process)
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s)
        _end(process)
        running.discard(process)
        return Leftover(_last(out), _last(err), code)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _MOST_KEPT))
    return file.read().decode("utf-8", "replace")
