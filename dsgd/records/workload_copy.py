"""The file of a run's workload, kept in its record: what is trained is code, and code changes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgd.records.reader import read_meta
from dsgd.workloads import file_of

COPY = "workload.py"


def content_of(workload: str) -> bytes:
    """Return the file of a workload."""
    return file_of(workload).read_bytes()


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file, in hex."""
    return hashlib.sha256(content).hexdigest()


def changed_since(path: Path, config: Mapping[str, Any]) -> str | None:
    """Return, in words, that the workload of a record is not what it was; None if it is.

    config: the record's. Raises RecordError if its meta.json cannot be read.
    """
    workload = config.get("workload")
    if workload is None:
        return None
    recorded = read_meta(path).workload_sha256
    try:
        same = digest(content_of(str(workload))) == recorded
    except (OSError, ValueError):
        return f"its workload {workload} is not there any more; put {path / COPY} in its place"
    return None if same else f"its workload {workload} has changed since; put {path / COPY} in its place"
