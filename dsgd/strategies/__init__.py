"""Finds the strategies: each file `train_<mode>.py` in this folder is a mode of `--mode`.

The first four are links to the files at the top of the repository, its public face.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from dsgd.cluster import Cluster, Update
    from dsgd.config import TrainConfig
    from dsgd.work.optim import Weights


class Strategy(Protocol):
    """What a `train_<mode>.py` has."""

    __doc__: str | None
    __file__: str | None
    Config: type[TrainConfig]
    """The run's options, with the strategy's own added."""

    def train(self, cluster: Cluster, w: Weights, cfg: TrainConfig) -> Iterator[Update]:
        """Train from the weights `w` and yield every new version; whoever iterates decides when to stop."""


@cache
def _modules() -> dict[str, str]:
    """Return the strategies' modules by mode."""
    stems = sorted(path.stem for path in Path(__file__).parent.glob("train_*.py"))
    return {stem.removeprefix("train_"): f"{__name__}.{stem}" for stem in stems}


def modes() -> tuple[str, ...]:
    """Return the names of all strategies, sorted."""
    return tuple(_modules())


def load(mode: str) -> Strategy:
    """Return the strategy of a mode.

    Raises ValueError for a mode that has no file.
    """
    if mode not in modes():
        raise ValueError(f"--mode {mode}: there is no such strategy; choose one of {', '.join(modes())}")
    return cast(Strategy, importlib.import_module(_modules()[mode]))
