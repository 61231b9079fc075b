"""What is measured of a run: `Tally` counts the strategy's updates, which main.py feeds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cluster import Cluster, Update
from cluster.clocks import Clocks


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
        self._samples_per_batch = samples_per_batch
        self._clocks = Clocks(num_workers)
        self._tasks = [0] * num_workers
        self._staleness_sums = [0] * num_workers
        self._busy_s = [0.0] * num_workers
        self._bytes_to_workers = self._bytes_to_server = 0
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
            self._bytes_to_workers += done.bytes_to_worker
            self._bytes_to_server += done.bytes_to_server
            self.gradients += done.batches
            self._clocks.tick(worker, done.batches)
            loss_sum = None if done.loss is None or loss_sum is None else loss_sum + done.loss
        for done in update.ignored:  # the work was done, though for nothing
            self._ignored += done.batches
            self._busy_s[done.worker] += done.compute_s
            self._bytes_to_workers += done.bytes_to_worker
            self._bytes_to_server += done.bytes_to_server
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
        return self._bytes_to_workers + self._bytes_to_server

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
            "drift": finite(self._drift_sum / self._drifts) if self._drifts else None,
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
            "bytes": {"to_workers": self._bytes_to_workers, "to_server": self._bytes_to_server},
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
    return x if x is not None and math.isfinite(x) else None
