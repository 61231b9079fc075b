"""Where a path of data leads: to a file or folder of this machine that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dsgd.models.datasets.fetched import fetched


class DataError(ValueError):
    """Data that cannot be used; the message is one line and begins with their path or name."""


def local(path: str) -> Path:
    """Return a path of data, which may be a URL of S3, as one of this machine.

    Raises DataError if nothing is there, or an empty file.
    """
    if path.startswith("s3://"):
        try:
            found = fetched(path)
        except ValueError as error:
            raise DataError(str(error)) from None
        except OSError as error:
            reason = error.strerror or str(error).removeprefix(f"{path}: ")
            raise DataError(f"{path}: cannot be fetched ({reason})") from None
    else:
        found = Path(path).expanduser().absolute()
    if not found.exists():
        raise DataError(f"{path}: there is no such file or folder")
    if found.is_file() and not found.stat().st_size:
        raise DataError(f"{path}: the file is empty")
    return found


def inside(folder: str) -> list[str]:
    """Return the paths of the files in a folder, sorted by name; hidden ones left out."""
    found = sorted(path.name for path in local(folder).iterdir() if path.is_file())
    return [f"{folder.rstrip('/')}/{name}" for name in found if not name.startswith(".")]


@contextmanager
def reading(path: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn an error of a library that reads the file, and those of the disk, into a DataError."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except errors as error:
        raise DataError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
