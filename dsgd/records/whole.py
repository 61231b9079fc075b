"""Whether the files of a record are whole, and which are not, in words."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import safetensors.numpy

from dsgd.core.weights import Vector
from dsgd.models.datasets.array_files import NOT_NPY
from dsgd.process.outcomes import echoed, is_result
from dsgd.records.reader import Record, read_record
from dsgd.records.schema import RecordError
from dsgd.records.workload_copy import CARRIED, digest

_MOST_TAIL_BYTES = 1 << 20
_VERSION = re.compile(rb'\{"version":(\d+),')  # the beginning of a line of updates.jsonl


def lost(record: Record) -> list[str]:
    """Return what a record's files lack of what its summary counts, in words, each with the file's name."""
    found, summary, evals = [], record.summary, record.evals
    if (last := _cut_at(record)) is not None:
        found.append(f"updates.jsonl ends at update {last:,} of {summary.updates:,}")
    if summary.eval.loss is not None and (not evals or evals[-1].loss != summary.eval.loss):
        found.append("evals.jsonl lacks the last evaluation")
    if len(record.faults) < (faults := sum(summary.faults.values())):
        found.append(f"faults.jsonl has {len(record.faults):,} of {faults:,} faults")
    return found


def _cut_at(record: Record) -> int | None:
    """Return the last whole update of a record that should have all and does not; else None.

    Reads the end of updates.jsonl only; of lines that are longer than that, None.
    """
    if record.config.get("record", "all") != "all" or not is_result(record.summary.stopped_by):
        return None
    try:
        with (record.path / "updates.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, io.SEEK_END) - _MOST_TAIL_BYTES))
            begins_whole, tail = file.tell() == 0, file.read()
    except OSError:
        return None  # who needs it says so
    whole = tail[: tail.rfind(b"\n") + 1]
    start = whole.rfind(b"\n", 0, -1) + 1
    if start == 0 and not begins_whole:
        return None
    found = _VERSION.match(whole[start:])
    last = int(found[1]) if found else 0 if begins_whole and not whole else None
    return last if last is not None and last < record.summary.updates else None


def damage(path: Path) -> list[str]:
    """Return what is wrong with the files of a record of which a replay needs nothing; nothing of a run that
    has not ended.
    """
    if not (path / "summary.json").exists():
        ended = (path / "weights.npy").exists()
        return ["summary.json is not there, and weights.npy is"] if ended else []
    found = list[str]()
    try:
        record = read_record(path)
        found += lost(record)
        last_weights(path, record.summary.weights_sha256)
        carried_with(path)
    except RecordError as error:
        found.append(str(error).removeprefix(f"{path}/").removesuffix("; the record is damaged"))
    with suppress(FileNotFoundError), (path / "trace.json").open("rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - 3))
        found += [] if file.read().rstrip().endswith(b"]}") else ["trace.json is cut"]
    return found


def last_weights(path: Path, sha256: str | None = None, *, mapped: bool = False) -> Vector:
    """Return the last weights (D,) of a run; raises RecordError for a file that is damaged.

    sha256: of their bytes, if it is known. mapped: leave them in the file's pages, which processes share.
    """
    file = path / "weights.npy"
    try:
        if mapped:
            vector: Vector = np.lib.format.open_memmap(file, mode="c")  # what is written to stays in memory
        else:
            with file.open("rb") as content:
                vector = np.lib.format.read_array(content, allow_pickle=False)
    except (MemoryError, OSError, *NOT_NPY) as error:
        reason = getattr(error, "strerror", None) or echoed(str(error.args[0] if error.args else error))
        raise RecordError(f"{file}: cannot be read ({reason}); the record is damaged") from None
    if sha256 is not None and (vector.dtype != np.float32 or digest(vector.tobytes()) != sha256):
        raise RecordError(
            f"{file}: its weights do not have the digest in summary.json; the record is damaged"
        )
    return vector


def carried_with(path: Path) -> Mapping[str, Vector]:
    """Return what else the first worker's module carried, by name; raises RecordError for a damaged file."""
    file = path / CARRIED
    try:
        return safetensors.numpy.load(file.read_bytes()) if file.exists() else {}
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or echoed(str(error))
        raise RecordError(f"{file}: cannot be read ({reason}); the record is damaged") from None
