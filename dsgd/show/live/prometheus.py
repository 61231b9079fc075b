"""What Prometheus gets of a run: the families of the table of quantities, counted as the updates come.

`RunMetrics` counts one run; `RunsCollector` gives the metrics of all runs of this process to a registry of
prometheus_client. docs/observing.md explains each.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.model import Evaluation
from dsgd.core.protocol import Engine, Update
from dsgd.core.routing import ExpertUse
from dsgd.engines.ray.worker.captured_output import memory_bytes
from dsgd.metrics import Tally, families
from dsgd.scenario.fault import Kind
from dsgd.show.live.run_now import NormNow, step_size

if TYPE_CHECKING:
    from prometheus_client.core import Metric

STALENESS_BUCKETS = (0.0, *(2.0**k for k in range(13)))
"""Upper bounds, in updates: 0, 1, 2, 4, … 4096."""

SECONDS_BUCKETS = tuple(float(f"{digit}e{k}") for k in range(-4, 3) for digit in (1, 2, 5))
"""Upper bounds, in seconds: from 0.1 ms, a small gradient, to 500 s, a long round."""

_MOST_FINISHED = 16  # runs whose last values are kept

_Histogram: TypeAlias = tuple[list[tuple[str, float]], float]  # cumulative counts by upper bound, and the sum


class _Counts:
    """A histogram as it is counted: one number per bucket, and the exact sum."""

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


class RunMetrics:
    """What Prometheus gets of one run; `samples` may be called from another thread than the rest.

    Plain numbers and one lock per update, not a prometheus_client counter for each: a scrape sees whole
    updates only, sums are exact, and an update costs a few microseconds.
    Its public attributes are what a family of the table of quantities may read.
    tally: counts the same updates, each of them before it is added here. info: labels of dsgd_run_info.
    staleness_bound: in updates, None without one. began_s: seconds of `time.monotonic` when its workers were
    asked for; they are ready now.
    """

    def __init__(
        self,
        mode: str,
        run_id: str,
        info: Mapping[str, str],
        cluster: Engine,
        tally: Tally,
        staleness_bound: float | None = None,
        cfg: TrainConfig | None = None,
        began_s: float | None = None,
    ) -> None:
        self.labels = (mode, run_id)
        self.active = True
        self.info = dict(info)
        # A run that goes on has taken time, of which this process has seen nothing.
        self._since_s, self._cancelled_s = tally.last_update_s, [*cluster.cancelled_s]
        self.gradients = [0 for _ in cluster.workers]
        self.staleness = [_Counts(STALENESS_BUCKETS) for _ in cluster.workers]
        self.compute_s = [_Counts(SECONDS_BUCKETS) for _ in cluster.workers]
        self.wait_s = [_Counts(SECONDS_BUCKETS) for _ in cluster.workers]
        self.update_s = _Counts(SECONDS_BUCKETS)
        self.restarts = cluster.restarts
        # All kinds from the start, at 0: otherwise Prometheus would see no increase at the first fault.
        self.faults = dict.fromkeys(get_args(Kind), 0) | tally.faults
        self.repeated = tally.repeated
        self.recovery_s = _Counts(SECONDS_BUCKETS)
        for recovery_s in tally.recovery_s:
            self.recovery_s.observe(recovery_s)
        self.staleness_max, self.staleness_bound = max(tally.staleness_counts, default=0), staleness_bound
        self.extra = {name: seen.last for name, seen in tally.extra.items()}
        self.eval_loss: float | None = None
        self.eval_accuracy: float | None = None
        self.experts: ExpertUse | None = None
        self.last_update_epoch_s: float | None = None
        self._began_s = time.monotonic() if began_s is None else began_s
        self.startup_s = {"workers": time.monotonic() - self._began_s}
        self.exchange_s = [0.0 for _ in cluster.workers]
        self._last_learning_rate: float | None = None
        self._samples_per_s: float | None = None
        self._tokens_per_s: float | None = None
        self._cfg, self._norm = cfg, NormNow(cfg) if cfg else None
        self._lock = threading.Lock()
        self._tally, self._cluster = tally, cluster
        self._families = families()
        names = [family.reads for family in self._families.values()]
        self._counted_names = [name for name in names if name.startswith("tally.")]
        self._traffic_reads = [name for name in names if name.startswith("traffic.")]
        self._expert_reads = [name for name in names if name.startswith("experts.")]
        self._traffic = cluster.traffic
        self._count = attrgetter(*(name.removeprefix("tally.") for name in self._counted_names))
        self._counted = self._count(tally)  # after the last update: the tally itself goes on without the lock
        self._means = tally.means

    def add(self, update: Update) -> None:
        """Count an update, which `tally` has counted just before."""
        tally, in_flight, cancelled_s = self._tally, self._cluster.in_flight, self._cluster.cancelled_s
        gradients, staleness = self.gradients, self.staleness
        compute_s, wait_s, exchange_s = self.compute_s, self.wait_s, self.exchange_s
        now_s = update.finished_s
        if self._norm:
            self._norm.look(update)
        with self._lock:
            for done in update.dones:
                worker = done.worker
                gradients[worker] += done.batches
                updates = update.staleness(done)
                staleness[worker].observe(updates)
                if updates > self.staleness_max:
                    self.staleness_max = updates
                compute_s[worker].observe(done.compute_s)
                travelled_s = done.finished_s - done.started_s - done.compute_s
                exchange_s[worker] += max(0.0, travelled_s)  # a counter never falls
            for done in update.ignored:
                compute_s[done.worker].observe(done.compute_s)
            # A worker may have several tasks in one update: the wait after them belongs to the last.
            came_in = [*update.ignored, *update.dones] if update.ignored else update.dones
            last = {done.worker: done for done in came_in} if len(came_in) > 1 else {}
            for done in came_in:
                worker = done.worker
                until_s = done.finished_s
                if not last or last[worker] is done:  # until it got its next task, or the barrier opened
                    until_s = min(now_s, in_flight.get(worker, now_s))
                # All of a worker's time is computing, computing that was cancelled, or waiting.
                since_s = self._since_s + compute_s[worker].sum + wait_s[worker].sum
                rest_s = until_s - since_s - (cancelled_s[worker] - self._cancelled_s[worker])
                wait_s[worker].observe(rest_s if rest_s > 0.0 else 0.0)
            self.update_s.observe(now_s - self._since_s - self.update_s.sum)
            self.update_s.sum = now_s - self._since_s  # equal up to rounding
            self._counted = self._count(tally)
            if now_s > 0.0:
                self._samples_per_s = tally.samples / now_s
                self._tokens_per_s = None if tally.tokens is None else tally.tokens / now_s
            if tally.has_means:
                self._means = tally.means
            if update.extra:
                self.extra |= update.extra
            if self.last_update_epoch_s is None:
                self.startup_s["first_update"] = time.monotonic() - self._began_s
            self.last_update_epoch_s = time.time()  # noqa: TID251 - a label

    def evaluated(self, found: Evaluation) -> None:
        """Take the values of an evaluation."""
        with self._lock:
            self.eval_loss, self.eval_accuracy, self.experts = found.loss, found.accuracy, found.experts

    def fault(self, fault: FaultSeen) -> None:
        """Count a fault that is over, or that the run ends in."""
        with self._lock:
            self.faults[fault.kind] = self.faults.get(fault.kind, 0) + 1
            self.repeated += fault.repeated
            if (recovery_s := fault.to_recover_s) is not None:
                self.recovery_s.observe(recovery_s)

    def finish(self) -> None:
        """Say that the run is over, and let go of its cluster."""
        with self._lock:
            self._last_learning_rate = self.learning_rate
            self.active = False
            self.restarts, self._traffic = tuple(self.restarts), self._cluster.traffic
            del self._cluster, self._tally

    @property
    def samples_per_s(self) -> Mapping[str, float | None]:
        """By the experiment's name: samples applied per engine second so far."""
        return {self.info.get("experiment", ""): self._samples_per_s}

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens applied per engine second so far; None for what is no language model."""
        return self._tokens_per_s

    @property
    def loss_of_experiment(self) -> Mapping[str, float | None]:
        """By the experiment's name: the loss of the last evaluation."""
        return {self.info.get("experiment", ""): self.eval_loss}

    @property
    def gradient_norm(self) -> float | None:
        """Of an update of the last second."""
        return self._norm.value if self._norm else None

    @property
    def learning_rate(self) -> float | None:
        """At this point of the run."""
        if not self.active:
            return self._last_learning_rate
        return step_size(self._cfg, self._tally) if self._cfg else None

    @property
    def tasks_in_flight(self) -> int:
        """Now; none when the run is over."""
        return len(self._cluster.in_flight) if self.active else 0

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        """By process; the driver's alone when the run is over."""
        hosts = self._cluster.memory_bytes if self.active else {}
        return {"driver": memory_bytes(), **hosts}

    def samples(self) -> Iterator[tuple[str, tuple[str, ...], Any]]:
        """Return each value as (name of the family, label values after mode and run_id, value).

        The value of a histogram is a _Histogram, that of dsgd_run_info its labels.
        """
        with self._lock:
            return iter([*self._samples()])

    def _samples(self) -> Iterator[tuple[str, tuple[str, ...], Any]]:
        counted = dict(zip(self._counted_names, self._counted, strict=True))
        counted |= {f"means.{name}": value for name, value in self._means.items()}
        traffic = self._cluster.traffic if self.active else self._traffic
        counted |= {reads: getattr(traffic, reads[len("traffic.") :]) for reads in self._traffic_reads}
        counted |= {reads: self._of_experts(reads) for reads in self._expert_reads}
        for name, family in self._families.items():
            value = counted[family.reads] if family.reads in counted else getattr(self, family.reads)
            by_label: Iterable[tuple[Any, Any]] = [((), value)]
            if family.labels and family.kind != "info":
                by_label = value.items() if isinstance(value, Mapping) else enumerate(value or ())
                by_label = (
                    (label if isinstance(label, tuple) else (str(label),), x) for label, x in by_label
                )
            for labels, x in by_label:
                if x is not None:
                    yield name, labels, x.cumulative() if isinstance(x, _Counts) else x

    def _of_experts(self, reads: str) -> Any:
        """Return a number, or a mapping from labels, of the last evaluation; None without experts."""
        return None if self.experts is None else getattr(self.experts, reads.removeprefix("experts."))


class RunsCollector:
    """The metrics of this process's runs: the current one, and the last few that have ended."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], RunMetrics] = {}

    def add(self, run: RunMetrics) -> None:
        """Show a run from now on, and no longer those that ended long ago."""
        runs = self._runs | {run.labels: run}
        finished = [labels for labels, run in runs.items() if not run.active]
        for labels in finished[:-_MOST_FINISHED]:
            del runs[labels]
        self._runs = runs  # a scrape that is being written holds the one before

    @property
    def active(self) -> bool:
        """Whether a run is under way."""
        return any(run.active for run in self._runs.values())

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
        found = {}
        for name, family in families().items():
            labels = ("mode", "run_id", *(family.labels if family.kind != "info" else ()))
            found[name] = kinds[family.kind](name.removesuffix("_info"), family.text, labels=labels)
        for run in self._runs.values():
            for name, labels, value in run.samples():
                values = value if isinstance(value, tuple) else (value,)
                found[name].add_metric((*run.labels, *labels), *values)
        return found.values()
