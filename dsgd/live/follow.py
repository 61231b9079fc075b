"""Follows run records while they are written: each reading takes the new lines of their files.

What is kept of a run is bounded, however long it is and however many workers it has: curves are thinned,
staleness is counted in the buckets of the metrics, and of the tasks only each worker's last few are kept.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from dsgd.live.prometheus import STALENESS_BUCKETS
from dsgd.records.reader import read_summary, read_yaml
from dsgd.records.schema import RecordedEvaluation, RecordedUpdate, Summary, decode, update_type

T = TypeVar("T")

MOST_WORKERS = 24
"""Workers of a run that are shown one by one: the first ones."""

MOST_POINTS = 256
"""Most points of a curve; beyond it every second one is dropped."""

_MOST_TASKS = 64  # the last ones of each worker
_MOST_BYTES = 1 << 20  # of a file at once, so that a browser does not wait for long
# What reading another version's files, or damaged ones, raises.
_NOT_A_RECORD = (AttributeError, LookupError, TypeError, ValueError)


_NOT_EVALUATED = RecordedEvaluation(version=0, t_s=0.0, gradients=0, bytes=0, loss=None, accuracy=None)


class Curve:
    """Points that arrive one by one, thinned by averaging neighbours.

    A point is (t_s, gradients, value); merged points have the last t_s and gradients, and the
    mean of the values.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, int, float | None]] = []
        self._stride, self._in_last = 1, 0

    def add(self, t_s: float, gradients: int, value: float | None) -> None:
        if 0 < self._in_last < self._stride:
            before = self.points.pop()[2]
            n = self._in_last
            value = None if value is None or before is None else before + (value - before) / (n + 1)
        else:
            if len(self.points) == MOST_POINTS:
                self._halve()
            self._in_last = 0
        self._in_last += 1
        self.points.append((t_s, gradients, value))

    def _halve(self) -> None:
        pairs = zip(self.points[::2], self.points[1::2], strict=True)
        self.points = [
            (t_s, gradients, None if a is None or b is None else (a + b) / 2)
            for (_, _, a), (t_s, gradients, b) in pairs
        ]
        self._stride *= 2

    def columns(self) -> dict[str, list[Any]]:
        """Return it as columns of rounded numbers."""
        return {
            "t_s": [_rounded(t_s) for t_s, _, _ in self.points],
            "gradients": [gradients for _, gradients, _ in self.points],
            "value": [_rounded(value) for _, _, value in self.points],
        }


class _Lines(Generic[T]):
    """The whole lines of a file that grows; the last one may be torn and is left for later."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path, self._kind, self._offset, self.rest = path, kind, 0, True
        self._number = 0

    def read(self) -> Iterator[T]:
        """Return the new lines; `rest` then says whether there was more than is read at once."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                block = file.read(_MOST_BYTES)
                if block and b"\n" not in block:  # an update of thousands of workers
                    block += file.readline()
        except FileNotFoundError:
            self.rest = False
            return
        end = block.rfind(b"\n") + 1
        self.rest = end > 0 and len(block) >= _MOST_BYTES
        self._offset += end
        for line in block[:end].splitlines():
            self._number += 1
            yield decode(line, self._kind, f"{self._path}, line {self._number}")


class _Worker:
    """What is known about one worker."""

    def __init__(self) -> None:
        self.tasks, self.batches, self.busy_s = 0, 0, 0.0
        self.staleness = [0] * (len(STALENESS_BUCKETS) + 1)
        self.staleness_sum = 0
        self.last: deque[tuple[float, float, float]] = deque(
            maxlen=_MOST_TASKS
        )  # started, finished, computed


class FollowedRun:
    """One record, as far as it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.revision = 0
        """Rises with every reading that found something."""
        self._options: dict[str, Any] = {}
        self._summary: Summary | None = None
        self._updates = _Lines(path / "updates.jsonl", update_type())
        self._evals = _Lines(path / "evals.jsonl", RecordedEvaluation)
        self._loss, self._eval_loss = Curve(), Curve()
        self._workers: list[_Worker] = []
        self._version = self._gradients = 0  # of the updates that have been read
        self._update_t_s = 0.0
        self._last_loss: float | None = None
        self._last_eval: RecordedEvaluation | None = None
        self._grew_s = time.monotonic()

    @property
    def mode(self) -> str:
        return str(self._options["mode"])

    @property
    def variant(self) -> str:
        """The record's name without its seed, as experiments name their records."""
        return re.sub(r"-s\d+$", "", self.path.name)

    def read(self) -> bool:
        """Read on; return whether there is more to be read at once."""
        before = self._version, self._last_eval, self._summary, bool(self._options)
        if not self._options and not self._read_beginning():
            return False
        # Looked for first: a summary means that the files read afterwards are whole.
        summary = self._summary or _summary(self.path)
        every = {"all": 1, "none": 0}.get(self._options["record"])
        every = int(self._options["record"].partition(":")[2]) if every is None else every
        for update in self._updates.read():
            self._take(update, every)
        for evaluated in self._evals.read():
            self._last_eval = evaluated
            self._eval_loss.add(evaluated.t_s, evaluated.gradients, evaluated.loss)
        rest = self._updates.rest or self._evals.rest
        if not rest:
            self._summary = summary
        if before != (self._version, self._last_eval, self._summary, bool(self._options)):
            self.revision += 1
            self._grew_s = time.monotonic()
        return rest

    def _read_beginning(self) -> bool:
        if not (self.path / "meta.json").exists():  # it is written after config.yaml
            return False
        self._options = read_yaml(self.path / "config.yaml")
        self._workers = [_Worker() for _ in range(self._options["num_workers"])]
        return True

    def _take(self, update: RecordedUpdate, every: int) -> None:
        self._version, self._update_t_s = update.version, update.t_s
        for task in update.gradients:
            worker = self._workers[task.worker]
            worker.tasks += 1
            worker.batches += task.batches
            worker.busy_s += task.compute_s * every  # assume that what is not recorded is alike
            worker.staleness[bisect_left(STALENESS_BUCKETS, task.staleness)] += 1
            worker.staleness_sum += task.staleness
            self._gradients += task.batches * every
            if task.worker < MOST_WORKERS:
                worker.last.append((task.started_s, task.finished_s, task.compute_s))
        self._last_loss = update.loss
        self._loss.add(self._update_t_s, self._gradients, update.loss)

    def view(self) -> dict[str, Any]:
        """Return what the page shows of the run, as plain values for JSON."""
        options, summary = self._options, self._summary
        tasks = sum(worker.tasks for worker in self._workers)
        stale = sum(worker.staleness_sum for worker in self._workers)
        idle = self._idle_shares()
        budget = options["num_workers"] * options["steps"]
        evaluated = self._last_eval or _NOT_EVALUATED
        updates = summary.updates if summary else max(self._version, evaluated.version)
        gradients = summary.gradients if summary else max(self._gradients, evaluated.gradients)
        shown = self._workers[:MOST_WORKERS]
        used = [max((k for k, n in enumerate(w.staleness) if n), default=0) for w in shown]
        bins = max(used, default=0) + 1
        return {
            "name": self.path.name,
            "variant": self.variant,
            "mode": self.mode,
            "engine": options["engine"],
            "record": options["record"],
            "num_workers": options["num_workers"],
            "state": summary.stopped_by if summary else "running",
            "error": summary.error if summary else None,
            "updates": updates,
            "gradients": gradients,
            "budget": budget,
            "t_s": _rounded(self._t_s),
            "silent_s": round(time.monotonic() - self._grew_s),
            "train_loss": _rounded(self._last_loss),
            "eval_loss": _rounded(evaluated.loss),
            "accuracy": _rounded(evaluated.accuracy),
            "staleness": _rounded(stale / tasks) if tasks else None,
            "idle": _rounded(sum(idle) / len(idle)) if tasks else None,
            "gradients_per_s": self._rate(),
            "train": self._loss.columns(),
            "eval": self._eval_loss.columns(),
            "bins": [_bin_name(k) for k in range(bins)],
            "workers": [
                {
                    "staleness": worker.staleness[:bins],
                    "mean": _rounded(worker.staleness_sum / worker.tasks) if worker.tasks else None,
                    "idle": _rounded(idle[i]) if tasks else None,
                    "batches": worker.batches,
                    "restarts": summary.workers[i].restarts if summary else None,
                }
                for i, worker in enumerate(shown)
            ],
            "timeline": self._timeline(),
        }

    @property
    def _t_s(self) -> float:
        """Engine seconds that are known to have passed."""
        return max(self._update_t_s, self._last_eval.t_s if self._last_eval else 0.0)

    def _idle_shares(self) -> list[float]:
        if self._summary:
            return self._summary.idle_shares
        clock_s = self._update_t_s
        return [max(0.0, 1 - worker.busy_s / clock_s) if clock_s else 0.0 for worker in self._workers]

    def _rate(self) -> float | None:
        """Return the mini-batches per engine second; during the run, over about its last tenth."""
        if self._summary:
            clock_s = self._summary.clock_s
            return _rounded(self._summary.gradients / clock_s) if clock_s else None
        points = self._loss.points or self._eval_loss.points
        if not points or not points[-1][0]:
            return None
        before = next((p for p in reversed(points) if p[0] <= 0.9 * points[-1][0]), (0.0, 0, None))
        return _rounded((points[-1][1] - before[1]) / (points[-1][0] - before[0]))

    def _timeline(self) -> dict[str, Any]:
        """Return the tasks of the last engine seconds, about as many as 20 tasks of a worker take."""
        shown = [worker.last for worker in self._workers[:MOST_WORKERS]]
        lengths = sorted(finished - started for last in shown for started, finished, _ in last)
        span_s = 20 * lengths[len(lengths) // 2] if lengths else 0.0
        slowest_s = lengths[-1] if lengths else 0.0
        from_s = max(0.0, self._update_t_s - max(span_s, 3 * slowest_s))
        return {
            "from_s": from_s,
            "to_s": self._update_t_s,
            "tasks": [[task for task in last if task[1] > from_s] for last in shown],
        }


class FollowedFolder:
    """A record, or a folder of records, that need not be there yet."""

    def __init__(self, folder: Path, most_runs: int = 64) -> None:
        self._folder, self._most_runs = folder, most_runs
        self._followed: dict[tuple[str, int], FollowedRun] = {}
        self.title, self.planned = folder.name, 0
        """The name of an experiment, and how many runs it has; 0 if that is not known."""
        self.variants: dict[str, str] = {}
        """The modes of an experiment's variants, by the beginning of their records' names."""
        self._unreadable: set[tuple[str, int]] = set()

    def read(self) -> Iterator[bool]:
        """Look for new records and read on in each; yield whether there is more to be read at once.

        It yields after each record: in between the caller may do other things.
        """
        if not self.planned:
            self._read_experiment()
        found = []
        for path in self._records():
            try:
                status = (path / "config.yaml").stat()
            except OSError:  # not a record, or not accessible
                continue
            found.append((status.st_mtime, path.name, status.st_ino, path))
        newest = {(name, inode): path for _, name, inode, path in sorted(found)[-self._most_runs :]}
        self._followed = {key: self._followed.get(key) or FollowedRun(path) for key, path in newest.items()}
        for key, run in self._followed.items():
            try:
                yield key not in self._unreadable and run.read()
            except _NOT_A_RECORD:
                self._unreadable.add(key)
            except OSError:  # removed meanwhile, or not readable now
                continue

    @property
    def runs(self) -> dict[tuple[str, int], FollowedRun]:
        """The readable runs by name and inode (a record may be removed and made again), newest last."""
        return {
            key: run for key, run in self._followed.items() if run.revision and key not in self._unreadable
        }

    def _records(self) -> list[Path]:
        try:
            if (self._folder / "config.yaml").exists():
                return [self._folder]
            return [*self._folder.iterdir()]
        except OSError:  # not there yet, or not readable
            return []

    def _read_experiment(self) -> None:
        try:
            experiment = read_yaml(self._folder / "experiment.yaml")
            variants, base = experiment["variants"], experiment["base"]
            self.variants = {v["folder"]: str({**base, **v["options"]}["mode"]) for v in variants}
            self.planned = len(variants) * len(experiment["seeds"])
            self.title = experiment["title"]
        except (OSError, *_NOT_A_RECORD):
            return


def _bin_name(k: int) -> str:
    """Return what staleness a bucket holds, like 5–8."""
    if k == len(STALENESS_BUCKETS):
        return f"> {STALENESS_BUCKETS[-1]:.0f}"
    low, high = (int(STALENESS_BUCKETS[k - 1]) + 1 if k else 0), int(STALENESS_BUCKETS[k])
    return str(high) if low == high else f"{low}–{high}"


def _rounded(x: float | None) -> float | None:
    return None if x is None else float(f"{x:.6g}")


def _summary(path: Path) -> Summary | None:
    """Return a record's summary; it is written whole, and is there when the run has ended."""
    return read_summary(path) if (path / "summary.json").exists() else None
