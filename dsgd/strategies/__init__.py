"""The other strategies, and how all are found: each `train_<mode>.py` is a value of `--mode`.

The first four are links to the files at the top of the repository, its public face. `--mode FILE` runs a
file from any other folder; its mode is known only to the runs that name the file.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, make_dataclass, replace
from functools import cache
from inspect import get_annotations
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

from dsgd.config import AsynchronousConfig, DataConfig, TrainConfig
from dsgd.core.old_options import OF_ALL
from dsgd.core.option_rules import Option, from_options, members, option_fields
from dsgd.core.option_rules import options as flat
from dsgd.core.traits import Traits
from dsgd.models.workloads import names as workloads
from dsgd.models.workloads import options_of
from dsgd.process.user_code import UserCodeError, in_one_line, load_code

if TYPE_CHECKING:
    from dsgd.core.protocol import Cluster, Update
    from dsgd.core.weights import Weights


class Strategy(Protocol):
    """What a `train_<mode>.py` has.

    It may also have `theory(cfg)`, the closed forms that concern a run (dsgd.theory.closed_forms), `LAWS`,
    its limiting cases and exceptions (dsgd.strategies.conformance), `EXAMPLE`, options that show what it
    does, for --help, and `TUNE`, values of its options that `tune: auto` tries. Without them it runs, is
    recorded and reported nevertheless.
    """

    __doc__: str | None
    __file__: str | None
    Config: type[TrainConfig]
    """The run's options, with the strategy's own added."""

    def train(self, cluster: Cluster, w: Weights, cfg: TrainConfig) -> Iterator[Update]:
        """Train from the weights `w` and yield every new version; the caller decides when to stop."""


@cache
def _modules() -> dict[str, str]:
    """Return the strategies' modules by mode."""
    stems = sorted(path.stem for path in Path(__file__).parent.glob("train_*.py"))
    return {stem.removeprefix("train_"): f"{__name__}.{stem}" for stem in stems}


def modes() -> tuple[str, ...]:
    """Return the names of all strategies in this folder, sorted."""
    return tuple(_modules())


def load(mode: str, strategy_file: str | Path | None = None) -> Strategy:
    """Return the strategy of a mode; `strategy_file` is given where it is not in this folder.

    Raises ValueError, in one line, for a mode that has no file and a file that is not a strategy.
    """
    if strategy_file is not None:
        try:
            return cast(Strategy, from_file(Path(strategy_file)))
        except UserCodeError as error:
            raise ValueError(f"--mode {strategy_file}: {error}") from None
    if mode not in modes():
        raise ValueError(
            f"--mode {mode}: there is no such strategy; choose one of {', '.join(modes())}, or a file of "
            "yours, like my/train_mine.py"
        )
    return cast(Strategy, importlib.import_module(_modules()[mode]))


def strategy_of(cfg: TrainConfig) -> Strategy:
    """Return the strategy of a run."""
    return load(cfg.mode, cfg.strategy_file)


def mode_of(strategy_file: str | Path) -> str:
    """Return the mode of the strategy in a user's file: what its name has after train_.

    Raises ValueError for another name, and for the name of a mode in this folder.
    """
    name = re.fullmatch(r"train_(\w+)\.py", Path(strategy_file).name)
    if not name:
        raise ValueError(
            f"--mode {strategy_file}: the file's name makes the mode; call it train_<mode>.py with "
            "letters, digits and _, like train_mine.py"
        )
    mode = name[1]
    if mode in modes():
        raise ValueError(
            f"--mode {strategy_file}: there is a mode {mode} already; rename the file, like train_my{mode}.py"
        )
    return mode


def from_file(path: Path) -> ModuleType:
    """Return the strategy in a file, a `dsgd.strategies.Strategy`.

    Raises UserCodeError for a file that cannot be read or imported, or has no Config or train.
    """
    module = load_code(path, "strategy")
    config_type, train = getattr(module, "Config", None), getattr(module, "train", None)
    if not (isinstance(config_type, type) and issubclass(config_type, TrainConfig) and callable(train)):
        raise UserCodeError("needs a Config and a function train(cluster, w, cfg), like train_asgd.py")
    with in_one_line(path, "its Config cannot be used: "):
        members(config_type)
        _know_former_traits(config_type)
    if not isinstance(config_type.traits, property | Traits):
        raise UserCodeError('the traits of its Config must be a value like Traits(sends="gradients")')
    if old := sorted(OF_ALL & option_fields(config_type).keys()):
        raise UserCodeError(f"its Config has an option {old[0]}, as all runs once had; give it another name")
    return module


def _know_former_traits(config_type: Any) -> None:
    """Have a Config that says its traits one by one, as all once did, say them in `traits` too."""
    names = "sends", "waits_for_all", "has_server", "directed", "returns_weights"
    said = [name for name in names if hasattr(config_type, name)]
    if not said or hasattr(config_type, "own_traits"):
        return
    config_type.own_traits = config_type.traits

    def traits(cfg: Any) -> Traits:
        given = {name: getattr(cfg, name) for name in said}
        if given.get("sends") == "weights":
            given["sends"] = "steps"
        if given.pop("returns_weights", False) and "sends" not in given:
            given["sends"] = "weights"
        own: Traits = cfg.own_traits
        return replace(own, **given)

    config_type.traits = property(traits)


def config_of(mode: str, strategy_file: str | None = None, workload: str | None = None) -> type[TrainConfig]:
    """Return the class of a run's options: those of its strategy and, among the data's, of its workload.

    Raises ValueError, in one line, for a strategy or a workload that cannot be used.
    """
    config_type = load(mode, strategy_file).Config
    own = None if workload is None else options_of(workload)
    if own is None:
        return config_type
    known = option_fields(config_type).keys() - option_fields(DataConfig).keys()
    if taken := sorted((known | OF_ALL) & option_fields(own).keys()):
        raise ValueError(
            f"--workload {workload}: its Config has an option {taken[0]}, as every run of --mode {mode}; "
            "give it another name"
        )
    return _with_data(*cast("tuple[Any, Any]", (config_type, own)))  # mypy takes classes for unhashable here


@cache
def _with_data(config_type: type[TrainConfig], data: type) -> type[TrainConfig]:
    # Made here, so pickle does not find it by its name: it is made again from the options.
    again = {"__reduce__": lambda self: (configured, (flat(self),))}
    group = [("data", data, field(default_factory=data))]
    name = config_type.__name__
    return make_dataclass(name, group, bases=(config_type,), namespace=again, frozen=True, kw_only=True)


def configured(options: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration that has these options, named flat as in config.yaml, `mode` among them.

    Raises ValueError for an option that its strategy and its workload do not have, and for a bad value.
    """
    mode = str(options["mode"])
    config_type = config_of(mode, options.get("strategy_file"), options.get("workload"))
    if unknown := sorted(options.keys() - option_fields(config_type).keys()):
        raise ValueError(f"{unknown[0]}: there is no such option in --mode {mode}")
    return from_options(config_type, options)


def recorded(config: Mapping[str, Any]) -> TrainConfig | None:
    """Return a recorded run's configuration, without the options that its workload's file adds; None if its
    strategy is not in this folder. Raises ValueError for a bad value.

    No code that the record names runs, and no pipe is read: it may come from anywhere.
    """
    if config.get("mode") not in modes() or config.get("strategy_file") is not None:
        return None
    traces = [text.partition(":")[2] for text in config.values() if str(text).startswith("trace:")]
    if not all(Path(trace).is_file() for trace in traces):
        return None
    found = known_type(config)
    return from_options(found, {name: config[name] for name in option_fields(found) if name in config})


def defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a recorded run's options, without those of files that are not in this project.

    No code that the record names runs.
    """
    return {name: option.default for name, option in option_fields(known_type(config)).items()}


def own_options(config_type: type[TrainConfig]) -> dict[str, Option]:
    """Return a strategy's options that not all strategies have, its own first."""
    special = config_type.__mro__[: config_type.__mro__.index(TrainConfig)]
    names = [name for kind in special for name in get_annotations(kind) if name != "mode"]
    return {name: one for name in names if isinstance(one := members(config_type).get(name), Option)}


def left_at_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step size and the numbers that set a recorded run's strategy apart, where each has its
    default. No code that the record names runs.
    """
    of_servers = option_fields(AsynchronousConfig)
    found = known_type(config)
    own = [name for name, o in own_options(found).items() if o.kind in ("int", "float")]
    named = ["lr", *(name for name in own if name not in of_servers)]
    return {
        name: config[name] for name in named if config.get(name, ()) == option_fields(found)[name].default
    }


def tuned_by(cfg: TrainConfig) -> dict[str, Sequence[Any]]:
    """Return the values of a strategy's own options that `tune: auto` tries; none of them changes the times
    of a run.
    """
    return getattr(strategy_of(cfg), "TUNE", {})


def known_type(config: Mapping[str, Any]) -> type[TrainConfig]:
    """Return the class of a recorded run's options, without those of files that are not in this project."""
    mode, workload = config.get("mode"), config.get("workload")
    known = workload if workload in workloads() else None
    return config_of(str(mode), workload=known) if mode in modes() else TrainConfig
