"""An experiment's file: read, checked like the command line, and expanded into runs.

Nothing is run or written here, and neither torch nor ray is imported.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from dsgd.compare.experiment import Experiment, Tuning, Variant, described, value_text
from dsgd.config import DataConfig
from dsgd.core.old_options import old_options, renamed, today
from dsgd.core.option_rules import OnlyWith, option_fields, options
from dsgd.models.workloads import options_of
from dsgd.process import checked_yaml
from dsgd.process.bounded_yaml import YamlError, load_yaml
from dsgd.process.checked_yaml import Finite, convert, did_you_mean, rule
from dsgd.process.outcomes import UsageError
from dsgd.show.report.experiment_yaml import FIGURES, Figure
from dsgd.show.report.frames import NOT_COMPARED
from dsgd.show.report.layout import PARTS, Asked, Member, arrange
from dsgd.show.report.measures import BEST, OF_TARGET, required
from dsgd.show.report.premises import Premise, require_names
from dsgd.show.report.written_numbers import listed, option_text
from dsgd.show.terminal.cli import configure
from dsgd.show.terminal.scenario_option import options_of_scenario
from dsgd.show.watching_options import LiveConfig, LogConfig
from dsgd.strategies import load as load_strategy
from dsgd.strategies import modes, tuned_by

_OF_BUILT_IN = {
    name
    for name, option in option_fields(DataConfig).items()
    if any(isinstance(rule, OnlyWith) and "workload" in rule.allowed for rule in option.rules)
}

AUTO = "auto"
"""In place of the options under tune: those that the file does not set, of each variant's mode."""
_AUTO_STEPS = (1 / 9, 1 / 3, 1, 3, 9, 27)  # of the step size that a variant has
_AUTO_SEEDS = [10_000, 10_001]  # no count of seeds reaches them
_LONGEST_NAME = 80
_MOST_SEEDS = 10_000  # planned in some 5 s a variant
NOT_HERE = {
    "seed": "the runs' seeds are listed under seeds:",
    "out": "give --out DIR on the command line",
    "upload_every": "give --upload-every SECONDS on the command line",
    "run_name": "each run is named after its variant and seed",
    "profile": "each run would write the same file; profile one by itself",
    "quiet": "the experiment shows its runs itself",
    **dict.fromkeys(option_fields(LiveConfig), "give --dashboard PORT on the command line to watch the runs"),
    **dict.fromkeys(option_fields(LogConfig), "give it on the command line"),
}
"""Options of single runs that an experiment does not leave to its file, and what is there instead."""


_Options = dict[str, Any]
_Seeds = Annotated[list[Annotated[int, Meta(ge=0, le=2**63 - 1)]], Meta(min_length=1, max_length=_MOST_SEEDS)]
_Values = Annotated[list[Any], Meta(min_length=1), rule("must be a list of values, like [1, 2]")]
_Lists = Annotated[dict[str, _Values], Meta(min_length=1)]
_InWords = Annotated[str, Meta(pattern=r"\S"), rule("must be in words")]


class _File(Struct, kw_only=True, forbid_unknown_fields=True):
    """What may stand in an experiment's file."""

    title: _InWords
    question: _InWords
    base: _Options = {}
    variants: Annotated[dict[str, _Options | None], Meta(min_length=1)] | None = None
    grid: Annotated[_Options, Meta(min_length=1)] | None = None
    tune: Annotated[
        Literal["auto"] | _Options | None,
        rule("must be auto, or options with lists of values, like lr: [0.1, 0.2]"),
    ] = None
    seeds: Annotated[
        Annotated[int, Meta(ge=1, le=_MOST_SEEDS)] | _Seeds,
        rule(f"must be a count of at most {_MOST_SEEDS:,} (5 means 0 to 4) or a list of numbers like [0, 1]"),
    ]
    target_loss: Finite | None = None
    compare: Annotated[str | int | float | None, rule("must be one name, like local_steps")] = None
    per: Annotated[str | list[str], rule("must be an option or a list of options, like partition")] = []
    baseline: Annotated[str | int | float | None, rule("must be one name, like ssgd")] = None
    measure: Annotated[str | list[str], rule("must be a measure or a list of them, like time-to-loss")] = []
    premise: Annotated[
        list[Premise],
        Meta(min_length=1),
        rule("must be a list, like [{quantity: exchange_batches, at_least: 3, at_most: 5}]"),
    ] = []
    show: (
        Annotated[list[Figure], Meta(min_length=1), rule(f"must be a list of figures: {', '.join(FIGURES)}")]
        | None
    ) = None


def load(path: str | Path, settings: Sequence[str] = (), out: str | Path = "runs") -> Experiment:
    """Read an experiment's file; its records go into a folder of the file's name in `out`.

    settings: `option=value` texts, which replace what the file's base says (`seeds=N`: its seeds;
    `target_loss=X`: its target, where it has one).
    Raises UsageError in one line for anything wrong with any of its runs that the options show.
    """
    where, remedy = f"compare {path}", "give an experiment's file, like experiments/compare-modes.yaml"
    return read(checked_yaml.read(Path(path), where, remedy), Path(path).stem, where, settings, out)


def read(content: Any, name: str, where: str, settings: Sequence[str], out: str | Path) -> Experiment:
    """Return the experiment that a file's content asks for; its records go into the folder `name` in `out`.

    where: how messages begin. Raises UsageError as `load` does.
    """
    content = {key: value for key, value in convert(content, _Options, where).items() if value is not None}
    changes = {setting: _setting(setting) for setting in settings}
    for setting, (key, value) in list(changes.items()):
        if key == "seeds" or (key == "target_loss" and key in content):
            content[key] = value
            del changes[setting]
    file = convert(content, _File, where)
    base, variants = _options(file.base), _named(file.variants) if file.variants else None
    points = _points(file.grid, f"{where}: grid") if file.grid else None
    if not variants and not points:
        raise UsageError(f"{where}: compares nothing; give variants: or grid:")
    tuned_seeds, tried = _tune(file.tune, f"{where}: tune") if isinstance(file.tune, dict) else ([], {})
    _set_in_one_place(variants, points, tried, where)
    for setting, (key, value) in changes.items():
        for place, named in (("variants:", variants), ("grid:", points), ("tune:", {"": tried})):
            if any(key in given for given in (named or {}).values()):
                raise UsageError(f"--set {setting}: {where} sets {key} under {place}; change it there")
        settings_of = (base, *(variants or {}).values(), *(points or {}).values())
        _known_option(key, {str(s["workload"]) for s in settings_of if s.get("workload")}, f"--set {setting}")
        base |= _options({key: value})
        if key == "workload" and value is not None:  # it replaces what the file learns
            base = {option: given for option, given in base.items() if today(option) not in _OF_BUILT_IN}
    seeds = list(range(file.seeds)) if isinstance(file.seeds, int) else file.seeds
    _each_once(seeds, f"{where}: seeds")
    if file.tune == AUTO:
        tuned_seeds = _AUTO_SEEDS
    if common := set(seeds) & set(tuned_seeds):
        raise UsageError(
            f"{where}: tune: seeds: {min(common)} is a seed of the experiment too, which would count the "
            "choice twice; choose others"
        )
    expanded = _expand(base, variants, points, where)
    of_grid = set(itertools.chain.from_iterable((points or {}).values()))
    values = _around(expanded, of_grid) if file.tune == AUTO else _of_each(tried, expanded)
    try:
        require_names(file.premise, dict.fromkeys(n for v in expanded for n in (v.name, *v.parts.values())))
    except ValueError as error:
        raise UsageError(f"{where}: premise: {error}") from None
    return Experiment(
        name=name,
        title=file.title.strip(),
        question=" ".join(file.question.split()),
        base=base,
        variants=expanded,
        seeds=seeds,
        tuning=Tuning(
            values=values,
            tried={v.name: with_each(v, values[v.name], base, where) for v in expanded if v.name in values},
            seeds=tuned_seeds,
            auto=file.tune == AUTO,
        )
        if values
        else None,
        target_loss=file.target_loss,
        asked=_asked(file, expanded, list(dict.fromkeys(itertools.chain(*values.values()))), where),
        premises=file.premise,
        show=file.show and list(dict.fromkeys(file.show)),
        folder=Path(out) / name,
    )


def _options(given: _Options | None) -> _Options:
    """Return a mapping of options, spelled with underscores; those of a scenario by their names."""
    found = {renamed(key.replace("-", "_")): value for key, value in (given or {}).items()}
    scenario = found.pop("scenario") if isinstance(found.get("scenario"), str) else None
    return found if scenario is None else options_of_scenario(scenario) | found


def _named(given: Mapping[str, _Options | None]) -> dict[str, _Options]:
    return {name: _options(entry) for name, entry in given.items()}


def _points(grid: _Options, where: str) -> dict[str, _Options]:
    """Return the points of a grid by name: all combinations of lists, or those that the file names."""
    if all(isinstance(entry, dict) for entry in grid.values()):
        return _named(grid)
    return {
        " ".join(itertools.starmap(described, point.items())): _options(point)
        for point in _product(_lists(grid, where))
    }


def _lists(grid: _Options, where: str) -> dict[str, list[Any]]:
    """Return options with lists of values."""
    lists = convert(_options(grid), _Lists, where)
    for option, values in lists.items():
        _each_once([value_text(value) for value in values], f"{where}: {option}")
    return lists


def _each_once(values: Sequence[Any], where: str) -> None:
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise UsageError(f"{where}: has {twice[0]} twice; give each once")


def _product(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _tune(given: _Options, where: str) -> tuple[list[int], dict[str, list[Any]]]:
    """Return seeds and values of what is tuned."""
    if not isinstance(given.get("seeds"), list):
        raise UsageError(f"{where}: needs its own seeds:, a list, like [100, 101]")
    values = {option: value for option, value in given.items() if option != "seeds"}
    seeds = convert(given["seeds"], _Seeds, f"{where}: seeds")
    _each_once(seeds, f"{where}: seeds")
    return seeds, _lists(values, where)


def _of_each(tried: Mapping[str, Sequence[Any]], variants: Sequence[Variant]) -> dict[str, Any]:
    """Return by variant the options to tune that its mode has; all of them where none of the modes does."""
    known = {v.name: option_fields(type(v.cfg)) for v in variants}
    of_none = {option for option in tried if not any(option in own for own in known.values())}
    values = {
        name: {option: tried[option] for option in tried if option in own or option in of_none}
        for name, own in known.items()
    }
    return {name: own for name, own in values.items() if own}


def _around(variants: Sequence[Variant], fixed: Collection[str]) -> dict[str, Any]:
    """Return by variant what `tune: auto` tries: step sizes around its own, and the values that its strategy
    has in TUNE for options that the file does not set.

    fixed: options that are not tuned, because their values are compared.
    """
    values = {}
    for v in variants:
        steps = [float(f"{v.cfg.lr * times:.2g}") for times in _AUTO_STEPS]
        own = {o: list(tried) for o, tried in tuned_by(v.cfg).items() if o not in v.options}
        values[v.name] = {o: tried for o, tried in ({"lr": steps} | own).items() if o not in fixed}
    return {name: own for name, own in values.items() if own}


def _set_in_one_place(
    variants: Mapping[str, Mapping[str, Any]] | None,
    points: Mapping[str, Mapping[str, Any]] | None,
    tried: Mapping[str, Any],
    where: str,
) -> None:
    places: dict[str, str] = {}
    for place, given in (("variants:", variants), ("grid:", points), ("tune:", {"": tried})):
        for option in dict.fromkeys(itertools.chain.from_iterable((given or {}).values())):
            if other := places.get(option):
                raise UsageError(f"{where}: {option} is set under {other} and {place}; keep one of them")
            places[option] = place


def _known_option(option: str, workloads: Collection[str], where: str) -> None:
    """Raise UsageError for an option that no mode and none of the workloads has: the setting is wrong, not
    the file.
    """
    known = {"scenario"}.union(*(option_fields(load_strategy(mode).Config) for mode in modes()))
    for workload in workloads:
        try:
            known |= option_fields(options_of(workload) or DataConfig).keys()
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
    if option not in known and option not in old_options(known):
        hint = did_you_mean(option, known, "`main.py --mode MODE --help` lists them")
        raise UsageError(f"{where}: there is no option {option}; {hint}")


def _setting(setting: str) -> tuple[str, Any]:
    key, sign, text = setting.partition("=")
    if not (key and sign):
        raise UsageError(f"--set {setting}: is written --set option=value, like --set steps=1000")
    try:
        value = load_yaml(text)
    except YamlError:
        value = text
    return renamed(key.removeprefix("--").replace("-", "_")), value


def _asked(file: _File, variants: Sequence[Variant], tuned: Sequence[str], where: str) -> Asked:
    """Return what the file asks of its report; raises UsageError for what these variants cannot answer."""
    per = [file.per] if isinstance(file.per, str) else file.per
    measures = [file.measure] if isinstance(file.measure, str) else file.measure
    compare, baseline = (x if x is None else option_text(x) for x in (file.compare, file.baseline))
    factors = [o if o is None or o in PARTS else today(o.replace("-", "_")) for o in (compare, *per)]
    if per and not compare:
        raise UsageError(f"{where}: per: needs compare: and what is compared for each {listed(per)}")
    try:
        asked = Asked(
            compare=factors[0],
            per=tuple(filter(None, factors[1:])),
            baseline=baseline,
            measures=tuple(dict.fromkeys(required(name, file.target_loss, tuned) for name in measures)),
        )
        if len(asked.measures) > 1 and (best := [n for n in asked.measures if n.startswith(BEST)]):
            raise ValueError(f"measure: {best[0]}: must be the only measure; leave out the others")
        needing = {*OF_TARGET, "last-loss", "eval_loss", "eval_accuracy", "eval_bits_per_byte"}
        losses = [name for name in asked.measures if name in needing]
        if losses and (bare := [v.name for v in variants if v.cfg.data.dataset == "none"]):
            raise ValueError(f"measure: {losses[0]}: variant {bare[0]} has workload none, and so no loss")
        members = [Member(name=v.name, config=options(v.cfg), parts=v.parts) for v in variants]
        if asked.compare:
            arrange(asked, members, [*NOT_COMPARED, *tuned])
        elif baseline is not None and not any(baseline in (v.name, *v.parts.values()) for v in variants):
            names = ", ".join(v.name for v in variants)
            raise ValueError(f"baseline: {baseline}: must be a variant: {names}")
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    return asked


def _expand(
    base: Mapping[str, Any],
    variants: Mapping[str, Mapping[str, Any]] | None,
    points: Mapping[str, Mapping[str, Any]] | None,
    where: str,
) -> list[Variant]:
    """Return each variant with each point of the grid; raises UsageError for names or runs that are equal."""
    expanded = [
        _variant(" ".join(filter(None, (name, point))), base, {**own, **more}, where, (name, point))
        for name, own in (variants or {"": {}}).items()
        for point, more in (points or {"": {}}).items()
    ]
    _distinct(expanded, where)
    return expanded


def with_each(
    variant: Variant, values: Mapping[str, Sequence[Any]], base: Mapping[str, Any], where: str
) -> list[Variant]:
    """Return what a variant becomes with every combination of some options' values added."""
    parts, found = tuple(variant.parts.get(part, "") for part in PARTS), []
    for point in _product(values):
        name = " ".join([variant.name, *itertools.starmap(described, point.items())])
        found.append(_variant(name, base, {**variant.own, **point}, where, parts))
    return found


def _variant(
    name: str, base: Mapping[str, Any], own: Mapping[str, Any], where: str, parts: Sequence[str]
) -> Variant:
    left_out = [option for option, value in own.items() if value is None and option in base]
    merged = {option: value for option, value in {**base, **own}.items() if option not in left_out}
    where = f"{where}: variant {name}"
    if not re.match(r"\w", name) or len(name) > _LONGEST_NAME:
        raise UsageError(
            f"{where}: a name begins with a letter or digit and has at most {_LONGEST_NAME} characters; "
            "rename it"
        )
    for option, remedy in NOT_HERE.items():
        if option in merged:
            raise UsageError(f"{where}: {option} is not set in an experiment: {remedy}")
    try:
        cfg = configure(merged, where)
    except UsageError as error:
        rule = str(error).removeprefix(f"{where}: ")
        found = re.search(r"leave out --([\w-]+)", rule) or re.match(r"-*([\w-]+).*leave it out", rule)
        named = found[1].replace("-", "_") if found else None
        here = f"; {named}: null leaves it out of this variant" if named in base and named not in own else ""
        raise UsageError(f"{where}: {rule}{here}") from None
    if cfg.engine == "both":
        raise UsageError(
            f"{where}: --engine both is for a single run; give variants with engine: ray and sim"
        )
    named = {part: name for part, name in zip(PARTS, parts, strict=True) if name}
    return Variant(name=name, options=merged, own=own, parts=named, cfg=cfg)


def _distinct(variants: Iterable[Variant], where: str) -> None:
    folders: dict[str, str] = {}
    configurations: dict[str, str] = {}
    for variant in variants:
        folder = variant.folder.casefold()  # some file systems ignore case
        if other := folders.get(folder):
            raise UsageError(
                f"{where}: variants {other} and {variant.name} would share the folder {variant.folder}; "
                "rename one of them"
            )
        folders[folder] = variant.name
        same = repr(options(variant.cfg))
        if other := configurations.get(same):
            raise UsageError(
                f"{where}: variants {other} and {variant.name} are the same run; drop one of them"
            )
        configurations[same] = variant.name
