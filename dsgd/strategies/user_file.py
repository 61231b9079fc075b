"""Loads a strategy from a user's file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from dsgd.config import TrainConfig
from dsgd.process.user_code import UserCodeError, load_code


def from_file(path: Path) -> ModuleType:
    """Return the strategy in a file, a `dsgd.strategies.Strategy`.

    Raises UserCodeError for a file that cannot be read or imported, or has no Config or train.
    """
    module = load_code(path, "strategy")
    config_type, train = getattr(module, "Config", None), getattr(module, "train", None)
    if not (isinstance(config_type, type) and issubclass(config_type, TrainConfig) and callable(train)):
        raise UserCodeError("needs a Config and a function train(cluster, w, cfg), like train_asgd.py")
    return module
