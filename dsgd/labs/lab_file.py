"""A lab's file and a student's answers to it: read and checked; nothing is run here."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dsgd.terminal.cli import UsageError

_PARTS = ("predictions", "exercise", "strategy")
_QUESTION_MARK = re.compile(r"(:[ \t]+)\?(?=[ \t]*(?:$|[,}]|[ \t]#))", re.MULTILINE)  # to YAML, a key


@dataclass(frozen=True, kw_only=True)
class CheckedLaw:
    """Something that has to hold: a sentence, the function that checks it, and that function's arguments."""

    name: str
    text: str
    parameters: Mapping[str, Any]


class Finding(NamedTuple):
    """Whether a law holds, what was seen, and what is needed."""

    holds: bool | None
    """None if it was not tested."""
    seen: str


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A number that the student writes down before the run that measures it."""

    text: str
    quantity: CheckedLaw
    options: Mapping[str, Any]
    """Of the run that measures it."""
    within: float
    """How far off it may be, as a share of what is measured and of what theory says."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An option that the student sets, and the values that are allowed."""

    least: float
    most: float
    whole: bool


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A run of which the lab fixes all options but a few."""

    options: Mapping[str, Any]
    choose: Mapping[str, Choice]
    laws: Sequence[CheckedLaw]


@dataclass(frozen=True, kw_only=True)
class StrategyTask:
    """A strategy to write, the runs in which it is looked at, and what has to hold in them."""

    options: Mapping[str, Any]
    scenarios: Sequence[Mapping[str, Any]]
    laws: Sequence[CheckedLaw]


@dataclass(frozen=True, kw_only=True)
class Lab:
    """What a lab asks for."""

    title: str
    predictions: Mapping[str, Prediction]
    exercise: Exercise | None
    strategy: StrategyTask | None


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a student answered; parts that are missing are not answered yet."""

    predictions: Mapping[str, float]
    exercise: Mapping[str, float] | None
    strategy: Path | None


def read_lab(path: Path) -> Lab:
    """Read a lab's file.

    Raises UsageError, in one line, for a file that is not one.
    """
    where = f"--check {path}"
    content = _read(path, where, "give a lab's file, like docs/labs/01.yaml")
    if "title" not in content or not set(content) & set(_PARTS):
        raise UsageError(f"{where}: is not a lab's file; give one like docs/labs/01.yaml")
    try:
        return _lab(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{where}: is not a complete lab ({type(error).__name__}: {error})") from None


def _lab(content: Mapping[str, Any]) -> Lab:
    exercise, strategy = content.get("exercise"), content.get("strategy")
    return Lab(
        title=content["title"],
        predictions={
            name: Prediction(
                text=entry["text"],
                quantity=_law({"law": entry["quantity"], "text": "", **entry.get("of", {})}),
                options={**content.get("base", {}), **entry["options"]},
                within=float(entry["within"]),
            )
            for name, entry in content.get("predictions", {}).items()
        },
        exercise=exercise
        and Exercise(
            options=exercise["options"],
            choose={
                option: Choice(
                    least=float(limits["least"]),
                    most=float(limits["most"]),
                    whole=isinstance(limits["least"], int),
                )
                for option, limits in exercise["choose"].items()
            },
            laws=[_law(entry) for entry in exercise["laws"]],
        ),
        strategy=strategy
        and StrategyTask(
            options=strategy["options"],
            scenarios=strategy["scenarios"],
            laws=[_law(entry) for entry in strategy["laws"]],
        ),
    )


def _law(entry: Mapping[str, Any]) -> CheckedLaw:
    parameters = {key: value for key, value in entry.items() if key not in ("law", "text")}
    return CheckedLaw(name=entry["law"], text=entry["text"], parameters=parameters)


def read_answers(path: Path, lab: Lab) -> Answers:
    """Read a student's answers to a lab.

    A name with nothing behind it, or a question mark, is not answered yet. An exercise is answered if all its
    options are.

    Raises UsageError, in one line with the remedy, for answers that cannot be read, that are to another
    question, or that set what the lab has fixed.
    """
    where = f"answers {path}"
    content = _read(path, where, "write it as the lab's page shows")
    asked = [part for part in _PARTS if getattr(lab, part)]
    _known(content, asked, where, "this lab asks for")
    predictions = _mapping(content.get("predictions"), f"{where}: predictions:")
    _known(predictions, lab.predictions, f"{where}: predictions:", "the lab asks for")
    chosen = content.get("exercise")
    strategy = content.get("strategy")
    strategy = None if _is_open(strategy) else strategy
    if strategy is not None and not (isinstance(strategy, str) and strategy.strip()):
        raise UsageError(f"{where}: strategy: must be the path of a file, like train_mine.py")
    return Answers(
        predictions={
            name: _number(value, f"{where}: predictions: {name}:")
            for name, value in predictions.items()
            if not _is_open(value)
        },
        exercise=_chosen(chosen, lab.exercise, f"{where}: exercise:")
        if not _is_open(chosen) and lab.exercise
        else None,
        strategy=path.parent / strategy if strategy is not None else None,
    )


def _chosen(value: Any, exercise: Exercise, where: str) -> dict[str, float] | None:
    given = _mapping(value, where)
    names = ", ".join(exercise.choose)
    for option in given:
        if option in exercise.options:
            fixed = exercise.options[option]
            raise UsageError(f"{where} {option}: is fixed by the lab ({fixed}); choose only {names}")
    _known(given, exercise.choose, where, "you choose")
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


def _is_open(value: Any) -> bool:
    """Whether nothing, or a question mark, stands where an answer belongs."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "?"))


def function(module: Any, name: str) -> Callable[..., Any]:
    """Return a module's own public function; raises ValueError if it has none of that name."""
    found = getattr(module, name, None)
    if name.startswith("_") or getattr(found, "__module__", "") != module.__name__ or not callable(found):
        raise ValueError(f"there is no {name} in {module.__name__}")
    result: Callable[..., Any] = found
    return result


def _known(given: Mapping[str, Any], known: Iterable[str], where: str, asks: str) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"{asks} {', '.join(known)}"
            raise UsageError(f"{where} has no place for {key}; {hint}")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if _is_open(value):
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be names and numbers, like `name: 1.5`, one a line")
    return {str(key): entry for key, entry in value.items()}


def _number(value: Any, where: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # "1e-3" is text in YAML
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{where} must be a number, like 1.5, not {value}")
    return number


def _read(path: Path, where: str, remedy: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(_QUESTION_MARK.sub(r"\1", path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{where}: cannot be read ({error.strerror}); {remedy}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: is not YAML ({' '.join(str(error).split())}); {remedy}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{where}: must be a mapping of names to values; {remedy}")
    return {str(key): value for key, value in content.items()}
