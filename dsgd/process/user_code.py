"""Loads a file that a user wrote, without leaving compiled files next to it."""

from __future__ import annotations

import sys
import traceback
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from dsgd.process.former_names import know_former_names


class UserCodeError(ValueError):
    """A user's file cannot be used; the message is one line and names the line of the file, not its path."""


def load_code(path: Path, kind: str) -> ModuleType:
    """Return a file as a module, named after its kind and path. It is read again when it has changed.

    Raises UserCodeError for a file that cannot be read or imported.
    """
    try:
        path = path.resolve()
        return _loaded(path, kind, path.stat().st_mtime_ns)
    except OSError as error:
        raise UserCodeError(f"cannot be read ({error.strerror})") from None


@lru_cache(maxsize=64)
def _loaded(path: Path, kind: str, changed_ns: int) -> ModuleType:
    module = ModuleType(f"{kind} file {path}")
    know_former_names()
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses and cloudpickle look it up
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except SyntaxError as error:
        raise UserCodeError(f"line {error.lineno}: syntax error ({error.msg}); correct it") from None
    except OSError as error:
        if str(error.filename) == str(path):
            raise
        raise UserCodeError(f"cannot be imported: {located(error, path)}") from None
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"cannot be imported: {located(error, path)}") from None
    return module


def located(error: BaseException, path: Path) -> str:
    """Return an error of a user's code in one line, with the line of its file that it came from."""
    file = str(path.resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    text = " ".join(str(error).split())
    line = f"line {lines[-1]}: " if lines else ""
    return f"{line}{type(error).__name__}{': ' if text else ''}{text}"
