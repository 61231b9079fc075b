"""Finds the strategies: each file `train_<mode>.py` in this folder is a value of `--mode`.

The first four are links to the files at the top of the repository, its public face. `--strategy-file` runs a
file from any other folder; its mode is known only to the runs that name the file.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from dsgd.cluster import Cluster, Update
    from dsgd.config import TrainConfig
    from dsgd.work.weights import Weights


class Strategy(Protocol):
    """What a `train_<mode>.py` has.

    It may also have `theory(cfg)`, the closed forms that concern a run (dsgd.theory.closed_forms), `LAWS`,
    its limiting cases and exceptions (dsgd.strategies.conformance), and `EXAMPLE`, options that show what it
    does, for --help. Without them it runs, is recorded and reported nevertheless.
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
        from dsgd.options.user_code import UserCodeError
        from dsgd.strategies.user_file import from_file

        try:
            return cast(Strategy, from_file(Path(strategy_file)))
        except UserCodeError as error:
            raise ValueError(f"--strategy-file {strategy_file}: {error}") from None
    if mode not in modes():
        raise ValueError(
            f"--mode {mode}: there is no such strategy; choose one of {', '.join(modes())}, or give your own "
            "with --strategy-file"
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
            f"--strategy-file {strategy_file}: the file's name makes the mode; call it train_<mode>.py with "
            "letters, digits and _, like train_mine.py"
        )
    mode = name[1]
    if mode in modes():
        raise ValueError(
            f"--strategy-file {strategy_file}: there is a mode {mode} already; rename the file, like "
            f"train_my{mode}.py"
        )
    return mode


def configured(options: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration that has these options, named flat as in config.yaml, `mode` among them.

    Raises ValueError for an option that its strategy does not have, and for a bad value.
    """
    config_type = load(str(options["mode"]), options.get("strategy_file")).Config
    rest, groups = dict(options), dict[str, Any]()
    for group in fields(config_type):
        if isinstance(group.default_factory, type) and is_dataclass(group.default_factory):
            names = [f.name for f in fields(group.default_factory)]
            own = {name: rest.pop(name) for name in names if name in rest}
            groups[group.name] = group.default_factory(**own)
    if unknown := sorted(rest.keys() - {f.name for f in fields(config_type)}):
        raise ValueError(f"{unknown[0]}: there is no such option in --mode {options['mode']}")
    return config_type(**groups, **rest)
