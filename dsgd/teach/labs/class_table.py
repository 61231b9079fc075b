"""The table of a class: a row for each student, a column for each question."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.teach.labs.lab_file import PARTS, Lab


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


def columns(lab: Lab) -> list[str]:
    """Return the names of the questions: each prediction, the exercise and the strategy."""
    return [*lab.predictions, *(part for part in PARTS[1:] if getattr(lab, part))]


def row(student: str, lab: Lab, result: Any) -> StudentRow:
    """Return a student's row, from what `--check --json` prints."""
    cells = [_cell(name, result) for name in columns(lab)]
    return StudentRow(student=student, cells=cells, error=result["error"] or "")


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
        for n in columns(lab)
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
    names, text = columns(lab), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    parts = [f"{name} {part}" for name in names for part in ("points", "first", "answer")]
    writer.writerow(["student", "points", *parts, "error"])
    for row in rows:
        cells = [value for c in row.cells for value in (c.points, c.first, c.final)]
        writer.writerow([row.student, row.points, *(cells or [""] * len(parts)), row.error])
    return text.getvalue()


def _as_json(lab: Lab, rows: Sequence[StudentRow]) -> str:
    """Return the table as JSON, a student an entry."""
    students = [
        {
            "student": row.student,
            "points": row.points,
            "error": row.error or None,
            "questions": {
                name: {"points": c.points, "of": c.of, "first": c.first or None, "answer": c.final or None}
                for name, c in zip(columns(lab), row.cells, strict=False)
            },
        }
        for row in rows
    ]
    return json.dumps({"lab": lab.title, "students": students}, indent=2) + "\n"


FORMS: Mapping[str, Callable[[Lab, Sequence[StudentRow]], str]] = {
    "text": _as_text,
    "csv": _as_csv,
    "json": _as_json,
}
