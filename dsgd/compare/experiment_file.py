"""An experiment's file: read, checked like the command line, and expanded into runs.

Nothing is run or written here, and neither torch nor ray is imported.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from dsgd.config import (
    WITHOUT_WORKLOAD,
    DataConfig,
    LiveConfig,
    LogConfig,
    TrainConfig,
    option_fields,
    options,
)
from dsgd.models.workloads import options_of
from dsgd.process.bounded_yaml import YamlError, load_yaml, read_yaml
from dsgd.show.report.frames import FIGURES, NOT_COMPARED
from dsgd.show.report.layout import PARTS, Asked, Member, arrange
from dsgd.show.report.measures import BEST, OF_TARGET, required
from dsgd.show.report.premises import Premise, premises
from dsgd.show.report.written_numbers import listed, option_text
from dsgd.show.terminal.cli import UsageError, configure
from dsgd.strategies import load as load_strategy
from dsgd.strategies import modes, tuned_by

_WITHOUT_WORKLOAD = {
    option
    for option, hint in get_type_hints(DataConfig, include_extras=True).items()
    if WITHOUT_WORKLOAD in getattr(hint, "__metadata__", ())
}

KEYS = (
    "title", "question", "base", "variants", "grid", "tune", "seeds", "target_loss", "compare", "per",
    "baseline", "measure", "premise", "show",
)  # fmt: skip

AUTO = "auto"
"""In place of the options under tune: those that the file does not set, of each variant's mode."""
_AUTO_STEPS = (1 / 9, 1 / 3, 1, 3, 9, 27)  # of the step size that a variant has
_AUTO_SEEDS = (10_000, 10_001)  # no count of seeds reaches them
_LONGEST_NAME = 80
_MOST_SEEDS = 10_000  # planned in some 5 s a variant
_ASKED = {
    "compare": "local_steps", "per": "partition", "baseline": "ssgd", "measure": "time-to-loss"
}  # fmt: skip
NOT_HERE = {
    "seed": "the runs' seeds are listed under seeds:",
    "out": "give --out DIR on the command line",
    "upload_every": "give --upload-every SECONDS on the command line",
    "run_name": "each run is named after its variant and seed",
    "quiet": "the experiment shows its runs itself",
    **dict.fromkeys(option_fields(LiveConfig), "give --dashboard PORT on the command line to watch the runs"),
    **dict.fromkeys(option_fields(LogConfig), "give it on the command line"),
}
"""Options of single runs that an experiment does not leave to its file, and what is there instead."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a variant: its configuration says where its record goes."""

    variant: str
    cfg: TrainConfig

    @property
    def name(self) -> str:
        return str(self.cfg.output.run_name)

    @property
    def path(self) -> Path:
        return Path(self.cfg.output.out) / self.name


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is compared: a name, and the options that make it."""

    name: str
    options: Mapping[str, Any]
    """As the file has them: the base's, the variant's and the grid point's."""
    own: Mapping[str, Any]
    """Those of them that are not the base's."""
    parts: Mapping[str, str]
    """The names that it has under variants: and grid:."""
    cfg: TrainConfig

    @property
    def folder(self) -> str:
        """The name of its records' folders, without the seed."""
        return re.sub(r"[^\w.=+-]", "-", self.name.replace(" ", "+"))

    def run(self, seed: int, out: Path) -> PlannedRun:
        """Return the variant's run with this seed, whose record goes into the folder `out`."""
        output = replace(self.cfg.output, out=str(out), run_name=f"{self.folder}-s{seed}", quiet=True)
        return PlannedRun(variant=self.name, cfg=replace(self.cfg, seed=seed, output=output))


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What is tried for each variant before it is compared, on separate seeds."""

    values: Mapping[str, Mapping[str, Sequence[Any]]]
    """By the variant's name: the values tried, by option; every combination is."""
    tried: Mapping[str, Sequence[Variant]]
    """By the variant's name: what it becomes with each combination."""
    seeds: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment, expanded: every variant is known to be valid."""

    name: str
    title: str
    question: str
    base: Mapping[str, Any]
    variants: Sequence[Variant]
    seeds: Sequence[int]
    tuning: Tuning | None
    target_loss: float | None
    asked: Asked
    premises: Sequence[Premise]
    """What its question takes for granted."""
    show: Sequence[str] | None
    folder: Path

    def runs(self) -> list[PlannedRun]:
        """Return the runs, all variants with the first seed first: cut short, it is still a comparison."""
        return [v.run(seed, self.folder) for seed in self.seeds for v in self.variants]

    def tuning_runs(self) -> list[PlannedRun]:
        """Return the runs that choose the tuned options; their records go into the folder `tuning`."""
        if not self.tuning:
            return []
        tried = [v for variants in self.tuning.tried.values() for v in variants]
        return [v.run(seed, self.folder / "tuning") for seed in self.tuning.seeds for v in tried]

    def tuned(self, chosen: Mapping[str, Variant]) -> Experiment:
        """Return the experiment with each variant as `chosen` for its name from those tried."""
        return replace(self, variants=[replace(chosen.get(v.name, v), name=v.name) for v in self.variants])


def load(path: str | Path, settings: Sequence[str] = (), out: str | Path = "runs") -> Experiment:
    """Read an experiment's file; its records go into a folder of the file's name in `out`.

    settings: `option=value` texts, which replace what the file's base says (`seeds=N`: its seeds;
    `target_loss=X`: its target, where it has one).
    Raises UsageError in one line for anything wrong with any of its runs that the options show.
    """
    where = f"--experiment {path}"
    return read(_read(Path(path), where), Path(path).stem, where, settings, out)


def read(
    content: dict[str, Any], name: str, where: str, settings: Sequence[str], out: str | Path
) -> Experiment:
    """Return the experiment that a file's content asks for; its records go into the folder `name` in `out`.

    where: how messages begin. Raises UsageError as `load` does.
    """
    _known_keys(content, KEYS, where)
    for key in ("title", "question"):
        if not isinstance(content.get(key), str) or not content[key].strip():
            raise UsageError(f"{where}: needs a {key}: in words")
    base = _options(content.get("base"), f"{where}: base:")
    variants = _named(content.get("variants"), f"{where}: variants:")
    points = _points(content.get("grid"), f"{where}: grid:")
    if variants is None and points is None:
        raise UsageError(f"{where}: compares nothing; give variants: or grid:")
    tune = content.get("tune")
    tuned_seeds, tried = _tune(tune, f"{where}: tune:") if tune not in (None, AUTO) else ((), {})
    _set_in_one_place(variants, points, tried, where)
    for setting in settings:
        key, value = _setting(setting)
        if key == "seeds" or (key == "target_loss" and "target_loss" in content):
            content[key] = value
            continue
        for place, named in (("variants:", variants), ("grid:", points), ("tune:", {"": tried})):
            if any(key in given for given in (named or {}).values()):
                raise UsageError(f"--set {setting}: {where} sets {key} under {place}; change it there")
        settings_of = (base, *(variants or {}).values(), *(points or {}).values())
        _known_option(key, {str(s["workload"]) for s in settings_of if s.get("workload")}, f"--set {setting}")
        base[key] = value
        if key == "workload" and value is not None:  # it replaces what the file learns
            base = {option: given for option, given in base.items() if option not in _WITHOUT_WORKLOAD}
    seeds = _seeds(content.get("seeds"), f"{where}: seeds:")
    if tune == AUTO:
        tuned_seeds = _AUTO_SEEDS
    if common := set(seeds) & set(tuned_seeds):
        raise UsageError(
            f"{where}: tune: seeds: {min(common)} is a seed of the experiment too, which would count the "
            "choice twice; choose others"
        )
    expanded = _expand(base, variants, points, where)
    target_loss = _target_loss(content.get("target_loss"), f"{where}: target_loss:")
    of_grid = set(itertools.chain.from_iterable((points or {}).values()))
    values = _around(expanded, of_grid) if tune == AUTO else _of_each(tried, expanded)
    return Experiment(
        name=name,
        title=content["title"].strip(),
        question=" ".join(content["question"].split()),
        base=base,
        variants=expanded,
        seeds=seeds,
        tuning=Tuning(
            values=values,
            tried={
                v.name: [_with(v, point, base, where) for point in _product(values[v.name])]
                for v in expanded
                if v.name in values
            },
            seeds=tuned_seeds,
        )
        if values
        else None,
        target_loss=target_loss,
        asked=_asked(
            content, expanded, list(dict.fromkeys(itertools.chain(*values.values()))), target_loss, where
        ),
        premises=_premises(content.get("premise"), expanded, f"{where}: premise:"),
        show=_show(content.get("show"), f"{where}: show:"),
        folder=Path(out) / name,
    )


def described(option: str, value: Any) -> str:
    """Return an option and its value as the names of variants have it."""
    return f"{option}={_text(value)}"


def _text(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        content = read_yaml(path, "give an experiment's file, like experiments/compare-modes.yaml")
    except YamlError as error:
        raise UsageError(f"{where}: {error}") from None
    return _mapping(content, f"{where}:")


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a mapping of names to values")
    return {str(key): entry for key, entry in value.items()}


def _options(value: Any, where: str) -> dict[str, Any]:
    """Return a mapping of options, spelled with underscores."""
    return {
        key.replace("-", "_"): entry for key, entry in _mapping({} if value is None else value, where).items()
    }


def _known_keys(content: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
            raise UsageError(f"{where}: there is no key {key}; {hint}")


def _named(value: Any, where: str) -> dict[str, dict[str, Any]] | None:
    if value is None:
        return None
    named = _mapping(value, where)
    if not named:
        raise UsageError(f"{where} is empty; name at least one")
    return {name: _options(entry, f"{where} {name}:") for name, entry in named.items()}


def _points(value: Any, where: str) -> dict[str, dict[str, Any]] | None:
    """Return the points of a grid by name: all combinations of lists, or those that the file names."""
    if value is None:
        return None
    grid = _mapping(value, where)
    if grid and all(isinstance(entry, dict) for entry in grid.values()):
        return _named(grid, where)
    return {
        " ".join(itertools.starmap(described, point.items())): point
        for point in _product(_lists(_options(grid, where), where))
    }


def _lists(grid: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    if not grid:
        raise UsageError(f"{where} is empty; give options and lists of values, like slack: [0, 4]")
    for option, values in grid.items():
        if not isinstance(values, list):
            raise UsageError(f"{where} {option}: must be a list of values, like [1, 2]")
        if not values:
            raise UsageError(f"{where} {option}: is an empty list; give it a value or leave it out")
        texts = [_text(value) for value in values]
        if twice := [text for text in texts if texts.count(text) > 1]:
            raise UsageError(f"{where} {option}: has {twice[0]} twice; give each value once")
    return dict(grid)


def _product(lists: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def _tune(value: Any, where: str) -> tuple[tuple[int, ...], dict[str, list[Any]]]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be auto, or options with lists of values, like lr: [0.1, 0.2]")
    grid = _options(value, where)
    if not isinstance(grid.get("seeds"), list):
        raise UsageError(f"{where} needs its own seeds:, a list, like [100, 101]")
    seeds = _seeds(grid.pop("seeds"), f"{where} seeds:")
    return seeds, _lists(grid, where)


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
    known = {name for mode in modes() for name in option_fields(load_strategy(mode).Config)}
    for workload in workloads:
        try:
            known |= option_fields(options_of(workload) or DataConfig).keys()
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from None
    if option not in known:
        near = difflib.get_close_matches(option, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "`main.py --mode MODE --help` lists them"
        raise UsageError(f"{where}: there is no option {option}; {hint}")


def _setting(setting: str) -> tuple[str, Any]:
    key, sign, text = setting.partition("=")
    if not (key and sign):
        raise UsageError(f"--set {setting}: is written --set option=value, like --set steps=1000")
    try:
        value = load_yaml(text)
    except YamlError:
        value = text
    return key.removeprefix("--").replace("-", "_"), value


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    whole = isinstance(value, int) and not isinstance(value, bool)
    seeds = list(range(min(value, _MOST_SEEDS + 1))) if whole else value
    if isinstance(seeds, list) and len(seeds) > _MOST_SEEDS:
        raise UsageError(f"{where} must be at most {_MOST_SEEDS:,}; give fewer")
    if (
        not isinstance(seeds, list)
        or not seeds
        or not all(isinstance(s, int) and not isinstance(s, bool) and 0 <= s < 2**63 for s in seeds)
    ):
        given = "there is none" if value is None else f"it is {value}"
        raise UsageError(
            f"{where} must be a count (5 means 0 to 4) or a list of whole numbers like [0, 1]; {given}"
        )
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"{where} has a seed twice; give each once")
    return tuple(seeds)


def _target_loss(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{where} must be a number, like 0.3; it is {value}")
    return float(value)


def _asked(
    content: Mapping[str, Any],
    variants: Sequence[Variant],
    tuned: Sequence[str],
    target_loss: float | None,
    where: str,
) -> Asked:
    """Return what the file asks of its report; raises UsageError for what these variants cannot answer."""
    texts: dict[str, str | None] = {}
    for key in ("compare", "baseline"):
        value = content.get(key)
        if isinstance(value, list | dict | bool):
            raise UsageError(f"{where}: {key}: must be one name, like {key}: {_ASKED[key]}")
        texts[key] = None if value is None else option_text(value)
    lists: dict[str, list[str]] = {}
    for key, what in (("per", "an option or a list of options"), ("measure", "a measure or a list of them")):
        given = content.get(key) or []
        lists[key] = given if isinstance(given, list) else [given]
        if not all(isinstance(name, str) for name in lists[key]):
            raise UsageError(f"{where}: {key}: must be {what}, like {key}: {_ASKED[key]}")
    per, compare, baseline = lists["per"], texts["compare"], texts["baseline"]
    factors = [
        option if option is None or option in PARTS else option.replace("-", "_")
        for option in (compare, *per)
    ]
    if per and not compare:
        raise UsageError(f"{where}: per: needs compare: and what is compared for each {listed(per)}")
    try:
        asked = Asked(
            compare=factors[0],
            per=tuple(filter(None, factors[1:])),
            baseline=baseline,
            measures=tuple(dict.fromkeys(required(name, target_loss, tuned) for name in lists["measure"])),
        )
        if len(asked.measures) > 1 and (best := [n for n in asked.measures if n.startswith(BEST)]):
            raise ValueError(f"measure: {best[0]}: is asked alone; leave out the other measures")
        needing = {*OF_TARGET, "last-loss", "eval_loss", "eval_accuracy", "eval_bits_per_byte"}
        losses = [name for name in asked.measures if name in needing]
        if losses and (bare := [v.name for v in variants if v.cfg.data.dataset == "none"]):
            raise ValueError(f"measure: {losses[0]}: variant {bare[0]} has dataset none, and so no loss")
        members = [Member(name=v.name, config=options(v.cfg), parts=v.parts) for v in variants]
        if asked.compare:
            arrange(asked, members, [*NOT_COMPARED, *tuned])
        elif baseline is not None and not any(baseline in (v.name, *v.parts.values()) for v in variants):
            names = ", ".join(v.name for v in variants)
            raise ValueError(f"baseline: {baseline}: must be a variant: {names}")
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    return asked


def _premises(value: Any, variants: Sequence[Variant], where: str) -> tuple[Premise, ...]:
    names = dict.fromkeys(name for v in variants for name in (v.name, *v.parts.values()) if name)
    try:
        return premises(value, names)
    except ValueError as error:
        raise UsageError(f"{where} {error}") from None


def _show(value: Any, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or len({str(figure) for figure in value}) < len(value):
        raise UsageError(f"{where} must be a list of figures, each once: {', '.join(FIGURES)}")
    for figure in map(str, value):
        if figure not in FIGURES:
            near = difflib.get_close_matches(figure, FIGURES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(FIGURES)}"
            raise UsageError(f"{where} there is no figure {figure}; {hint}")
    return tuple(map(str, value))


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


def _with(variant: Variant, point: Mapping[str, Any], base: Mapping[str, Any], where: str) -> Variant:
    """Return a variant with the options of a point added."""
    name = " ".join([variant.name, *itertools.starmap(described, point.items())])
    parts = tuple(variant.parts.get(part, "") for part in PARTS)
    return _variant(name, base, {**variant.own, **point}, where, parts)


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
