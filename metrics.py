"""What is measured of a run, from the strategy's updates, which main.py hands over one by one.

`Tally` counts them for the summary, `RunMetrics` for Prometheus; `RunsCollector` gives the metrics of all
runs of this process to a registry of prometheus_client. docs/observing.md explains each.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dsgd.cluster import Cluster, Update
from dsgd.cluster.clocks import Clocks

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Tally:
    """Counts over the updates of a run, in memory, in constant time per gradient."""

    def __init__(self, num_workers: int, samples_per_batch: int) -> None:
        self.updates = 0
        self.gradients = 0
        """Mini-batches whose results have been applied."""
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.last_update_s = 0.0
        self.staleness_counts: dict[int, int] = {}
        self.clock_gap_max = 0
        self.bytes_to_workers = self.bytes_to_server = 0
        self._samples_per_batch = samples_per_batch
        self._clocks = Clocks(num_workers)
        self._tasks = [0] * num_workers
        self._staleness_sums = [0] * num_workers
        self._busy_s = [0.0] * num_workers
        self._drift_sum, self._drifts = 0.0, 0
        self._ignored = 0

    def add(self, update: Update) -> None:
        applied_to = update.weights.version - 1
        loss_sum: float | None = 0.0
        for done in update.dones:
            worker = done.worker
            staleness = applied_to - done.read  # as in Update.staleness, without the call
            self.staleness_counts[staleness] = self.staleness_counts.get(staleness, 0) + 1
            self._staleness_sums[worker] += staleness
            self._tasks[worker] += 1
            self._busy_s[worker] += done.compute_s
            self.bytes_to_workers += done.bytes_to_worker
            self.bytes_to_server += done.bytes_to_server
            self.gradients += done.batches
            self._clocks.tick(worker, done.batches)
            loss_sum = None if done.loss is None or loss_sum is None else loss_sum + done.loss
        for done in update.ignored:  # the work was done, though for nothing
            self._ignored += done.batches
            self._busy_s[done.worker] += done.compute_s
            self.bytes_to_workers += done.bytes_to_worker
            self.bytes_to_server += done.bytes_to_server
            self._clocks.tick(done.worker, done.batches)
        self.updates += 1
        self.last_update_s = update.finished_s
        if self._clocks.gap > self.clock_gap_max:
            self.clock_gap_max = self._clocks.gap
        if loss_sum is not None:
            self.last_loss = loss_sum / len(update.dones)
            if self.first_loss is None:
                self.first_loss = self.last_loss
        if update.drift is not None:
            self._drift_sum += update.drift
            self._drifts += 1

    @property
    def samples(self) -> int:
        return self.gradients * self._samples_per_batch

    @property
    def bytes(self) -> int:
        """Bytes that have travelled, both ways, for tasks that came back."""
        return self.bytes_to_workers + self.bytes_to_server

    @property
    def clock_gap(self) -> int:
        """Fastest minus slowest clock after the last update, in mini-batches."""
        return self._clocks.gap

    @property
    def drift(self) -> float | None:
        """Mean of the updates' drift; None without any."""
        return self._drift_sum / self._drifts if self._drifts else None

    @property
    def staleness_mean(self) -> float:
        """Mean over all gradients, in updates; 0 before the first."""
        return sum(self._staleness_sums) / max(1, sum(self._tasks))

    def summary(self, cluster: Cluster) -> dict[str, Any]:
        """Return the counted part of summary.json; `cluster` adds what no update tells."""
        clock_s = self.last_update_s
        # A worker that still computes, or whose task was cancelled, was not idle meanwhile.
        busy_s = [
            min(clock_s, busy + cancelled_s + max(0.0, clock_s - cluster.in_flight.get(worker, math.inf)))
            for worker, (busy, cancelled_s) in enumerate(zip(self._busy_s, cluster.cancelled_s, strict=True))
        ]
        return {
            "updates": self.updates,
            "gradients": self.gradients,
            "samples": self.samples,
            "clock_s": clock_s,
            "loss": {"first": finite(self.first_loss), "last": finite(self.last_loss)},
            "staleness": {
                **_distribution(self.staleness_counts),
                "by_worker": {
                    str(worker): total / tasks
                    for worker, (total, tasks) in enumerate(
                        zip(self._staleness_sums, self._tasks, strict=True)
                    )
                    if tasks
                },
            },
            "clock_gap_max": self.clock_gap_max,
            "drift": finite(self.drift),
            "workers": {
                str(worker): {
                    "steps": self._clocks[worker],
                    "busy_s": busy,
                    "idle_s": clock_s - busy,
                    "restarts": cluster.restarts[worker],
                }
                for worker, busy in enumerate(busy_s)
            },
            "wasted": {"ignored": self._ignored, "cancelled": sum(cluster.cancelled)},
            "bytes": {"to_workers": self.bytes_to_workers, "to_server": self.bytes_to_server},
        }


def _distribution(counts: Mapping[int, int]) -> dict[str, Any]:
    """Return mean, quantiles, maximum and counts of a distribution given as value -> count."""
    values = sorted(counts)
    total = sum(counts.values())

    def quantile(q: float) -> int | None:
        reached = 0
        for value in values:
            reached += counts[value]
            if reached >= q * total:
                return value
        return None

    return {
        "mean": sum(value * counts[value] for value in values) / total if total else None,
        "p50": quantile(0.50),
        "p95": quantile(0.95),
        "max": values[-1] if values else None,
        "counts": {str(value): counts[value] for value in values},
    }


def finite(x: float | None) -> float | None:
    """JSON has no NaN and no infinity: a loss that is neither number becomes null."""
    return float(x) if x is not None and math.isfinite(x) else None


STALENESS_BUCKETS = (0.0, *(2.0**k for k in range(13)))
"""Upper bounds, in updates: 0, 1, 2, 4, … 4096."""

SECONDS_BUCKETS = tuple(float(f"{digit}e{k}") for k in range(-4, 3) for digit in (1, 2, 5))
"""Upper bounds, in seconds: from 0.1 ms, a small gradient, to 500 s, a long round."""

_MOST_FINISHED = 16  # runs whose last values are kept


class Family(NamedTuple):
    """A metric as Prometheus knows it; all have the labels mode and run_id too."""

    kind: str
    text: str
    labels: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "dsgd_run_info": Family(
        "info", "1: what the run is.", ("engine", "num_workers", "dataset", "git_commit", "version")
    ),
    "dsgd_run_active": Family("gauge", "1 while the run takes updates, 0 once it has ended."),
    "dsgd_updates_total": Family("counter", "Updates applied to the weights."),
    "dsgd_gradients_total": Family("counter", "Mini-batches of a worker that were applied.", ("worker",)),
    "dsgd_samples_total": Family("counter", "Training samples in the applied mini-batches."),
    "dsgd_staleness_updates": Family(
        "histogram",
        "Updates between reading and applying, per applied task; its own not counted.",
        ("worker",),
    ),
    "dsgd_staleness_max_updates": Family("gauge", "The largest staleness so far."),
    "dsgd_staleness_bound_updates": Family(
        "gauge", "What the staleness never exceeds in this mode with these options, where theory has a bound."
    ),
    "dsgd_clock_gap_steps": Family(
        "gauge", "Mini-batches between the fastest and the slowest worker after the last update."
    ),
    "dsgd_train_loss": Family("gauge", "Mean mini-batch loss of the last update's tasks."),
    "dsgd_eval_loss": Family("gauge", "Loss on held-out samples at the last evaluation."),
    "dsgd_eval_accuracy": Family("gauge", "Share of held-out samples that were right, 0 to 1."),
    "dsgd_update_seconds": Family("histogram", "Engine seconds from one update to the next."),
    "dsgd_compute_seconds": Family(
        "histogram", "Engine seconds a worker computed, or slept as a straggler, per task.", ("worker",)
    ),
    "dsgd_wait_seconds": Family(
        "histogram",
        "Engine seconds a worker did not compute, per task: transfer, and idle after it.",
        ("worker",),
    ),
    "dsgd_bytes_total": Family("counter", "Bytes that travelled for tasks that came back.", ("direction",)),
    "dsgd_localsgd_drift": Family(
        "gauge", "Distance of the workers' weights to their average, the mean over the updates so far."
    ),
    "dsgd_worker_restarts_total": Family(
        "counter", "How often a worker was lost and started again.", ("worker",)
    ),
    "dsgd_last_update_timestamp_seconds": Family("gauge", "Wall time of the last update, since 1970."),
}

_Histogram: TypeAlias = tuple[list[tuple[str, float]], float]  # cumulative counts by upper bound, and the sum


class _Counts:
    """A histogram as it is counted: one number a bucket, and the exact sum."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, x: float) -> None:
        self._counts[bisect_left(self._bounds, x)] += 1
        self.sum += x

    def cumulative(self) -> _Histogram:
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == math.inf else repr(bound), float(total)))
        return buckets, self.sum


class _WorkerMetrics:
    """What is counted of one worker."""

    __slots__ = ("compute_s", "gradients", "staleness", "wait_s")

    def __init__(self) -> None:
        self.gradients = 0
        self.staleness = _Counts(STALENESS_BUCKETS)
        self.compute_s = _Counts(SECONDS_BUCKETS)
        self.wait_s = _Counts(SECONDS_BUCKETS)


class RunMetrics:
    """What Prometheus is told of one run; `samples` may be called from another thread than the rest.

    Plain numbers and one lock an update, not a prometheus_client counter for each: a scrape sees whole
    updates only, sums are exact, and an update costs a few microseconds (benchmarks/exporter.py).
    tally: counts the same updates, each of them before it is added here. info: labels of dsgd_run_info.
    staleness_bound: in updates, None without one.
    """

    def __init__(
        self,
        mode: str,
        run_id: str,
        info: Mapping[str, str],
        cluster: Cluster,
        tally: Tally,
        staleness_bound: float | None = None,
    ) -> None:
        self.labels = (mode, run_id)
        self.active = True
        self._info = dict(info)
        self._lock = threading.Lock()
        self._workers = [_WorkerMetrics() for _ in cluster.workers]
        self._update_s = _Counts(SECONDS_BUCKETS)
        self._tally, self._cluster = tally, cluster
        self._restarts = cluster.restarts
        self._counted = (0, 0, 0, 0, 0)
        self._staleness_max, self._staleness_bound = 0, staleness_bound
        self._losses: dict[str, float | None] = {}
        self._last_update_epoch_s: float | None = None

    def add(self, update: Update) -> None:
        """Count an update, which `tally` has counted just before."""
        tally, in_flight, cancelled_s = self._tally, self._cluster.in_flight, self._cluster.cancelled_s
        workers, applied_to = self._workers, update.weights.version - 1
        now_s = update.finished_s
        with self._lock:
            for done in update.dones:
                counted = workers[done.worker]
                counted.gradients += done.batches
                staleness = applied_to - done.read
                counted.staleness.observe(staleness)
                if staleness > self._staleness_max:
                    self._staleness_max = staleness
                counted.compute_s.observe(done.compute_s)
            for done in update.ignored:
                workers[done.worker].compute_s.observe(done.compute_s)
            # A worker may have several tasks in one update: what it waited after them belongs to the last.
            came_in = [*update.ignored, *update.dones] if update.ignored else update.dones
            last = {done.worker: done for done in came_in} if len(came_in) > 1 else {}
            for done in came_in:
                worker = done.worker
                counted = workers[worker]
                until_s = done.finished_s
                if not last or last[worker] is done:  # until it got its next task, or the barrier fell
                    until_s = min(now_s, in_flight.get(worker, now_s))
                wait_s = until_s - counted.compute_s.sum - cancelled_s[worker] - counted.wait_s.sum
                counted.wait_s.observe(wait_s if wait_s > 0.0 else 0.0)
            self._update_s.observe(now_s - self._update_s.sum)
            self._update_s.sum = now_s  # what it is but for rounding
            self._counted = (
                tally.updates,
                tally.samples,
                tally.clock_gap,
                tally.bytes_to_workers,
                tally.bytes_to_server,
            )
            self._losses["dsgd_train_loss"] = tally.last_loss
            self._losses["dsgd_localsgd_drift"] = tally.drift
            self._last_update_epoch_s = time.time()

    def evaluated(self, loss: float, accuracy: float | None) -> None:
        """Take the values of an evaluation."""
        with self._lock:
            self._losses["dsgd_eval_loss"] = loss
            self._losses["dsgd_eval_accuracy"] = accuracy

    def finish(self) -> None:
        """Say that the run is over, and let go of its cluster."""
        with self._lock:
            self.active = False
            self._restarts = tuple(self._restarts)
            del self._cluster, self._tally

    def samples(self) -> Iterator[tuple[str, tuple[str, ...], Any]]:
        """Return each value as (name of the family, label values after mode and run_id, value).

        The value of a histogram is a _Histogram, that of dsgd_run_info its labels.
        """
        with self._lock:
            return iter([*self._samples()])

    def _samples(self) -> Iterator[tuple[str, tuple[str, ...], Any]]:
        updates, samples, clock_gap, to_workers, to_server = self._counted
        yield "dsgd_run_info", (), self._info
        yield "dsgd_run_active", (), int(self.active)
        yield "dsgd_updates_total", (), updates
        yield "dsgd_samples_total", (), samples
        yield "dsgd_staleness_max_updates", (), self._staleness_max
        if self._staleness_bound is not None:
            yield "dsgd_staleness_bound_updates", (), self._staleness_bound
        yield "dsgd_clock_gap_steps", (), clock_gap
        yield "dsgd_update_seconds", (), self._update_s.cumulative()
        yield "dsgd_bytes_total", ("to_workers",), to_workers
        yield "dsgd_bytes_total", ("to_server",), to_server
        for name, value in self._losses.items():
            if value is not None:
                yield name, (), value
        if self._last_update_epoch_s is not None:
            yield "dsgd_last_update_timestamp_seconds", (), self._last_update_epoch_s
        for number, counted in enumerate(self._workers):
            worker = (str(number),)
            yield "dsgd_gradients_total", worker, counted.gradients
            yield "dsgd_staleness_updates", worker, counted.staleness.cumulative()
            yield "dsgd_compute_seconds", worker, counted.compute_s.cumulative()
            yield "dsgd_wait_seconds", worker, counted.wait_s.cumulative()
            yield "dsgd_worker_restarts_total", worker, self._restarts[number]


class RunsCollector:
    """The metrics of this process's runs: the one that goes on, and the last few that have ended."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], RunMetrics] = {}

    def add(self, run: RunMetrics) -> None:
        """Show a run from now on, and no longer those that ended long ago."""
        runs = self._runs | {run.labels: run}
        finished = [labels for labels, run in runs.items() if not run.active]
        for labels in finished[:-_MOST_FINISHED]:
            del runs[labels]
        self._runs = runs  # a scrape that is being written holds the one before

    def collect(self) -> Iterable[Metric]:
        """Return all families, for a registry of prometheus_client."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        kinds: Mapping[str, Any] = {
            "counter": CounterMetricFamily,
            "gauge": GaugeMetricFamily,
            "histogram": HistogramMetricFamily,
            "info": InfoMetricFamily,
        }
        families = {}
        for name, family in FAMILIES.items():
            labels = ("mode", "run_id", *(family.labels if family.kind != "info" else ()))
            families[name] = kinds[family.kind](name.removesuffix("_info"), family.text, labels=labels)
        for run in self._runs.values():
            for name, labels, value in run.samples():
                values = value if isinstance(value, tuple) else (value,)
                families[name].add_metric((*run.labels, *labels), *values)
        return families.values()
