"""Reads run records as typed values; docs/record.md says what the fields mean.

Fields and files that are not named there are ignored. A record whose run has not ended, or that lacks a field
because an older version wrote it, is refused whole: half a record would make a wrong figure.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from msgspec import Struct
from msgspec.structs import astuple

from dsgd.core.old_options import OldConfig, recorded
from dsgd.core.option_rules import Option, option_fields
from dsgd.core.routing import ROUTING
from dsgd.process import bounded_yaml
from dsgd.process.outcomes import echoed
from dsgd.records.fixed_options import GONE, options_digest
from dsgd.records.schema import (
    BriefSummary,
    Damaged,
    Meta,
    RecordedEvaluation,
    RecordedFault,
    RecordedTask,
    RecordedUpdate,
    RecordError,
    Summary,
    decode,
    summary_type,
    update_type,
)
from dsgd.strategies import known_type

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")

_MOST_SUMMARY_BYTES = 4_000_000  # some 1,024 workers and as many values of staleness take 0.3 MB
_BY_WORKER = re.compile(rb",\s*\"(counts|workers)\": ")
"""Where, in a summary, parts begin that grow with the workers."""
_BY_WORKER_ENDS = {b"counts": b"}}", b"workers": b"}"}
"""What then closes the objects around: `counts` is in `staleness`."""
_MOST_NOTE_CHARACTERS = 2000
_MOST_TAIL_BYTES = 1 << 20
_OF_EVERY_RUN = ("mode", "engine", "num_workers", "steps", "seed")
_VERSION = re.compile(rb'\{"version":(\d+),')  # the beginning of a line of updates.jsonl


class _Begun(Struct, frozen=True, kw_only=True):
    """What options need of meta.json."""

    options_sha256: str | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a run that has ended. Updates are read only when they are asked for."""

    path: Path
    config: Mapping[str, Any]
    """From option to value, as config.yaml has it."""
    meta: Meta
    summary: Summary
    evals: Sequence[RecordedEvaluation] = field(repr=False)
    faults: Sequence[RecordedFault] = field(default=(), repr=False)
    """In the order in which they ended; empty for a record from before there were any."""

    def reached(self, target_loss: float) -> RecordedEvaluation | None:
        """Return the first evaluation whose loss is at or below the target."""
        return next((e for e in self.evals if e.loss is not None and e.loss <= target_loss), None)

    def updates(self) -> Iterator[RecordedUpdate]:
        """Return the recorded updates in order; a line is read when it is asked for.

        Raises RecordError at the first line that is not as docs/record.md says, except for a torn last one.
        """
        return read_updates(self.path)

    def update_frame(self) -> pl.DataFrame:
        """Return the recorded updates, one a row: version, t_s, loss, and what was measured of them."""
        return self._read_updates(columns(update_type(), without=("gradients", "ignored", "extra", "sent")))

    def task_frame(self) -> pl.DataFrame:
        """Return the tasks that made the updates, one a row: version, t_s and the fields of a task."""
        import polars as pl

        tasks = pl.List(pl.Struct(columns(RecordedTask)))
        frame = self._read_updates({"version": pl.Int64, "t_s": pl.Float64, "gradients": tasks})
        return frame.explode("gradients").drop_nulls("gradients").unnest("gradients")

    def eval_frame(self) -> pl.DataFrame:
        """Return the evaluations, one a row, with the numbers of a line of evals.jsonl, `experts` flat."""
        import polars as pl

        rows = [evaluation_row(evaluation) for evaluation in self.evals]
        return pl.DataFrame(rows, schema=evaluation_columns(), orient="row")

    def _read_updates(self, columns: Mapping[str, Any]) -> pl.DataFrame:
        import polars as pl

        file = self.path / "updates.jsonl"
        try:
            raw = file.read_bytes()
            if _is_torn(raw[raw.rfind(b"\n") + 1 :]):
                raw = raw[: raw.rfind(b"\n") + 1]
            frame = pl.read_ndjson(io.BytesIO(raw), schema=columns)
        except OSError as error:
            raise RecordError(f"{file}: cannot be read ({error.strerror})") from None
        except pl.exceptions.PolarsError as error:
            for (
                _
            ) in self.updates():  # raises RecordError with the number of the line, which polars does not say
                pass
            raise RecordError(f"{file}: has a line that is not an update ({_one_line(error)})") from None
        for name in ("version", "t_s"):
            if frame[name].null_count():
                raise RecordError(f"{file}: has no {name}; the record is from an older version, run it again")
        return frame


def is_record(path: Path) -> bool:
    """Whether a folder is, or was begun as, a run record."""
    return any((path / name).is_file() for name in ("config.yaml", "meta.json", "summary.json"))


def read_summary(path: Path) -> Summary:
    """Read the summary.json of a record alone; raises RecordError, in one line, as `read_record` does."""
    return _read_json(path / "summary.json", summary_type())


def read_brief_summary(path: Path, most_bytes: int = _MOST_SUMMARY_BYTES) -> BriefSummary:
    """Read the parts of summary.json that all versions have; raises RecordError.

    Of a longer file only the beginning is read, without the parts that grow with the workers: older versions
    listed every worker of a run.
    """
    file = path / "summary.json"
    try:
        with file.open("rb") as content:
            beginning = content.read(most_bytes)
            is_whole = not content.read(1)
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({_one_line(error)})") from None
    return decode(beginning if is_whole else _closed(beginning), BriefSummary, file)


def _closed(head: bytes) -> bytes:
    """Return the beginning of a summary, cut before the first part that grows with the workers.

    >>> _closed(b'{"a": 1, "staleness": {"mean": 2.5, "counts": {"0": 1, "1')
    b'{"a": 1, "staleness": {"mean": 2.5}}'
    """
    found = _BY_WORKER.search(head)
    return head[: found.start()] + _BY_WORKER_ENDS[found[1]] if found else head


def read_note(path: Path, config: Mapping[str, Any]) -> str:
    """Return the note on a run: the text of its note.txt or, without that file, of its option `--note`."""
    try:
        with (path / "note.txt").open(encoding="utf-8", errors="replace") as file:
            return " ".join(file.read(_MOST_NOTE_CHARACTERS).split())
    except OSError:  # as a rule it is not there
        return str(config.get("note") or "")


def read_meta(path: Path) -> Meta:
    """Read only the meta.json of a record, whose run may still go on; raises RecordError."""
    return _read_json(path / "meta.json", Meta)


def read_record(path: Path) -> Record:
    """Read the record of a run that has ended.

    Raises RecordError, in one line, for a folder that is not there or not a record, is partial (no
    summary.json: the run is under way or was killed), or is from an older version (a field is missing).
    """
    path = Path(path)
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such folder; give the folder of a run")
    if not is_record(path):
        raise RecordError(f"{path}: is not a run record (it has no config.yaml); give the folder of a run")
    if not (path / "summary.json").exists():
        raise RecordError(f"{path}: is partial (no summary.json): its run is under way or was killed")
    config, summary = read_options(path), read_summary(path)
    for option in _OF_EVERY_RUN:
        if (found := getattr(summary, option)) != config[option]:
            raise RecordError(
                f"{path / 'summary.json'}: is of a run with {option} {found}, and config.yaml of one with "
                f"{config[option]}; put both files back as they were"
            )
    if not (path / "updates.jsonl").is_file():
        raise RecordError(f"{path}: is not whole (no updates.jsonl); run it again")
    return Record(
        path=path,
        config=config,
        meta=read_meta(path),
        summary=summary,
        evals=tuple(read_evaluations(path)),
        faults=tuple(read_faults(path)),
    )


def read_evaluations(path: Path) -> Iterator[RecordedEvaluation]:
    """Yield a record's evaluations, a line at a time; raises RecordError."""
    return _lines(path / "evals.jsonl", RecordedEvaluation)


def read_updates(path: Path) -> Iterator[RecordedUpdate]:
    """Yield a record's updates, a line at a time; raises RecordError."""
    return _lines(path / "updates.jsonl", update_type())


def whole_length(file: Path) -> int:
    """Return how many bytes of a .jsonl file are whole lines: a kill may have torn the last one."""
    with file.open("rb") as lines:
        at = end = lines.seek(0, io.SEEK_END)
        while at:
            at = max(0, end - _MOST_TAIL_BYTES)
            lines.seek(at)
            found = lines.read(end - at).rfind(b"\n")
            if found >= 0:
                return at + found + 1
            end = at
    return 0


def length_to(file: Path, version: int) -> int:
    """Return how many bytes of updates.jsonl are updates up to a version of the weights."""
    length = 0
    with file.open("rb") as lines:
        for line in lines:
            found = _VERSION.match(line)
            if not found or int(found[1]) > version:
                break
            length += len(line)
    return length


def read_faults(path: Path) -> Iterator[RecordedFault]:
    """Yield a record's faults, a line at a time; none of an older record. Raises RecordError."""
    if (path / "faults.jsonl").exists():
        yield from _lines(path / "faults.jsonl", RecordedFault)


def columns(kind: type[Struct], without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a line as columns of a frame: whole numbers and other numbers."""
    import polars as pl

    types = get_type_hints(kind)
    return {
        name: pl.Int64 if types[name] is int else pl.Float64
        for name in kind.__struct_fields__
        if name not in without
    }


def evaluation_columns() -> dict[str, Any]:
    """Return the columns of a frame of evaluations; those of mixtures of experts are null for other
    models.
    """
    import polars as pl

    return columns(RecordedEvaluation, without=("experts",)) | dict.fromkeys(ROUTING, pl.Float64)


def evaluation_row(evaluation: RecordedEvaluation) -> tuple[Any, ...]:
    """Return the values of a line of evals.jsonl for these columns."""
    *plain, experts = astuple(evaluation)
    return (*plain, *(None if experts is None else getattr(experts, name) for name in ROUTING))


def _lines(file: Path, kind: type[T]) -> Iterator[T]:
    """Yield the lines of a .jsonl file; a torn last one, left by a full disk or a kill, is dropped."""
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield decode(line, kind, f"{file}, line {number}")
                except Damaged:
                    if next(lines, None) is None:
                        return
                    raise
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({_one_line(error)})") from None


def _read_json(file: Path, kind: type[T]) -> T:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({_one_line(error)})") from None
    return decode(content, kind, file)


def read_options(record: Path) -> dict[str, Any]:
    """Return a run's options from its config.yaml, as they are named today.

    Raises RecordError where they are not those that the run began with, and for a value of another kind than
    the option has.
    """
    file, written = record / "config.yaml", written_options(record)
    _require_kinds(file, written, option_fields(OldConfig))
    found = recorded(written)
    for name in _OF_EVERY_RUN:
        if name not in found:
            raise RecordError(f"{file}: has no {name}; the record is from an older version, run it again")
    known = option_fields(known_type(found))
    if found.get("strategy_file") or str(found.get("workload")).endswith(".py"):  # it may have others
        known = {name: known[name] for name in _OF_EVERY_RUN}
    _require_kinds(file, found, known)
    begun = _Begun()
    with suppress(RecordError):  # whoever needs meta.json says what is wrong with it
        begun = _read_json(record / "meta.json", _Begun)
    if begun.options_sha256 not in (None, options_digest(written)):
        raise RecordError(f"{file}: has other options than the run began with; put the file back as it was")
    return found


def _require_kinds(file: Path, found: Mapping[str, Any], known: Mapping[str, Option]) -> None:
    for name, value in found.items():
        if value is not None and not isinstance(value, str | int | float):
            raise RecordError(f"{file}: {name} must be one value, not a {type(value).__name__}")
        if name in known and not known[name].is_of_its_kind(value):
            raise RecordError(f"{file}: {name} {echoed(str(value), 80)}: {known[name].kind_in_words}")


def written_options(record: Path) -> dict[str, Any]:
    """Return a run's options as its config.yaml has them, without those that are gone; raises RecordError."""
    found = read_yaml(record / "config.yaml")
    return {name: value for name, value in found.items() if name not in GONE}


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file that must be a mapping; raises RecordError, naming the file, if it is not."""
    try:
        values = bounded_yaml.read_yaml(file)
    except bounded_yaml.YamlError as error:
        raise RecordError(f"{file}: {error}") from None
    if not isinstance(values, dict):
        raise RecordError(f"{file}: is not a mapping")
    return {str(key): value for key, value in values.items()}


def _is_torn(line: bytes) -> bool:
    try:
        decode(line, object, "")
    except Damaged:
        return True
    return False


def _one_line(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())
