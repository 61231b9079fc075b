"""A lab's file: read and checked to the last name; nothing is run here."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from dsgd.config import option_fields
from dsgd.process.bounded_yaml import YamlError, load_yaml, read_text
from dsgd.show.terminal.cli import UsageError, configure
from dsgd.strategies import load, modes
from dsgd.teach.labs import goals, quantities, strategy_laws
from dsgd.teach.labs.wording import CheckedLaw, did_you_mean, filled, function

PARTS = ("predictions", "exercise", "strategy")
LABS = Path(__file__).parents[3] / "docs" / "labs"
_BY_SLACK = ("nobody_starts_too_far_ahead", "nobody_waits_in_vain")  # laws that are about that option
_QUESTION_MARK = re.compile(r"(:[ \t]+)\?(?=[ \t]*(?:$|[,}]|[ \t]#))", re.MULTILINE)  # to YAML, a key


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

    text: str
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
    more_runs: Sequence[Mapping[str, Any]] = ()
    """Options of runs that the page shows beside those of the predictions."""
    experiment: Mapping[str, Any] | None = None
    """The page's experiment, as its file has it."""


def path_of(name: Path) -> Path:
    """Return the file of a lab that is named by its number alone, like 03; any other name is a path."""
    numbered = LABS / f"{name!s:0>2}.yaml"
    return numbered if re.fullmatch(r"\d+", str(name)) and numbered.exists() else name


def read_lab(path: Path) -> Lab:
    """Read a lab's file.

    Raises UsageError, in one line that names the key, for anything that is wrong with any part of it, texts
    and options included.
    """
    where = f"--check {path}"
    content = read_yaml(path, where, "give a lab's file, like docs/labs/01.yaml")
    if not isinstance(content, dict) or "title" not in content or not set(content) & set(PARTS):
        raise UsageError(f"{where}: is not a lab's file; give one like docs/labs/01.yaml")
    content = _fields(content, where, ("title",), ("base", "more_runs", "experiment", *PARTS))
    base = mapping(content.get("base"), f"{where}: base:")
    place = f"{where}: predictions:"
    predictions = mapping(content.get("predictions"), place)
    return Lab(
        title=_text(content["title"], f"{where}: title:"),
        predictions={
            name: _prediction(entry, base, f"{place} {name}:") for name, entry in predictions.items()
        },
        exercise=_exercise(content["exercise"], f"{where}: exercise:") if content.get("exercise") else None,
        strategy=_strategy(content["strategy"], f"{where}: strategy:") if content.get("strategy") else None,
        more_runs=[
            _options(entry, base, f"{where}: more_runs:")
            for entry in _list(content.get("more_runs") or [], f"{where}: more_runs:")
        ],
        experiment=_experiment(content.get("experiment"), f"{where}: experiment:"),
    )


def _prediction(entry: Any, base: Mapping[str, Any], where: str) -> Prediction:
    entry = _fields(entry, where, ("text", "options", "quantity", "within"), ("of",))
    options = _options(entry["options"], base, f"{where} options:")
    given = mapping(entry.get("of"), f"{where} of:")
    name = _text(entry["quantity"], f"{where} quantity:")
    _arguments(quantities, name, given, f"{where} quantity:", f"{where} of:")
    _known_worker(given, options["num_workers"], f"{where} of:")
    within = entry["within"]
    if isinstance(within, bool) or not isinstance(within, int | float) or not 0 < within < 1:
        raise UsageError(f"{where} within: must be a share above 0 and below 1, like 0.05, not {within}")
    return Prediction(
        text=_filled(entry["text"], {**options, **given}, f"{where} text:"),
        quantity=CheckedLaw(name=name, text="", parameters=given),
        options=options,
        within=float(within),
    )


def _exercise(entry: Any, where: str) -> Exercise:
    entry = _fields(entry, where, ("text", "options", "choose", "laws"), ())
    options = mapping(entry["options"], f"{where} options:")
    choose = {
        option: _choice(limits, f"{where} choose: {option}:")
        for option, limits in mapping(entry["choose"], f"{where} choose:").items()
    }
    if not choose:
        raise UsageError(f"{where} choose: is empty; name the options that the student sets")
    for option in choose:
        if option in options:
            raise UsageError(f"{where} choose: {option}: is fixed under options:; keep it in one place")
    for name in ("least", "most"):
        ends = {option: _whole_or_not(choice, getattr(choice, name)) for option, choice in choose.items()}
        _options({**options, **ends}, {}, f"{where} choose: {name}:")
    laws = _laws(goals, entry["laws"], options, f"{where} laws:")
    fewest = choose["num_workers"].least if "num_workers" in choose else options.get("num_workers", 4)
    for law in laws:
        place = f"{where} laws: {law.name}:"
        if law.parameters.get("option", next(iter(choose))) not in choose:
            hint = did_you_mean(law.parameters["option"], choose, "the student sets")
            raise UsageError(f"{place} option: {law.parameters['option']} is not chosen; {hint}")
        if "quantity" in law.parameters:
            given = mapping(law.parameters.get("of"), f"{place} of:")
            _arguments(quantities, law.parameters["quantity"], given, f"{place} quantity:", f"{place} of:")
            _known_worker(given, fewest, f"{place} of:")
        if "than" in law.parameters:
            least = {option: _whole_or_not(choice, choice.least) for option, choice in choose.items()}
            _options({**options, **least, **law.parameters["than"]}, {}, f"{place} than:")
    return Exercise(
        text=_filled(entry["text"], options, f"{where} text:"), options=options, choose=choose, laws=laws
    )


def _strategy(entry: Any, where: str) -> StrategyTask:
    entry = _fields(entry, where, ("options", "scenarios", "laws"), ())
    options = mapping(entry["options"], f"{where} options:")
    scenarios = _list(entry["scenarios"], f"{where} scenarios:")
    laws = _laws(strategy_laws, entry["laws"], options, f"{where} laws:")
    runs = [{**options, **mapping(scenario, f"{where} scenarios:")} for scenario in scenarios]
    for option in dict.fromkeys(option for run in runs for option in run):
        if option not in _any_mode_s_options() and (
            near := difflib.get_close_matches(option, _any_mode_s_options(), 1, 0.8)
        ):
            raise UsageError(f"{where} there is no option {option}; did you mean {near[0]}?")
    for law in laws:
        place = f"{where} laws: {law.name}:"
        if not 1 <= law.parameters.get("run", 1) <= len(scenarios):
            raise UsageError(f"{place} run: must be 1 to {len(scenarios)}, the number of a scenario")
        if law.name in _BY_SLACK or "slack" in law.parameters:
            for number, run in enumerate(runs, start=1):
                if "slack" not in run:
                    raise UsageError(f"{place} needs slack in each run; scenario {number} has none")
        if (mode := law.parameters.get("mode")) and mode not in modes():
            raise UsageError(f"{place} mode: there is no mode {mode}; {did_you_mean(mode, modes())}")
    return StrategyTask(
        options=options,
        scenarios=[mapping(scenario, f"{where} scenarios:") for scenario in scenarios],
        laws=laws,
    )


@cache
def _any_mode_s_options() -> list[str]:
    """Return the options of all modes; a student's strategy may have others."""
    return sorted({option for mode in modes() for option in option_fields(load(mode).Config)})


def _experiment(entry: Any, where: str) -> dict[str, Any] | None:
    """Return the page's experiment, its question filled in; the rest is checked when it runs."""
    content = mapping(entry, where)
    if not content:
        return None
    if "question" in content:
        base = mapping(content.get("base"), f"{where} base:")
        content["question"] = _filled(content["question"], base, f"{where} question:")
    return content


def _choice(limits: Any, where: str) -> Choice:
    limits = _fields(limits, where, ("least", "most"), ())
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{where} {name}: must be a number, not {value}")
    if limits["least"] > limits["most"]:
        raise UsageError(f"{where} least: {limits['least']} is above most: {limits['most']}")
    return Choice(
        least=float(limits["least"]), most=float(limits["most"]), whole=isinstance(limits["least"], int)
    )


def _whole_or_not(choice: Choice, value: float) -> float:
    return int(value) if choice.whole else value


def _laws(module: ModuleType, entries: Any, options: Mapping[str, Any], where: str) -> list[CheckedLaw]:
    laws = []
    for number, entry in enumerate(_list(entries, where), start=1):
        place = f"{where} number {number}:"
        given = dict(mapping(entry, place))
        for key in ("law", "text"):
            if key not in given:
                raise UsageError(f"{place} needs {key}:")
        name, text = _text(given.pop("law"), f"{place} law:"), given.pop("text")
        _arguments(module, name, given, f"{place} law:", f"{place} {name}:")
        known = {**options, **given, **mapping(given.get("of"), f"{place} of:")}
        laws.append(
            CheckedLaw(name=name, text=_filled(text, known, f"{place} {name}: text:"), parameters=given)
        )
    return laws


def _arguments(module: ModuleType, name: str, given: Mapping[str, Any], where: str, place: str) -> None:
    """Raise UsageError if a module has no such function, or if it does not take these arguments."""
    try:
        found = function(module, name)
    except ValueError as error:
        raise UsageError(f"{where} {error}") from None
    takes = {n: p for n, p in inspect.signature(found).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for key, value in given.items():
        if key not in takes:
            hint = did_you_mean(key, takes, f"{name} takes") if takes else f"{name} takes nothing"
            raise UsageError(f"{place} there is no key {key}; {hint}")
        kind = str(takes[key].annotation)
        wanted, rule = _KINDS.get(kind.removesuffix(" | None").partition("[")[0], (object, ""))
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise UsageError(f"{place} {key}: must be {rule}, not {value}")
    for key, parameter in takes.items():
        if key not in given and parameter.default is parameter.empty:
            raise UsageError(f"{place} {name} needs {key}:")


_KINDS: Mapping[str, tuple[Any, str]] = {
    "float": (int | float, "a number"),
    "int": (int, "a whole number"),
    "str": (str, "a name"),
    "Sequence": (list, "a list"),
    "Mapping": (dict, "names and values"),
}
"""What an argument must be, by the name of its type in the function's signature."""


def _known_worker(given: Mapping[str, Any], num_workers: Any, where: str) -> None:
    worker = given.get("worker", 0)
    if not 0 <= worker < num_workers:
        last = int(num_workers) - 1
        raise UsageError(f"{where} worker: there is no worker {worker}; choose one from 0 to {last}")


def _options(given: Any, base: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the options of a run, `num_workers` among them; raises UsageError for any that is wrong."""
    options = {**base, **mapping(given, where)}
    if "mode" not in options:
        raise UsageError(f"{where} mode: is missing; choose from {', '.join(modes())}")
    cfg = configure({"engine": "sim", **options}, where)
    return {**options, "num_workers": cfg.num_workers}


def _filled(text: Any, values: Mapping[str, Any], where: str) -> str:
    try:
        return filled(" ".join(_text(text, where).split()), values)
    except ValueError as error:
        raise UsageError(f"{where} {error}") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where} must be a text, not {value}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"{where} must be a list, one entry a line, each after a dash")
    return value


def _fields(value: Any, where: str, needed: Sequence[str], optional: Sequence[str]) -> dict[str, Any]:
    """Return a mapping that has all the keys that are needed, and no others than these and the optional."""
    given = mapping(value, where)
    known_keys(given, (*needed, *optional), where, "its keys are")
    for key in needed:
        if key not in given:
            raise UsageError(f"{where} needs {key}:")
    return given


def known_keys(given: Mapping[str, Any], known: Iterable[str], where: str, asks: str) -> None:
    """Raise UsageError for the first key that is not known; asks: what begins a list of those that are."""
    known = list(known)
    for key in given:
        if key not in known:
            raise UsageError(f"{where} has no place for {key}; {did_you_mean(key, known, asks)}")


def is_open(value: Any) -> bool:
    """Whether nothing, or a question mark, stands where an answer belongs."""
    return value is None or (isinstance(value, str) and value.strip() in ("", "?"))


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a mapping, empty if there is nothing; raises UsageError for anything else."""
    if is_open(value):
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be names and values, like `name: 1.5`, one a line")
    return {str(key): entry for key, entry in value.items()}


def read_yaml(path: Path, where: str, remedy: str) -> Any:
    """Return what a file holds, question marks as nothing; raises UsageError in one line."""
    try:
        content = load_yaml(_QUESTION_MARK.sub(r"\1", read_text(path, remedy)), remedy)
    except YamlError as error:
        raise UsageError(f"{where}: {error}") from None
    if content is None:
        raise UsageError(f"{where}: is empty; {remedy}")
    return content
