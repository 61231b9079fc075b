"""Loads a strategy from a user's file, without leaving compiled files next to it."""

from __future__ import annotations

import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from dsgd.config import TrainConfig


class StrategyFileError(ValueError):
    """A file is not a strategy; the message is one line and names the line of the file, not its path."""


def from_file(path: Path) -> ModuleType:
    """Return the strategy in a file, a `dsgd.strategies.Strategy`. It is read again when it has changed.

    Raises StrategyFileError for a file that cannot be read or imported, or has no Config or train.
    """
    try:
        path = path.resolve()
        return _loaded(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise StrategyFileError(f"cannot be read ({error.strerror})") from None


@lru_cache(maxsize=64)
def _loaded(path: Path, changed_ns: int) -> ModuleType:
    module = ModuleType(f"strategy file {path}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses and cloudpickle look it up
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except SyntaxError as error:
        raise StrategyFileError(f"line {error.lineno}: syntax error ({error.msg})") from None
    except OSError as error:
        if str(error.filename) == str(path):
            raise
        raise StrategyFileError(f"cannot be imported: {located(error, path)}") from None
    except (Exception, SystemExit) as error:
        raise StrategyFileError(f"cannot be imported: {located(error, path)}") from None
    config_type, train = getattr(module, "Config", None), getattr(module, "train", None)
    if not (isinstance(config_type, type) and issubclass(config_type, TrainConfig) and callable(train)):
        raise StrategyFileError("needs a Config and a function train(cluster, w, cfg), like train_asgd.py")
    return module


def located(error: BaseException, path: Path) -> str:
    """Return an error of a strategy's code in one line, with the line of its file that it came from."""
    file = str(path.resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    text = " ".join(str(error).split())
    line = f"line {lines[-1]}: " if lines else ""
    return f"{line}{type(error).__name__}{': ' if text else ''}{text}"
