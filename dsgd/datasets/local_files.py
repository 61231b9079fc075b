"""Where a path of data leads: a file or folder of this machine that can be read."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """Data that cannot be used; the message is one line and begins with their path or name."""


def local(path: str) -> Path:
    """Return a path of data as one of this machine; raise DataError if nothing is there, or an empty file."""
    found = Path(path).expanduser().absolute()
    if not found.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if found.is_file() and not found.stat().st_size:
        raise DataError(f"{path}: the file is empty")
    return found
