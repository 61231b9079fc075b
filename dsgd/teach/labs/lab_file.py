"""A lab's file: read and checked to the last name; nothing is run here."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_type_hints

from msgspec import Meta, Struct, defstruct
from msgspec.structs import replace

from dsgd.core.option_rules import option_fields
from dsgd.process.checked_yaml import convert, did_you_mean, read, rule
from dsgd.process.outcomes import UsageError
from dsgd.show.terminal.cli import configure
from dsgd.strategies import load, modes
from dsgd.teach.labs import goals, quantities, strategy_laws
from dsgd.teach.labs.wording import CheckedLaw, filled, function

PARTS = ("predictions", "exercise", "strategy")
LABS = Path(__file__).parents[3] / "docs" / "labs"
_BY_SLACK = ("nobody_starts_too_far_ahead", "nobody_waits_in_vain")  # laws that are about that option

_Text = Annotated[str, Meta(pattern=r"\S")]
_Number = Annotated[int | float, rule("must be a number")]
_Options = Mapping[str, Any]


class Prediction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number that the student writes down before the run that measures it."""

    text: _Text
    quantity: str
    of: _Options = {}
    """The quantity's arguments."""
    options: _Options
    """Of the run that measures it."""
    within: Annotated[float, Meta(gt=0, lt=1), rule("must be a share above 0 and below 1, like 0.05")]
    """How far off it may be, as a share of what is measured and of what theory says."""


class Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An option that the student sets, and the values that are allowed."""

    least: _Number
    most: _Number

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"least: {self.least} is above most: {self.most}")

    @property
    def whole(self) -> bool:
        return isinstance(self.least, int)


class Exercise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of which the lab fixes all options but a few."""

    text: _Text
    options: _Options
    choose: Annotated[Mapping[str, Choice], Meta(min_length=1)]
    laws: Sequence[CheckedLaw]


class StrategyTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A strategy to write, the runs in which it is looked at, and what has to hold in them."""

    options: _Options
    scenarios: Sequence[_Options]
    laws: Sequence[CheckedLaw]


class Lab(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a lab asks for."""

    title: _Text
    base: _Options = {}
    """Options of all runs of the predictions."""
    predictions: Mapping[str, Prediction] = {}
    exercise: Exercise | None = None
    strategy: StrategyTask | None = None
    more_runs: Sequence[_Options] = ()
    """Options of runs that the page shows beside those of the predictions."""
    experiment: _Options = {}
    """The page's experiment, as its file has it; it is checked when it runs."""


def path_of(name: Path) -> Path:
    """Return the file of a lab that is named by its number alone, like 03; any other name is a path."""
    numbered = LABS / f"{name!s:0>2}.yaml"
    return numbered if re.fullmatch(r"\d+", str(name)) and numbered.exists() else name


def read_lab(path: Path) -> Lab:
    """Read a lab's file.

    Raises UsageError, in one line that names the key, for anything that is wrong with any part of it, texts
    and options included.
    """
    where, remedy = f"lab {path}", "give a lab's file, like docs/labs/01.yaml"
    content = read(path, where, remedy)
    if not isinstance(content, dict) or "title" not in content or not set(content) & set(PARTS):
        raise UsageError(f"{where}: is not a lab's file; {remedy}")
    lab = convert({key: _with_parameters(entry) for key, entry in content.items()}, Lab, where)
    return replace(
        lab,
        predictions={
            name: _prediction(entry, lab.base, f"{where}: predictions: {name}")
            for name, entry in lab.predictions.items()
        },
        exercise=lab.exercise and _exercise(lab.exercise, f"{where}: exercise"),
        strategy=lab.strategy and _strategy(lab.strategy, f"{where}: strategy"),
        more_runs=[_options({**lab.base, **entry}, f"{where}: more_runs") for entry in lab.more_runs],
        experiment=_experiment(lab.experiment, f"{where}: experiment"),
    )


def _with_parameters(part: Any) -> Any:
    """Return a part of a lab, the arguments of its laws in mappings of their own."""
    if not isinstance(part, dict) or not isinstance(part.get("laws"), list):
        return part
    laws = [
        {key: law[key] for key in ("law", "text") if key in law}
        | {"parameters": {key: value for key, value in law.items() if key not in ("law", "text")}}
        if isinstance(law, dict)
        else law
        for law in part["laws"]
    ]
    return part | {"laws": laws}


def _prediction(entry: Prediction, base: _Options, where: str) -> Prediction:
    options = _options({**base, **entry.options}, f"{where}: options")
    _quantity(entry.quantity, entry.of, options["num_workers"], where)
    text = _filled(entry.text, {**options, **entry.of}, f"{where}: text")
    return replace(entry, text=text, options=options)


def _exercise(entry: Exercise, where: str) -> Exercise:
    options, choose = entry.options, entry.choose
    least, most = ({option: getattr(c, end) for option, c in choose.items()} for end in ("least", "most"))
    for option in choose:
        if option in options:
            raise UsageError(f"{where}: choose: {option}: is fixed under options:; keep it in one place")
    for end, chosen in (("least", least), ("most", most)):
        _options({**options, **chosen}, f"{where}: choose: {end}")
    laws = _laws(goals, entry.laws, options, f"{where}: laws")
    for law in laws:
        place, given = f"{where}: laws: {law.name}", law.parameters
        if (option := given.get("option", next(iter(choose)))) not in choose:
            hint = did_you_mean(option, choose, "the student sets {}")
            raise UsageError(f"{place}: option: {option} is not chosen; {hint}")
        if "quantity" in given:
            workers = {"num_workers": 4, **options, **least}["num_workers"]
            _quantity(given["quantity"], given.get("of") or {}, workers, place)
        if "than" in given:
            _options({**options, **least, **given["than"]}, f"{place}: than")
    return replace(entry, text=_filled(entry.text, options, f"{where}: text"), laws=laws)


def _strategy(entry: StrategyTask, where: str) -> StrategyTask:
    laws = _laws(strategy_laws, entry.laws, entry.options, f"{where}: laws")
    runs = [{**entry.options, **scenario} for scenario in entry.scenarios]
    for option in dict.fromkeys(option for run in runs for option in run):
        if option not in _any_mode_s_options() and (
            near := difflib.get_close_matches(option, _any_mode_s_options(), 1, 0.8)
        ):
            raise UsageError(f"{where}: there is no option {option}; did you mean {near[0]}?")
    for law in laws:
        place = f"{where}: laws: {law.name}"
        if law.name in _BY_SLACK or "slack" in law.parameters:
            for number, run in enumerate(runs, start=1):
                if "slack" not in run:
                    raise UsageError(f"{place}: needs slack in each run; scenario {number} has none")
        if (mode := law.parameters.get("mode")) and mode not in modes():
            raise UsageError(f"{place}: mode: there is no mode {mode}; {did_you_mean(mode, modes())}")
    return replace(entry, laws=laws)


@cache
def _any_mode_s_options() -> list[str]:
    """Return the options of all modes; a student's strategy may have others."""
    return sorted({option for mode in modes() for option in option_fields(load(mode).Config)})


def _experiment(content: _Options, where: str) -> dict[str, Any]:
    """Return the page's experiment, its question filled in."""
    if "question" not in content:
        return dict(content)
    base = convert(content.get("base", {}), dict[str, Any], f"{where}: base")
    question = convert(content["question"], str, f"{where}: question")
    return {**content, "question": _filled(question, base, f"{where}: question")}


def _laws(module: ModuleType, laws: Sequence[CheckedLaw], options: _Options, where: str) -> list[CheckedLaw]:
    """Return the laws with their sentences filled in."""
    checked = []
    for number, law in enumerate(laws, start=1):
        given = law.parameters
        _arguments(module, law.name, given, f"{where}: number {number}: law", f"{where}: {law.name}")
        known = {**options, **given, **(given.get("of") or {})}
        checked.append(replace(law, text=_filled(law.text, known, f"{where}: {law.name}: text")))
    return checked


def _quantity(name: str, given: _Options, num_workers: int, where: str) -> None:
    """Raise UsageError for a quantity that is not there, or that does not take what it is given."""
    _arguments(quantities, name, given, f"{where}: quantity", f"{where}: of: {name}")
    if not 0 <= given.get("worker", 0) < num_workers:
        last = num_workers - 1
        raise UsageError(
            f"{where}: of: worker: there is no worker {given['worker']}; choose one from 0 to {last}"
        )


def _arguments(module: ModuleType, name: str, given: _Options, where: str, place: str) -> None:
    """Raise UsageError if a module has no such function, or if it does not take these arguments."""
    try:
        found = function(module, name)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    hints = get_type_hints(found)
    takes = [p for p in inspect.signature(found).parameters.values() if p.kind is p.KEYWORD_ONLY]
    fields = [(p.name, hints[p.name], *([] if p.default is p.empty else [p.default])) for p in takes]
    convert(given, defstruct(name, fields, kw_only=True, forbid_unknown_fields=True), place)


def _options(options: _Options, where: str) -> dict[str, Any]:
    """Return the options of a run, `num_workers` among them; raises UsageError for any that is wrong."""
    if "mode" not in options:
        raise UsageError(f"{where}: mode: is missing; choose from {', '.join(modes())}")
    cfg = configure({"engine": "sim", **options}, where)
    return {**options, "num_workers": cfg.num_workers}


def _filled(text: str, values: _Options, where: str) -> str:
    try:
        return filled(" ".join(text.split()), values)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
