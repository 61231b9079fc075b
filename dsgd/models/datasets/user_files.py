"""Files of a user: where they are, what each is for, and copies of those in S3.

A machine fetches what it lacks into $XDG_CACHE_HOME/dsgd, by default ~/.cache/dsgd; a file is fetched again
if its size in the bucket differs, or it was written there since.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

from dsgd.process.files import own_folder
from dsgd.process.locks import FolderLock
from dsgd.process.s3_access import bucket_and_prefix, explained, fetch_object, s3_client

Part = Literal["train", "validation", "test"]

_LABEL = re.compile(r"(^|[^a-z])(y|labels?|targets?|class(es)?)([^a-z]|$)", re.IGNORECASE)
_TEST = re.compile(r"(^|[^a-z])(test|t10k)", re.IGNORECASE)
_VALIDATION = re.compile(r"(^|[^a-z])val(id|idation)?([^a-z]|$)", re.IGNORECASE)


def is_label(name: str) -> bool:
    """Whether an array or column of this name holds labels.

    >>> [name for name in ("y_train", "train-labels-idx1", "image", "class", "y2k") if is_label(name)]
    ['y_train', 'train-labels-idx1', 'class', 'y2k']
    """
    return bool(_LABEL.search(name))


def part_of(name: str) -> Part:
    """Return which part of the data an array or file of this name is.

    >>> [part_of(name) for name in ("x_test", "t10k-images", "val.bin", "latest_values.npy")]
    ['test', 'test', 'validation', 'train']
    """
    if _TEST.search(name):
        return "test"
    return "validation" if _VALIDATION.search(name) else "train"


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


def cache_folder(name: str) -> Path:
    """Return the folder of this user in which what can be made again is kept: in the home, or without one
    that can be written to, where temporary files are. Raises DataError if it cannot be made.
    """
    kept = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(kept) if kept else Path.home() / ".cache") / "dsgd" / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody knows where the home is
        if kept:
            raise DataError(f"XDG_CACHE_HOME={kept}: nothing can be kept there ({error}); unset it") from None
        try:
            folder = own_folder(tempfile.gettempdir(), "set XDG_CACHE_HOME to one that is") / name
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(str(error)) from None
    return folder


@cache  # a process looks once
def fetched(url: str) -> Path:
    """Return where on this machine the object s3://BUCKET/KEY is, or the folder of those s3://BUCKET/KEY/*.

    Raises ValueError for what the user can fix, without an object of that name too; OSError if S3 or the disk
    fails.
    """
    try:
        bucket, prefix = bucket_and_prefix(url)
    except ValueError as error:
        raise ValueError(f"{url}: {error}") from None
    key = prefix.removesuffix("/")
    folder = cache_folder(f"s3/{bucket}")
    # One process of this machine fetches, the others wait.
    with explained(url), closing(FolderLock(folder, wait=True)):
        client = s3_client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        found = [
            entry for page in pages for entry in page.get("Contents", []) if _is_asked(entry["Key"], key)
        ]
        if not found:
            raise ValueError(f"{url}: there is no such object, and none under it")
        for entry in found:
            fetch_object(client, bucket, entry, folder / entry["Key"])
    return folder / key


def _is_asked(found: str, key: str) -> bool:
    """Whether an object is the one that was asked for, or lies directly under it."""
    folder, _, name = found.rpartition("/")
    return found == key or (folder == key and name not in ("", ".", ".."))
