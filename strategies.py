"""Finds the strategies: each file `train_<mode>.py` is one mode of `--mode`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from cluster import Cluster, Update
    from config import TrainConfig
    from optim import Weights


class Strategy(Protocol):
    """What a `train_<mode>.py` has."""

    __doc__: str | None
    Config: type[TrainConfig]
    """The run's options, with the strategy's own added."""

    def train(self, cluster: Cluster, w: Weights, cfg: TrainConfig) -> Iterator[Update]:
        """Train from the weights `w` and yield every new version; whoever iterates decides when to stop."""


@cache
def modes() -> tuple[str, ...]:
    """Return the names of all strategies, sorted."""
    root = Path(__file__).parent
    return tuple(sorted(path.stem.removeprefix("train_") for path in root.glob("train_*.py")))


def load(mode: str) -> Strategy:
    """Return the strategy of a mode.

    Raises ValueError for a mode that has no file.
    """
    if mode not in modes():
        raise ValueError(f"--mode {mode}: there is no such strategy; choose one of {', '.join(modes())}")
    return cast(Strategy, importlib.import_module(f"train_{mode}"))
