"""Reads run records as typed values; docs/record.md says what the fields mean.

Fields and files that are not named there are ignored. A record whose run has not ended, or that lacks a field
because an older version wrote it, is refused whole: half a record would make a wrong figure.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import yaml

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")

# libyaml's loader, where it is there, is eight times faster.
_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RecordError(ValueError):
    """A folder cannot be read as a run record; the message is one line."""


class Evaluation(NamedTuple):
    """A line of evals.jsonl. `loss` is None where it was NaN or infinite."""

    version: int
    t_s: float
    gradients: int
    bytes: int
    loss: float | None
    accuracy: float | None


class RecordedTask(NamedTuple):
    """A task: an entry of `gradients` or `ignored` in a line of updates.jsonl."""

    worker: int
    step: int
    batches: int
    staleness: int
    started_s: float
    finished_s: float
    compute_s: float
    loss: float | None


class RecordedUpdate(NamedTuple):
    """A line of updates.jsonl."""

    version: int
    t_s: float
    loss: float | None
    drift: float | None
    gradients: tuple[RecordedTask, ...]
    ignored: tuple[RecordedTask, ...]
    """Tasks that were thrown away since the update before."""


class Staleness(NamedTuple):
    """Of all applied tasks, in updates; None without one."""

    mean: float | None
    p50: int | None
    p95: int | None
    max: int | None
    counts: Mapping[int, int]
    by_worker: Mapping[int, float]


class WorkerTotals(NamedTuple):
    """What a worker did: mini-batches, engine seconds, and how often it was started again."""

    steps: int
    busy_s: float
    idle_s: float
    restarts: int


class Compared(NamedTuple):
    """A closed form's value and the measurement; the difference is None where the form is a bound."""

    theory: float
    measured: float | None
    relative_difference: float | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """summary.json."""

    mode: str
    engine: str
    num_workers: int
    steps: int
    seed: int
    stopped_by: str
    error: str | None
    eval_loss: float | None
    eval_accuracy: float | None
    updates: int
    gradients: int
    samples: int
    clock_s: float
    first_loss: float | None
    last_loss: float | None
    staleness: Staleness
    clock_gap_max: int
    drift: float | None
    workers: Sequence[WorkerTotals]
    """Worker 0 first."""
    wasted_ignored: int
    wasted_cancelled: int
    bytes_to_workers: int
    bytes_to_server: int
    wall_s: float
    startup_s: float
    weights_sha256: str
    theory: Mapping[str, Compared]

    @property
    def gradients_per_s(self) -> float | None:
        """Mini-batches applied per engine second; None for a run without time."""
        return self.gradients / self.clock_s if self.clock_s else None

    @property
    def updates_per_s(self) -> float | None:
        """Updates per engine second; None for a run without time."""
        return self.updates / self.clock_s if self.clock_s else None

    @property
    def idle_shares(self) -> list[float]:
        """The share of time that each worker idled, worker 0 first."""
        return [worker.idle_s / self.clock_s if self.clock_s else 0.0 for worker in self.workers]

    @property
    def idle_share(self) -> float:
        """Mean over workers of the share of time that each idled."""
        return sum(self.idle_shares) / len(self.workers)


@dataclass(frozen=True, kw_only=True)
class Meta:
    """meta.json."""

    started_epoch_s: float
    started: str
    command: Sequence[str]
    git_commit: str | None
    git_dirty: bool | None
    versions: Mapping[str, str]
    host: str
    platform: str
    cpus: int | None
    device: str
    worker_pids: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a run that has ended. Updates are read only when they are asked for."""

    path: Path
    config: Mapping[str, Any]
    """From option to value, as config.yaml has it."""
    meta: Meta
    summary: Summary
    evals: Sequence[Evaluation] = field(repr=False)

    def reached(self, target_loss: float) -> Evaluation | None:
        """Return the first evaluation whose loss is at or below the target."""
        return next((e for e in self.evals if e.loss is not None and e.loss <= target_loss), None)

    def updates(self) -> Iterator[RecordedUpdate]:
        """Yield the recorded updates in order, reading a line at a time.

        Raises RecordError at the first line that is not as docs/record.md says, but for a torn last one.
        """
        for line in _lines(self.path / "updates.jsonl"):
            yield RecordedUpdate(
                version=line.whole("version"),
                t_s=line.number("t_s"),
                loss=line.number_or_none("loss"),
                drift=line.number_or_none("drift"),
                gradients=tuple(map(_task, line.parts("gradients"))),
                ignored=tuple(map(_task, line.parts("ignored"))) if "ignored" in line.values else (),
            )

    def update_frame(self) -> pl.DataFrame:
        """Return the recorded updates, one a row: version, t_s, loss, drift."""
        import polars as pl

        columns = {"version": pl.Int64, "t_s": pl.Float64, "loss": pl.Float64, "drift": pl.Float64}
        return self._read_updates(columns)

    def task_frame(self) -> pl.DataFrame:
        """Return the tasks that made the updates, one a row: version, t_s and the fields of a task."""
        import polars as pl

        whole = dict.fromkeys(("worker", "step", "batches", "staleness"), pl.Int64)
        seconds = dict.fromkeys(("started_s", "finished_s", "compute_s", "loss"), pl.Float64)
        task = pl.Struct({**whole, **seconds})
        columns = {"version": pl.Int64, "t_s": pl.Float64, "gradients": pl.List(task)}
        frame = self._read_updates(columns)
        return frame.explode("gradients").drop_nulls("gradients").unnest("gradients")

    def eval_frame(self) -> pl.DataFrame:
        """Return the evaluations, one a row: version, t_s, gradients, bytes, loss, accuracy."""
        import polars as pl

        whole = dict.fromkeys(("version", "gradients", "bytes"), pl.Int64)
        schema = {name: whole.get(name, pl.Float64) for name in Evaluation._fields}
        return pl.DataFrame(list(self.evals), schema=schema, orient="row")

    def _read_updates(self, columns: Mapping[str, Any]) -> pl.DataFrame:
        import polars as pl

        file = self.path / "updates.jsonl"
        try:
            raw = file.read_bytes()
            if not _is_json(raw[raw.rfind(b"\n") + 1 :]):
                raw = raw[: raw.rfind(b"\n") + 1]
            frame = pl.read_ndjson(io.BytesIO(raw), schema=columns)
        except OSError as error:
            raise RecordError(f"{file}: cannot be read ({error.strerror})") from None
        except pl.exceptions.PolarsError as error:
            raise RecordError(f"{file}: has a line that is not an update ({_one_line(error)})") from None
        for name in ("version", "t_s"):
            if frame[name].null_count():
                raise _older(file, name)
        return frame


def is_record(path: Path) -> bool:
    """Whether a folder is, or was begun as, a run record."""
    return any((path / name).is_file() for name in ("config.yaml", "meta.json", "summary.json"))


def read_summary(path: Path) -> Summary:
    """Read the summary.json of a record alone; raises RecordError, in one line, as `read_record` does."""
    return _summary(_read_json(path / "summary.json"))


def read_record(path: Path) -> Record:
    """Read the record of a run that has ended.

    Raises RecordError, in one line, for a folder that is not there or not a record, is partial (no
    summary.json: the run is under way or was killed), or is from an older version (a field is missing).
    """
    path = Path(path)
    if not path.is_dir():
        raise RecordError(f"{path}: there is no such folder; give the folder of a run")
    if not is_record(path):
        raise RecordError(f"{path}: is not a run record (it has no config.yaml)")
    if not (path / "summary.json").is_file():
        raise RecordError(f"{path}: is partial (no summary.json): its run is under way or was killed")
    config = read_yaml(path / "config.yaml")
    for option in ("mode", "engine", "num_workers", "steps", "seed"):
        if option not in config:
            raise _older(path / "config.yaml", option)
    summary = read_summary(path)
    if not (path / "updates.jsonl").is_file():
        raise RecordError(f"{path}: is not whole (no updates.jsonl)")
    return Record(
        path=path,
        config=config,
        meta=_meta(_read_json(path / "meta.json")),
        summary=summary,
        evals=tuple(
            Evaluation(
                version=line.whole("version"),
                t_s=line.number("t_s"),
                gradients=line.whole("gradients"),
                bytes=line.whole("bytes"),
                loss=line.number_or_none("loss"),
                accuracy=line.number_or_none("accuracy"),
            )
            for line in _lines(path / "evals.jsonl")
        ),
    )


class _Fields(NamedTuple):
    """A JSON object of a file, whose fields are taken with their types checked."""

    where: str
    """The file, and the line where it has many."""
    values: Mapping[str, Any]
    inside: str = ""

    def take(self, name: str, kind: Callable[[Any], bool], what: str) -> Any:
        if name not in self.values:
            raise _older(self.where, self.inside + name)
        value = self.values[name]
        if not kind(value):
            raise RecordError(f"{self.where}: {self.inside}{name} is not {what}")
        return value

    def whole(self, name: str) -> int:
        return int(self.take(name, _is_whole, "a whole number"))

    def whole_or_none(self, name: str) -> int | None:
        value = self.take(name, lambda x: x is None or _is_whole(x), "a whole number or null")
        return None if value is None else int(value)

    def number(self, name: str) -> float:
        return float(self.take(name, _is_number, "a number"))

    def number_or_none(self, name: str) -> float | None:
        value = self.take(name, lambda x: x is None or _is_number(x), "a number or null")
        return None if value is None else float(value)

    def text(self, name: str) -> str:
        return str(self.take(name, lambda x: isinstance(x, str), "text"))

    def text_or_none(self, name: str) -> str | None:
        value = self.take(name, lambda x: x is None or isinstance(x, str), "text or null")
        return None if value is None else str(value)

    def list(self, name: str) -> list[Any]:
        return list(self.take(name, lambda x: isinstance(x, list), "a list"))

    def part(self, name: str) -> _Fields:
        value = self.take(name, lambda x: isinstance(x, dict), "an object")
        return _Fields(self.where, value, f"{self.inside}{name}.")

    def parts(self, name: str) -> Iterator[_Fields]:
        for i, value in enumerate(self.list(name)):
            if not isinstance(value, dict):
                raise RecordError(f"{self.where}: {self.inside}{name}[{i}] is not an object")
            yield _Fields(self.where, value, f"{self.inside}{name}[{i}].")

    def by_number(self, name: str, take: Callable[[_Fields, str], T]) -> dict[int, T]:
        """Return an object whose keys are whole numbers in text, in their order."""
        part = self.part(name)
        if not all(key.isdecimal() for key in part.values):
            raise RecordError(f"{self.where}: {self.inside}{name} has a name that is not a whole number")
        return {int(key): take(part, key) for key in sorted(part.values, key=int)}


def _summary(top: _Fields) -> Summary:
    staleness, evaluated, loss = top.part("staleness"), top.part("eval"), top.part("loss")
    wasted, travelled = top.part("wasted"), top.part("bytes")
    theory = top.part("theory") if "theory" in top.values else _Fields(top.where, {})
    return Summary(
        mode=top.text("mode"),
        engine=top.text("engine"),
        num_workers=top.whole("num_workers"),
        steps=top.whole("steps"),
        seed=top.whole("seed"),
        stopped_by=top.text("stopped_by"),
        error=top.text_or_none("error"),
        eval_loss=evaluated.number_or_none("loss"),
        eval_accuracy=evaluated.number_or_none("accuracy"),
        updates=top.whole("updates"),
        gradients=top.whole("gradients"),
        samples=top.whole("samples"),
        clock_s=top.number("clock_s"),
        first_loss=loss.number_or_none("first"),
        last_loss=loss.number_or_none("last"),
        staleness=Staleness(
            mean=staleness.number_or_none("mean"),
            p50=staleness.whole_or_none("p50"),
            p95=staleness.whole_or_none("p95"),
            max=staleness.whole_or_none("max"),
            counts=staleness.by_number("counts", _Fields.whole),
            by_worker=staleness.by_number("by_worker", _Fields.number),
        ),
        clock_gap_max=top.whole("clock_gap_max"),
        drift=top.number_or_none("drift"),
        workers=tuple(top.by_number("workers", _worker).values()),
        wasted_ignored=wasted.whole("ignored"),
        wasted_cancelled=wasted.whole("cancelled"),
        bytes_to_workers=travelled.whole("to_workers"),
        bytes_to_server=travelled.whole("to_server"),
        wall_s=top.number("wall_s"),
        startup_s=top.number("startup_s"),
        weights_sha256=top.text("weights_sha256"),
        theory={name: _compared(theory.part(name)) for name in theory.values},
    )


def _task(task: _Fields) -> RecordedTask:
    return RecordedTask(
        worker=task.whole("worker"),
        step=task.whole("step"),
        batches=task.whole("batches"),
        staleness=task.whole("staleness"),
        started_s=task.number("started_s"),
        finished_s=task.number("finished_s"),
        compute_s=task.number("compute_s"),
        loss=task.number_or_none("loss"),
    )


def _worker(workers: _Fields, key: str) -> WorkerTotals:
    worker = workers.part(key)
    return WorkerTotals(
        steps=worker.whole("steps"),
        busy_s=worker.number("busy_s"),
        idle_s=worker.number("idle_s"),
        restarts=worker.whole("restarts"),
    )


def _compared(entry: _Fields) -> Compared:
    return Compared(
        theory=entry.number("theory"),
        measured=entry.number_or_none("measured"),
        relative_difference=entry.number_or_none("relative_difference"),
    )


def _meta(top: _Fields) -> Meta:
    versions = top.part("versions")
    return Meta(
        started_epoch_s=top.number("started_epoch_s"),
        started=top.text("started"),
        command=[str(argument) for argument in top.list("command")],
        git_commit=top.text_or_none("git_commit"),
        git_dirty=top.take("git_dirty", lambda x: x is None or isinstance(x, bool), "true, false or null"),
        versions={name: versions.text(name) for name in versions.values},
        host=top.text("host"),
        platform=top.text("platform"),
        cpus=top.whole_or_none("cpus"),
        device=top.text("device"),
        worker_pids=[int(pid) for pid in top.list("worker_pids") if _is_whole(pid)],
    )


def _lines(file: Path) -> Iterator[_Fields]:
    """Yield the objects of a .jsonl file; a torn last line, left by a full disk or a kill, is dropped."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    values = json.loads(line)
                except json.JSONDecodeError:
                    if next(lines, None) is None:
                        return
                    raise RecordError(f"{file}: line {number} is not JSON") from None
                if not isinstance(values, dict):
                    raise RecordError(f"{file}: line {number} is not an object")
                yield _Fields(f"{file}, line {number}", values)
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{file}: cannot be read ({_one_line(error)})") from None


def _read_json(file: Path) -> _Fields:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{file}: cannot be read ({_one_line(error)})") from None
    if not isinstance(values, dict):
        raise RecordError(f"{file}: is not an object")
    return _Fields(str(file), values)


def read_yaml(file: Path) -> dict[str, Any]:
    """Read a YAML file that must be a mapping; raises RecordError, naming the file, if it is none."""
    try:
        values = yaml.load(file.read_text(encoding="utf-8"), Loader=_YamlLoader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecordError(f"{file}: cannot be read ({_one_line(error)})") from None
    if not isinstance(values, dict):
        raise RecordError(f"{file}: is not a mapping")
    return {str(key): value for key, value in values.items()}


def _older(where: object, name: str) -> RecordError:
    return RecordError(f"{where}: has no {name}; the record is from an older version, run it again")


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_whole(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _one_line(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())
