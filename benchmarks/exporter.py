"""What exporting metrics costs an update on Ray, and a scrape the driver.

    python benchmarks/exporter.py

An update on Ray (logistic regression, mini-batches of 32, 1,000 weights, 4 workers) is timed without it;
what the exporter adds to it is timed by itself, on the updates of that run, because one percent of an update
is less than updates differ by. To be fair, the update's time is the fastest of several turns,
the exporter's the median. The time to write out a scrape is given too.
"""

from __future__ import annotations

import math
import statistics
import time

import ray
from prometheus_client import CollectorRegistry, generate_latest

from dsgd.config import DataConfig
from dsgd.core.protocol import Engine, Update
from dsgd.engines.ray.connection.connect import connect
from dsgd.metrics import Tally
from dsgd.running.execute import execute
from dsgd.running.keeper import Watcher
from dsgd.show.live.prometheus import RunMetrics, RunsCollector
from dsgd.strategies import load

WORKERS, FIRST, UPDATES, TURNS = 4, 200, 1500, 7


class Timer(Watcher):
    """Keeps the updates and their arrival times, except the first FIRST."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.began_s = 0.0

    def updated(self, update: Update) -> None:
        self.updates.append(update)
        if len(self.updates) == FIRST:
            self.began_s = time.perf_counter()
        if len(self.updates) == FIRST + UPDATES:
            self.update_s = (time.perf_counter() - self.began_s) / UPDATES


def updates_on_ray(mode: str) -> tuple[float, list[Update], Engine]:
    """Return the seconds of an update, the updates, and the cluster that made them."""
    gradients_per_update = WORKERS if mode == "ssgd" else 1
    steps = math.ceil((FIRST + UPDATES) * gradients_per_update / WORKERS)
    data, timer = DataConfig(hidden="none", dim=999), Timer()
    ended = execute(
        load(mode).Config(mode=mode, num_workers=WORKERS, steps=steps, data=data), [timer], evaluate=False
    )
    assert not ended.error, ended.error
    return timer.update_s, timer.updates, ended.cluster


def exporter_s(updates: list[Update], cluster: Engine) -> tuple[float, RunMetrics]:
    """Return the seconds (of a core) that the exporter adds to an update, and what it counted."""
    tally = Tally(WORKERS, 32, cluster.clocks)
    metrics = RunMetrics("mode", "run", {}, cluster, tally)
    began_s = time.process_time()
    for update in updates:
        metrics.add(update)
    return (time.process_time() - began_s) / len(updates), metrics


if __name__ == "__main__":
    connect()
    for mode in ("ssgd", "asgd"):
        turns = [updates_on_ray(mode) for _ in range(TURNS)]
        update_s = min(turn[0] for turn in turns)
        added_s = statistics.median(exporter_s(updates, cluster)[0] for _, updates, cluster in turns)
        print(
            f"{mode}: {update_s * 1e3:.2f} ms an update, the exporter adds {added_s * 1e6:.1f} µs: "
            f"{added_s / update_s:.2%}"
        )
    registry, runs = CollectorRegistry(), RunsCollector()
    registry.register(runs)
    runs.add(exporter_s(turns[0][1], turns[0][2])[1])
    began_s = time.process_time()
    for _ in range(50):
        text = generate_latest(registry)
    scrape_s = (time.process_time() - began_s) / 50
    print(f"a scrape of {WORKERS} workers: {scrape_s * 1e3:.1f} ms, {len(text) / 1e3:.0f} kB")
    ray.shutdown()
