"""The command `lab`: the questions of a lab, and answers checked."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from annotated_types import Gt

from dsgd.core.option_rules import HIDDEN, Checked
from dsgd.process.checked_yaml import read
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import EXIT_FAILED, UsageError
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.teach.labs import predicted
from dsgd.teach.labs import printed_verdicts as printed
from dsgd.teach.labs.answers import (
    Answers,
    keep_first_guesses,
    questions_of,
    read_answers,
    read_first_guesses,
)
from dsgd.teach.labs.class_check import check_class
from dsgd.teach.labs.lab_file import LABS, Lab, path_of, read_lab
from dsgd.teach.labs.lab_verdicts import Verdict, solvable, verdicts
from dsgd.teach.labs.quantities import Value
from dsgd.teach.labs.student_strategy import Work


@dataclass(frozen=True, kw_only=True)
class LabOptions(Checked):
    """Check the answers to a lab of docs/labs: predictions, options and strategies are held to simulated runs
    and to theory. Exit codes: 0 all holds, 1 something does not, 2 the answers cannot be read. With the lab
    alone, print its questions.
    """

    lab: Annotated[str, Positional("LAB")] = ""
    """A lab's number or file, like 01 or docs/labs/01.yaml; without it, the labs are listed."""

    answers: Annotated[str | None, Positional("ANSWERS")] = None
    """Your answers, written as on the lab's page; or a folder of answers, for a table of the class."""

    reveal: bool = False
    """Show what is measured and what theory says."""

    quiet: Annotated[bool, HIDDEN] = False
    """Print only what fails, and the count."""

    json: Annotated[bool, HIDDEN] = False
    """Print one student's verdicts as JSON; first guesses are not kept."""

    csv: bool = False
    """Print the table of a class as CSV."""

    limit_s: Annotated[float, Gt(0), HIDDEN] = 60.0
    """Seconds after which a student of a class is given up."""


def lab(arguments: Sequence[str], _: Interruptions) -> int:
    """Check the answers that the command line names, print what holds, and return the exit code.

    Raises UsageError in one line for anything that is wrong with the command or the files.
    """
    given = options_of_command(LabOptions, "lab", arguments)
    if not given.lab:
        for file in sorted(LABS.glob("[0-9]*.yaml")):
            print(f"{file.stem}  {read(file, 'lab', 'restore it')['title']}")
        return 0
    path = path_of(Path(given.lab))
    lab = read_lab(path)
    if given.answers is None:
        _values(lab, path)
        _see_that_the_exercise_can_be_solved(lab, path)
        print(questions_of(lab), end="")
        return 0
    answers_path = Path(given.answers)
    if answers_path.is_dir():
        _values(lab, path)
        if given.json:
            raise UsageError(f"--json: is for one file, and {answers_path} is a folder; use --csv")
        print(check_class(lab, path, answers_path, as_csv=given.csv, limit_s=given.limit_s), end="")
        return 0
    if given.csv:
        raise UsageError(f"--csv: is for a folder of answers, and {answers_path} is none; use --json")
    answers = read_answers(answers_path, lab)
    if answers.unreadable and not given.json:
        raise UsageError(answers.unreadable[0])
    return (_as_json if given.json else _for_a_person)(lab, path, answers_path, answers, given)


def _for_a_person(lab: Lab, path: Path, answers_path: Path, answers: Answers, given: LabOptions) -> int:
    work, values = _work(lab, answers), _values(lab, path)
    kept = keep_first_guesses(answers_path, answers.predictions, datetime.now().astimezone())
    first = read_first_guesses(answers_path)
    print(lab.title, flush=True)
    found: list[Verdict] = []
    with _errors_of(path):
        for part in verdicts(lab, answers, values, work):
            found += part
            heading = _heading(part[0].part, answers)
            for line in printed.lines(part, heading, first, reveal=given.reveal, quiet=given.quiet):
                print(_wrapped(line), flush=True)
    print(f"\n{printed.tally(found)}")
    if kept and not given.quiet:
        print(f"first guesses kept in {kept}")
    if not given.reveal and any(v.finding.theory for v in found) and not given.quiet:
        print("--reveal shows what is measured and what theory says")
    return _exit_code(found)


def _as_json(lab: Lab, path: Path, answers_path: Path, answers: Answers, given: LabOptions) -> int:
    first, values, work = read_first_guesses(answers_path), _values(lab, path), None
    errors = list(answers.unreadable)
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        _errors_of(path),
    ):  # a strategy may print
        try:
            work = _work(lab, answers)
        except UsageError as wrong:  # the other parts count nevertheless
            errors.append(str(wrong))
        found = [v for part in verdicts(lab, answers, values, work) for v in part]
    result = printed.as_json(found, lab.title, answers.exercise or {}, first, reveal=given.reveal)
    print(json.dumps({**result, "error": "; ".join(errors) or None}))
    return _exit_code(found)


def _wrapped(line: str) -> str:
    """Return a line as a terminal has room for it; what a program reads stays whole."""
    if not sys.stdout.isatty() or not line.strip():
        return line
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, subsequent_indent=" " * 9, break_long_words=False)


def _exit_code(found: Sequence[Verdict]) -> int:
    return 0 if all(v.finding.holds for v in found) else EXIT_FAILED


def _heading(part: str, answers: Answers) -> str:
    if part == "exercise" and answers.exercise:
        chosen = ", ".join(f"{option} {value:g}" for option, value in answers.exercise.items())
        return f"exercise: {chosen}"
    return f"strategy: {answers.strategy}" if part == "strategy" and answers.strategy else part


def _work(lab: Lab, answers: Answers) -> Work | None:
    """Load the strategy; its errors come before anything is printed."""
    if lab.strategy and answers.strategy:
        return Work(answers.strategy, lab.strategy.options, lab.strategy.scenarios)
    return None


def _values(lab: Lab, path: Path) -> dict[str, Value]:
    """Return what each prediction is held to; a lab that no answer can satisfy is refused."""
    with _errors_of(path):
        return predicted.values(lab)


def _see_that_the_exercise_can_be_solved(lab: Lab, path: Path) -> None:
    with _errors_of(path):
        if lab.exercise and solvable(lab.exercise) is False:
            (option,) = lab.exercise.choose
            raise ValueError(
                f"exercise: no {option} satisfies all its laws; change a law, or what is allowed"
            )


@contextmanager
def _errors_of(lab: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UsageError(f"lab {lab}: {error}") from None
