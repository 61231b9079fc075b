"""A student's answers to a lab: read and checked; nothing is run here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgd.show.terminal.cli import UsageError
from dsgd.teach.labs.lab_file import PARTS, Exercise, Lab, is_open, known_keys, mapping, read_yaml


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
    content = read_yaml(path, where, remedy)
    if not isinstance(content, dict):
        raise UsageError(f"{where}: must be a mapping of names to values; {remedy}")
    content = mapping(content, where)
    unreadable: list[str] = []

    @contextmanager
    def one_answer() -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            unreadable.append(str(error))

    with one_answer():
        asked = [part for part in PARTS if getattr(lab, part)]
        known_keys(content, asked, where, "this lab asks for")
    predictions, numbers = {}, dict[str, float]()
    with one_answer():
        predictions = mapping(content.get("predictions"), f"{where}: predictions:")
        known_keys(predictions, lab.predictions, f"{where}: predictions:", "the lab asks for")
    for name in lab.predictions:
        with one_answer():
            if not is_open(value := predictions.get(name)):
                numbers[name] = _number(value, f"{where}: predictions: {name}:")
    exercise, chosen = None, content.get("exercise")
    with one_answer():
        if lab.exercise and not is_open(chosen):
            exercise = _chosen(chosen, lab.exercise, f"{where}: exercise:")
    strategy = content.get("strategy")
    strategy = None if is_open(strategy) else strategy
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
    given = mapping(value, where)
    names = ", ".join(exercise.choose)
    for option in given:
        if option in exercise.options:
            fixed = exercise.options[option]
            raise UsageError(f"{where} {option}: is fixed by the lab ({fixed}); choose only {names}")
    known_keys(given, exercise.choose, where, "you choose")
    chosen = {}
    for option, choice in exercise.choose.items():
        if option not in given:
            raise UsageError(f"{where} {option}: is missing; choose {names}")
        if is_open(given[option]):
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
