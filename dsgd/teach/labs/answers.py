"""A student's answers to a lab: the questions as a file to fill in, the answers as read and checked, and the
first guess of each, kept in a file beside them and written once. Nothing is run here.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dsgd.process.bounded_yaml import YamlError, load_yaml, read_text
from dsgd.process.checked_yaml import did_you_mean
from dsgd.process.outcomes import UsageError
from dsgd.teach.labs.lab_file import PARTS, Exercise, Lab

_QUESTION_MARK = re.compile(r"(:[ \t]+)\?(?=[ \t]*(?:$|[,}]|[ \t]#))", re.MULTILINE)  # to YAML, a key


def prediction_lines(lab: Lab) -> str:
    """Return the list that students copy: names to fill in, each below its question."""
    lines = [_comment(p.text, "  # ") + f"  {name}:\n" for name, p in lab.predictions.items()]
    return "predictions:\n" + "".join(lines)


def exercise_lines(lab: Lab) -> str:
    """Return the options that students choose, to fill in."""
    assert lab.exercise
    lines = []
    for option, choice in lab.exercise.choose.items():
        kind = "a whole number" if choice.whole else "a number"
        lines.append(f"  {option}:    # {kind}, {choice.least:g} to {choice.most:g}\n")
    return "exercise:\n" + "".join(lines)


def goal_sentences(lab: Lab) -> Iterator[str]:
    """Yield what the options of the exercise must achieve, a sentence each."""
    assert lab.exercise
    yield from (law.text for law in lab.exercise.laws)


def questions_of(lab: Lab) -> str:
    """Return a whole lab as an answers file to fill in, each question as a comment."""
    parts = [f"# {lab.title}\n"]
    if lab.predictions:
        parts.append(prediction_lines(lab))
    if lab.exercise:
        parts.append(
            _comment(lab.exercise.text)
            + "".join(_comment(goal, "# - ") for goal in goal_sentences(lab))
            + exercise_lines(lab)
        )
    if lab.strategy:
        laws = "".join(_comment(law.text, "# - ") for law in lab.strategy.laws)
        parts.append(f"{laws}strategy:    # a file\n")
    return "\n".join(parts)


def _comment(text: str, begin: str = "# ") -> str:
    """Return a text as comment lines of at most 80 columns."""
    rest = begin.replace("-", " ") if begin.endswith("- ") else begin
    return textwrap.fill(text, 80, initial_indent=begin, subsequent_indent=rest) + "\n"


_HEADER = "# First guesses: `lab` adds a line for each new one, and never changes what is here.\n"


def first_guesses_of(answers: Path) -> Path:
    """Return the file of the first guesses: my/01.first.yaml for my/01.yaml."""
    return answers.with_name(f"{answers.stem}.first.yaml")


def read_first_guesses(answers: Path) -> dict[str, float]:
    """Return the first guess of each prediction that has one.

    Raises UsageError, in one line, for a file that is there and cannot be read.
    """
    path = first_guesses_of(answers)
    if not path.exists():
        return {}
    where, remedy = f"first guesses {path}", "move it away to begin anew"
    content = _mapping(_read_yaml(path, where, remedy), where)
    try:
        return {name: float(entry["guess"]) for name, entry in content.items()}
    except (TypeError, KeyError, ValueError):
        raise UsageError(f"{where}: is not as `lab` wrote it; {remedy}") from None


def keep_first_guesses(answers: Path, predictions: Mapping[str, float], at: datetime) -> Path | None:
    """Write the predictions that have no first guess yet; return the file if anything was written.

    at: the time that stands beside them, with its zone. Raises UsageError if the file cannot be written.
    """
    path, known = first_guesses_of(answers), read_first_guesses(answers)
    new = {name: value for name, value in predictions.items() if name not in known}
    if not new:
        return None
    when = at.strftime("%Y-%m-%d %H:%M:%S %z")
    lines = [f'{name}: {{guess: {value!r}, at: "{when}"}}\n' for name, value in new.items()]
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(("" if known else _HEADER) + "".join(lines))
    except OSError as error:
        raise UsageError(
            f"first guesses {path}: cannot be written ({error.strerror}); make its folder writable"
        ) from None
    return path


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a student answered; parts that are missing are not answered yet."""

    predictions: Mapping[str, float]
    exercise: Mapping[str, float] | None
    strategy: Path | None
    unreadable: Sequence[str] = ()
    """A line for each answer that cannot be read, with the remedy; it counts as not answered."""


def read_answers(path: Path, lab: Lab) -> Answers:
    """Read a student's answers to a lab.

    A name with nothing behind it, or a question mark, is not answered yet. An exercise is answered if all its
    options are. An answer that is no number, that is to another question, or that sets what the lab has fixed
    gets a line in `unreadable`; the others count.

    Raises UsageError, in one line with the remedy, for a file that cannot be read.
    """
    where, remedy = f"answers {path}", "write it as the lab's page shows"
    content = _read_yaml(path, where, remedy)
    if not isinstance(content, dict):
        raise UsageError(f"{where}: must be a mapping of names to values; {remedy}")
    content = _mapping(content, where)
    unreadable: list[str] = []

    @contextmanager
    def one_answer() -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            unreadable.append(str(error))

    with one_answer():
        asked = [part for part in PARTS if getattr(lab, part)]
        _known_keys(content, asked, where, "this lab asks for")
    predictions, numbers = {}, dict[str, float]()
    with one_answer():
        predictions = _mapping(content.get("predictions"), f"{where}: predictions:")
        _known_keys(predictions, lab.predictions, f"{where}: predictions:", "the lab asks for")
    for name in lab.predictions:
        with one_answer():
            if not _is_open(value := predictions.get(name)):
                numbers[name] = _number(value, f"{where}: predictions: {name}:")
    exercise, chosen = None, content.get("exercise")
    with one_answer():
        if lab.exercise and not _is_open(chosen):
            exercise = _chosen(chosen, lab.exercise, f"{where}: exercise:")
    strategy = content.get("strategy")
    strategy = None if _is_open(strategy) else strategy
    if strategy is not None and not (isinstance(strategy, str) and strategy.strip()):
        unreadable.append(f"{where}: strategy: must be the path of a file, like train_mine.py")
        strategy = None
    return Answers(
        predictions=numbers,
        exercise=exercise,
        strategy=path.parent / strategy if strategy is not None else None,
        unreadable=unreadable,
    )


def _chosen(value: Any, exercise: Exercise, where: str) -> dict[str, float] | None:
    given = _mapping(value, where)
    names = ", ".join(exercise.choose)
    for option in given:
        if option in exercise.options:
            fixed = exercise.options[option]
            raise UsageError(f"{where} {option}: is fixed by the lab ({fixed}); choose only {names}")
    _known_keys(given, exercise.choose, where, "you choose")
    chosen = {}
    for option, choice in exercise.choose.items():
        if option not in given:
            raise UsageError(f"{where} {option}: is missing; choose {names}")
        if _is_open(given[option]):
            continue
        number = _number(given[option], f"{where} {option}:")
        kind = "a whole number" if choice.whole else "a number"
        if not choice.least <= number <= choice.most or (choice.whole and not number.is_integer()):
            raise UsageError(
                f"{where} {option}: must be {kind} from {choice.least:g} to {choice.most:g}, not {number:g}"
            )
        chosen[option] = int(number) if choice.whole else number
    return chosen if len(chosen) == len(exercise.choose) else None


def _number(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # "1e-3" is text in YAML
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        given = "names" if isinstance(value, dict) else "a list" if isinstance(value, list) else value
        raise UsageError(f"{where} must be a number, like 1.5, not {given}")
    return number


def _known_keys(given: Iterable[str], known: Collection[str], where: str, asks: str) -> None:
    """Raise UsageError for the first key that is not known; asks: what begins a list of those that are."""
    for key in given:
        if key not in known:
            raise UsageError(f"{where} has no place for {key}; {did_you_mean(key, known, f'{asks} {{}}')}")


def _is_open(value: Any) -> bool:
    """Whether nothing, or a question mark, stands where an answer belongs."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "?"))


def _mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a mapping, empty if there is nothing; raises UsageError for anything else."""
    if _is_open(value):
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be names and values, like `name: 1.5`, one a line")
    return value


def _read_yaml(path: Path, where: str, remedy: str) -> Any:
    """Return what a file holds, question marks as nothing; raises UsageError in one line."""
    try:
        content = load_yaml(_QUESTION_MARK.sub(r"\1", read_text(path, remedy)), remedy)
    except YamlError as error:
        raise UsageError(f"{where}: {error}") from None
    if content is None:
        raise UsageError(f"{where}: is empty; {remedy}")
    return content
