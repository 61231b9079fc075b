"""Follows a run's record while it is written: each reading takes the new lines of its files.

What is kept of a run is bounded, however long it is and however many workers it has: curves are thinned,
staleness is counted in the buckets of the metrics, only some workers are shown one by one, and of their tasks
the last few. How a run ended is read first, so a finished run never looks as if it were running.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsgd.records.fault_words import cost, hit
from dsgd.records.reader import read_brief_summary, read_meta, read_note, read_options
from dsgd.records.schema import BriefSummary, RecordedEvaluation, RecordedFault, RecordedTask, RecordError
from dsgd.show.live.curve import Curve, rounded
from dsgd.show.live.prometheus import STALENESS_BUCKETS
from dsgd.show.live.record_lines import Lines, UpdateLines
from dsgd.strategies import defaults

MOST_WORKERS = 24
"""Workers of a run that are shown one by one: the first ones."""

_MOST_TASKS = 64  # the last ones of each worker
_MOST_FAULTS = 256  # the last ones of a run
_MOST_IN_WORDS = 8  # of them, in words
_NOT_SHOWN = (
    "out", "run_name", "note", "quiet", "tensorboard", "trace_last", "metrics_port", "metrics_host",
    "metrics_linger_s", "dashboard", "profile", "log_level", "log_format", "strategy_file",
)  # fmt: skip
_NOT_EVALUATED = RecordedEvaluation(version=0, t_s=0.0, gradients=0, bytes=0, loss=None, accuracy=None)


class _Worker:
    """What is known about a worker that is shown."""

    def __init__(self) -> None:
        self.tasks, self.busy_s = 0, 0.0
        self.staleness = [0] * (len(STALENESS_BUCKETS) + 1)
        self.staleness_sum = 0
        self.last: deque[tuple[float, float, float]] = deque(
            maxlen=_MOST_TASKS
        )  # started, finished, computed


class FollowedRun:
    """One record, as far as it has been read."""

    def __init__(self, path: Path, name: str = "", revision: int = 0) -> None:
        self.path, self.name = path, name or path.name
        self.revision = revision
        """Rises with every reading that found something."""
        self._options: dict[str, Any] = {}
        self._outcome: BriefSummary | None = None
        self._given: list[str] = []  # options that differ from their defaults
        self._note, self._score_name = "", "accuracy"
        self._updates = UpdateLines(path / "updates.jsonl")
        self._evals = Lines(path / "evals.jsonl", RecordedEvaluation)
        self._fault_lines = Lines(path / "faults.jsonl", RecordedFault)
        self._faults: deque[RecordedFault] = deque(maxlen=_MOST_FAULTS)
        self._fault_counts: dict[str, int] = {}
        self._whole = False  # nothing of its files is left to be read, nor will be
        self._loss, self._eval_loss = Curve(), Curve()
        self._num_workers, self._budget, self._limit_s = 0, 0, math.inf
        self._workers: list[_Worker] = []
        self._tasks = self._staleness_sum = 0  # of all workers
        self._busy_s = 0.0
        self._version = self._gradients = 0  # of the updates that have been read
        self._update_t_s = 0.0
        self._last_loss: float | None = None
        self._extra: dict[str, float | None] = {}  # the last values
        self._last_eval: RecordedEvaluation | None = None
        self._began_s = self._grew_s = 0.0  # epoch seconds: of the first task, and of the latest news
        self._from_version, self._done_before = 0, 0.0  # from where a run goes on that was resumed

    @property
    def mode(self) -> str:
        return str(self._options["mode"])

    def read(self) -> bool:
        """Read on; return whether there is more to be read at once.

        The first reading takes what is short: the options, how the run ended, and evaluations. Raises
        TakenBack where the run has gone back: then it must be followed from its beginning again.
        """
        before = self._seen()
        beginning = not self._options
        if beginning and not self._read_beginning():
            return False
        rest = False
        if not self._whole:
            # Looked for first: a summary means that the files read afterwards are whole.
            self._outcome = self._outcome or _outcome(self.path)
            for evaluated in self._evals.read():
                self._last_eval = evaluated
                self._eval_loss.add(evaluated.t_s, evaluated.gradients, evaluated.loss)
            for fault in self._fault_lines.read():
                self._faults.append(fault)
                self._fault_counts[fault.kind] = self._fault_counts.get(fault.kind, 0) + 1
            if not beginning:
                self._read_updates()
            rest = beginning or self._updates.rest or self._evals.rest or self._fault_lines.rest
            self._whole = self._outcome is not None and not rest
            self._grew_s = self._written_s()
        self._note = read_note(self.path, self._options)
        if before != self._seen():
            self.revision += 1
        return rest

    def _seen(self) -> tuple[Any, ...]:
        """Return what a reading may change."""
        return (
            bool(self._options), self._note, self._outcome, self._last_eval, self._version, self._gradients,
            self._whole, sum(self._fault_counts.values()),
        )  # fmt: skip

    def _read_beginning(self) -> bool:
        meta = self.path / "meta.json"  # it is written after config.yaml, when the workers are ready
        if not meta.exists():
            return False
        self._began_s = meta.stat().st_mtime
        with suppress(RecordError):
            known = read_meta(self.path)
            self._score_name = known.workload.get("score_name", "accuracy")
            self._from_version = known.attempts[-1].from_version if known.attempts else 0
        self._options = read_options(self.path)
        self._num_workers, self._budget, self._limit_s = _limits(self._options)
        self._given = _given(self._options)
        self._workers = [_Worker() for _ in range(min(MOST_WORKERS, self._num_workers))]
        return True

    def _written_s(self) -> float:
        """Return when the run last wrote something."""
        times = [self._began_s]
        for name in ("updates.jsonl", "evals.jsonl"):
            with suppress(OSError):
                times.append((self.path / name).stat().st_mtime)
        return max(times)

    def _read_updates(self) -> None:
        record = self._options["record"]
        every = {"all": 1, "none": 0}.get(record)
        every = int(record.partition(":")[2]) if every is None else every
        for tasks, update in self._updates.read():
            self._take(tasks, every)
            if update:
                self._version, self._update_t_s = update.version, update.t_s
                if update.version <= self._from_version:
                    self._done_before = self._share_done(self._gradients)
                self._last_loss = update.loss
                self._extra |= update.extra
                self._loss.add(self._update_t_s, self._gradients, update.loss)

    def _take(self, tasks: Sequence[RecordedTask], every: int) -> None:
        num_workers, shown = self._num_workers, len(self._workers)
        for task in tasks:
            number, staleness = task.worker, task.staleness
            busy_s = task.compute_s * every  # assume that what is not recorded is alike
            self._tasks += 1
            self._staleness_sum += staleness
            self._busy_s += busy_s
            self._gradients += task.batches * every
            if number < shown:
                worker = self._workers[number]
                worker.tasks += 1
                worker.busy_s += busy_s
                worker.staleness[bisect_left(STALENESS_BUCKETS, staleness)] += 1
                worker.staleness_sum += staleness
                worker.last.append((task.started_s, task.finished_s, task.compute_s))
            elif number >= num_workers:
                raise ValueError(f"{self.path}: worker {number} of {num_workers}")

    def view(self) -> dict[str, Any]:
        """Return what the page shows of the run, as plain values for JSON."""
        options, outcome = self._options, self._outcome
        evaluated = self._last_eval or _NOT_EVALUATED
        updates = outcome.updates if outcome else max(self._version, evaluated.version)
        gradients = outcome.gradients if outcome else max(self._gradients, evaluated.gradients)
        used = [k for worker in self._workers for k, n in enumerate(worker.staleness) if n] or [0]
        bins = range(min(used), max(used) + 1)
        clock_s = self._t_s
        return {
            "name": self.name,
            "mode": self.mode,
            "engine": options["engine"],
            "record": options["record"],
            "num_workers": options["num_workers"],
            "options": {name: _plain(value) for name, value in options.items() if name not in _NOT_SHOWN},
            "given": self._given,
            "note": self._note,
            "state": outcome.stopped_by if outcome else "running",
            "error": outcome.error if outcome else None,
            "updates": updates,
            "gradients": gradients,
            "budget": self._budget,
            "done": round(self._share_done(gradients), 4),
            "left_s": self._left_s(gradients),
            "took_s": round(self._passed_s, 1),
            "read": self._share_read(),
            "t_s": rounded(clock_s),
            "wrote_s": round(self._grew_s, 1),
            "train_loss": rounded(self._last_loss),
            "eval_loss": rounded(evaluated.loss),
            "accuracy": rounded(evaluated.accuracy),
            "score_name": self._score_name,
            "extra": {name: rounded(value) for name, value in self._extra.items()},
            "staleness": rounded(self._mean_staleness()),
            "idle": rounded(self._idle_share()),
            "gradients_per_s": self._rate(),
            "train": self._loss.columns(),
            "eval": self._eval_loss.columns(),
            "bins": [_bin_name(k) for k in bins],
            "workers": [self._worker(number, bins) for number in range(len(self._workers))],
            "over_workers": self._over_workers(),
            "timeline": self._timeline(),
            "faults": self._shown_faults(),
        }

    @property
    def _t_s(self) -> float:
        """Engine seconds that are known to have passed."""
        if self._outcome:
            return self._outcome.clock_s
        return max(self._update_t_s, self._last_eval.t_s if self._last_eval else 0.0)

    def _share_read(self) -> float | None:
        """Return how much of updates.jsonl has been read; None for all of it."""
        size = self._updates.size_bytes if self._updates.rest and not self._whole else 0
        return round(self._updates.read_bytes / size, 3) if size else None

    def _share_done(self, gradients: int) -> float:
        """Return how much of its budget a run has spent; while it runs also of its time, if more."""
        of_time = 0.0 if self._outcome else self._t_s / self._limit_s
        return min(1.0, max(gradients / self._budget, of_time))

    def _left_s(self, gradients: int) -> float | None:
        """Return the wall seconds that the run still takes at its rate so far, whichever clock it counts by.

        None if it has ended, or too little of it is known.
        """
        passed_s, done = self._passed_s, self._share_done(gradients)
        of_this_attempt = done - self._done_before
        if self._outcome or passed_s < 1 or of_this_attempt <= 0 or self._updates.rest:
            return None
        return round(passed_s * (1 - done) / of_this_attempt, 1)

    @property
    def _passed_s(self) -> float:
        """Return the wall seconds of this attempt: while it runs by its files' times, which a clock that is
        set moves.
        """
        known = self._outcome.wall_s if self._outcome else None
        return max(0.0, self._grew_s - self._began_s) if known is None else known

    def _mean_staleness(self) -> float | None:
        if self._outcome and self._outcome.staleness:
            return self._outcome.staleness_mean
        if not self._tasks or self._is_partial:
            return None
        return self._staleness_sum / self._tasks

    @property
    def _is_partial(self) -> bool:
        """Whether the run has ended and its updates have been read in part only: their means are not its."""
        return self._outcome is not None and not self._whole

    def _idle_share(self) -> float | None:
        """Return the mean over workers of the share of time that each did not compute."""
        outcome, clock_s, num_workers = self._outcome, self._t_s, self._num_workers
        if not clock_s:
            return 0.0 if self._tasks else None
        if outcome and (spread := outcome.over_workers.get("idle_s")):
            return spread.mean / clock_s
        if outcome and outcome.workers:
            return sum(worker.idle_s for worker in outcome.workers.values()) / num_workers / clock_s
        if not self._tasks or self._is_partial:
            return None
        return max(0.0, 1 - self._busy_s / num_workers / clock_s)

    def _worker(self, number: int, bins: range) -> dict[str, Any]:
        """Return what is shown of a worker."""
        worker, clock_s = self._workers[number], self._t_s
        totals = self._outcome.workers.get(number) if self._outcome else None
        idle = max(0.0, 1 - worker.busy_s / clock_s) if clock_s else 0.0
        if totals and clock_s:
            idle = totals.idle_s / clock_s
        return {
            "staleness": worker.staleness[bins.start : bins.stop],
            "mean": rounded(worker.staleness_sum / worker.tasks) if worker.tasks else None,
            "idle": rounded(idle) if totals or (self._tasks and not self._is_partial) else None,
        }

    def _over_workers(self) -> dict[str, Any] | None:
        """Return what the summary of a very large run says of its workers; None for other runs."""
        if not self._outcome or not self._outcome.over_workers:
            return None
        spreads = self._outcome.over_workers
        return {
            "slowest": list(self._outcome.workers),
            "quantiles": {
                name: [rounded(x) for x in (s.min, s.p05, s.p50, s.p95, s.max)] for name, s in spreads.items()
            },
        }

    def _shown_faults(self) -> dict[str, Any]:
        """Return how many faults there were, when and whom the last ones hit, and a few in words."""
        faults = sorted(self._faults, key=lambda fault: fault.t_s)
        return {
            "counts": self._fault_counts,
            "marks": [
                {"kind": f.kind, "workers": f.workers, "t_s": f.t_s, "over_s": f.over_s, "who": hit(f)}
                for f in faults
            ],
            "in_words": [
                {"t_s": f.t_s, "kind": f.kind, "who": hit(f), "text": f.text, "cost": cost(f)}
                for f in faults[: -_MOST_IN_WORDS - 1 : -1]
            ],
        }

    def _rate(self) -> float | None:
        """Return the mini-batches per engine second; during the run, over about its last tenth."""
        if self._outcome:
            clock_s = self._outcome.clock_s
            return rounded(self._outcome.gradients / clock_s) if clock_s else None
        points = self._loss.points or self._eval_loss.points
        if not points or not points[-1][0]:
            return None
        before = next((p for p in reversed(points) if p[0] <= 0.9 * points[-1][0]), (0.0, 0, None))
        return rounded((points[-1][1] - before[1]) / (points[-1][0] - before[0]))

    def _timeline(self) -> dict[str, Any]:
        """Return the tasks of the last engine seconds, about as many as 20 tasks of a worker take."""
        shown = [worker.last for worker in self._workers]
        lengths = sorted(finished - started for last in shown for started, finished, _ in last)
        span_s = 20 * lengths[len(lengths) // 2] if lengths else 0.0
        slowest_s = lengths[-1] if lengths else 0.0
        # Of an update that has been read in part, the tasks are known before its time is.
        to_s = max([self._update_t_s, *(finished for last in shown for _, finished, _ in last)])
        from_s = max(0.0, to_s - max(span_s, 3 * slowest_s))
        return {
            "from_s": from_s,
            "to_s": to_s,
            "tasks": [[task for task in last if task[1] > from_s] for last in shown],
        }


def _bin_name(k: int) -> str:
    """Return what staleness a bucket holds, like 5–8."""
    if k == len(STALENESS_BUCKETS):
        return f"> {STALENESS_BUCKETS[-1]:.0f}"
    low, high = (int(STALENESS_BUCKETS[k - 1]) + 1 if k else 0), int(STALENESS_BUCKETS[k])
    return str(high) if low == high else f"{low}–{high}"


def _limits(config: Mapping[str, Any]) -> tuple[int, int, float]:
    """Return the number of workers, the budget of mini-batches and the limit in engine seconds.

    Raises an error of NOT_A_RECORD if the options are not those of a run.
    """
    num_workers, steps, limit_s = (
        config["num_workers"],
        config["steps"],
        float(config.get("max_seconds", math.inf)),
    )
    if not (isinstance(num_workers, int) and isinstance(steps, int) and min(num_workers, steps, limit_s) > 0):
        raise ValueError("num_workers, steps and max_seconds must be numbers above 0")
    if config["engine"] not in ("ray", "sim") or not re.fullmatch(
        r"all|none|every:[1-9]\d*", config["record"]
    ):
        raise ValueError("engine or record is unknown")
    return num_workers, num_workers * steps, limit_s


def _given(config: Mapping[str, Any]) -> list[str]:
    """Return the options that differ from their defaults; those of a file of a user left out."""
    known = defaults(config)
    return [name for name, value in config.items() if name in known and value != known[name]]


def _plain(value: Any) -> Any:
    """Return an option's value as JSON can hold it: it has no infinity, and no dates."""
    is_finite = isinstance(value, float) and math.isfinite(value)
    return value if is_finite or value is None or isinstance(value, str | int) else str(value)


def _outcome(path: Path) -> BriefSummary | None:
    """Return how a run ended; its summary is written whole, and is there when the run has ended."""
    return read_brief_summary(path) if (path / "summary.json").exists() else None
