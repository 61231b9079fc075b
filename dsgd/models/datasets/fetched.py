"""Data in S3: a machine fetches what it lacks into $XDG_CACHE_HOME/dsgd, by default ~/.cache/dsgd.

A file is fetched again if its size in the bucket differs, or it was written there since.
"""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dsgd.process.s3_access import bucket_and_prefix, explained, s3_client

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import ObjectTypeDef


def cache_folder(name: str) -> Path:
    """Return the folder of this user in which what can be made again is kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsgd" / name
    folder.mkdir(parents=True, exist_ok=True)
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
    with (folder / ".lock").open("w") as lock, explained(url):
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process of this machine fetches, the others wait
        client = s3_client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
        found = [
            entry for page in pages for entry in page.get("Contents", []) if _is_asked(entry["Key"], key)
        ]
        if not found:
            raise ValueError(f"{url}: there is no such object, and none under it")
        for entry in found:
            path = folder / entry["Key"]
            if not _is_here(path, entry):
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, entry["Key"], str(path))
    return folder / key


def _is_asked(found: str, key: str) -> bool:
    """Whether an object is the one that was asked for, or lies directly under it."""
    folder, _, name = found.rpartition("/")
    return found == key or (folder == key and name not in ("", ".", ".."))


def _is_here(path: Path, entry: ObjectTypeDef) -> bool:
    if not path.is_file():
        return False
    here = path.stat()
    return here.st_size == entry["Size"] and here.st_mtime >= entry["LastModified"].timestamp()
