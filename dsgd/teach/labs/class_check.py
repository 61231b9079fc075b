"""A class: the answers of each student are checked in a separate process, and a table has a row for each.

A folder of answers has a file NAME.yaml for each student, or a folder NAME with a file named as the lab's,
like NAME/03.yaml. First guesses are those in the NAME.first.yaml beside a file.
"""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from dsgd.process.environment import of_python
from dsgd.process.outcomes import EXIT_USAGE, UsageError
from dsgd.teach.labs.lab_file import PARTS, Lab

PROCESSES = 2
_CHECK = """
import resource, sys
most = 4 << 30  # bytes: a list without end is an error in the student's file, not in this machine
resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
from dsgd.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
_MOST_KEPT = 100_000  # bytes of what a student's process prints


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A student's result in one question; `first` and `final` are empty where it has no such thing."""

    points: int
    of: int
    first: str = ""
    final: str = ""

    def __str__(self) -> str:
        guess = f"{self.first}->{self.final}" if self.first not in ("", self.final) else self.final
        points = f"{self.points}" if self.of == 1 else f"{self.points}/{self.of}"
        return f"{points} {guess or '-'}" if self.of == 1 or guess else points


@dataclass(frozen=True, kw_only=True)
class StudentRow:
    """A student's results, or why there are none."""

    student: str
    cells: Sequence[Cell] = ()
    error: str = ""

    @property
    def points(self) -> int:
        return sum(cell.points for cell in self.cells)


class Leftover(NamedTuple):
    """What is left of a student's process."""

    out: str
    err: str
    code: int | None
    """None if it was ended because its time was over."""


def check_class(lab: Lab, path: Path, folder: Path, *, as_csv: bool, limit_s: float) -> str:
    """Check all answers of a folder and return the table, as text or as CSV.

    limit_s: wall seconds after which a student's check is ended.
    Raises UsageError, in one line, for a folder without answers.
    """
    if not 0 < limit_s < 1e6:
        raise UsageError(f"--limit-s {limit_s:g}: must be above 0 seconds")
    students = dict(_answers(folder, path.stem))
    if not students:
        needed = f"NAME.yaml or NAME/{path.stem}.yaml, one a student"
        raise UsageError(f"lab {path} {folder}: has no answers; needed: {needed}")
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
    return (_as_csv if as_csv else _as_text)(lab, rows)


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
    try:  # what `lab --json` prints
        result = json.loads(ended.out.splitlines()[-1].replace(f"{answers.parent}{os.sep}", ""))
        cells = [_cell(name, result) for name in _columns(lab)]
        return StudentRow(student=student, cells=cells, error=result["error"] or "")
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
    command = [sys.executable, "-P", "-c", _CHECK, "lab", str(lab), str(answers), "--json"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=of_python(PYTHONDONTWRITEBYTECODE="1"),
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


def _columns(lab: Lab) -> list[str]:
    """Return the names of the questions: each prediction, the exercise and the strategy."""
    return [*lab.predictions, *(part for part in PARTS[1:] if getattr(lab, part))]


def _cell(name: str, result: Any) -> Cell:
    """Return a question's cell from one student's verdicts."""
    asked = [q for q in result["questions"] if name in (q["part"], q["name"] * (q["part"] == "predictions"))]
    points = sum(q["mark"] == "holds" for q in asked)
    if name in PARTS:
        chosen = " ".join(f"{value:g}" for value in result["exercise"].values())
        return Cell(points=points, of=len(asked), final=chosen if name == "exercise" else "")
    (question,) = asked
    first, final = (
        "" if value is None else f"{value:g}" for value in (question["first"], question["answer"])
    )
    return Cell(points=points, of=1, first=first, final=final)


def _as_text(lab: Lab, rows: Sequence[StudentRow]) -> str:
    """Return the table as people read it; questions have numbers, and a legend."""
    names = [
        f"exercise ({', '.join(lab.exercise.choose)})" if n == "exercise" and lab.exercise else n
        for n in _columns(lab)
    ]
    most = sum(len(part) for part in _parts(lab))
    legend = "".join(f"  {number}  {name}\n" for number, name in enumerate(names, start=1))
    head = ["student", "points", *map(str, range(1, len(names) + 1))]
    table = [head, *([r.student, f"{r.points}/{most}", *map(str, r.cells)] for r in rows if r.cells)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    failed = "".join(f"  {row.student}: {row.error}\n" for row in rows if row.error)
    return (
        f"{lab.title}\n\n{legend}\n"
        + "\n".join(lines)
        + "\n\n"
        + (f"not checked, or in part:\n{failed}\n" if failed else "")
        + f"{len(rows)} students. In a cell: points, then first guess->answer; one number: the same.\n"
    )


def _parts(lab: Lab) -> Iterator[Sequence[Any]]:
    yield list(lab.predictions)
    yield from (part.laws for part in (lab.exercise, lab.strategy) if part)


def _as_csv(lab: Lab, rows: Sequence[StudentRow]) -> str:
    """Return the table for a spreadsheet: points, first and final of each question."""
    names, text = _columns(lab), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    parts = [f"{name} {part}" for name in names for part in ("points", "first", "answer")]
    writer.writerow(["student", "points", *parts, "error"])
    for row in rows:
        cells = [value for c in row.cells for value in (c.points, c.first, c.final)]
        writer.writerow([row.student, row.points, *(cells or [""] * len(parts)), row.error])
    return text.getvalue()
