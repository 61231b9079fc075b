"""What exporting metrics costs an update on Ray, and a scrape the driver.

    python benchmarks/exporter.py

An update on Ray (logistic regression, mini-batches of 32, 1,000 weights, 4 workers) is timed without it;
what the exporter adds to it is timed by itself, on the updates of that run, because one percent of an update
is less than updates differ by. To be fair, the fastest of several turns stands for the update, the median for
the exporter. The time to write out a scrape is given beside it.
"""

from __future__ import annotations

import statistics
import time

import ray
from prometheus_client import CollectorRegistry, generate_latest

from dsgd.cluster import Engine, Update
from dsgd.cluster.ray import RayCluster, connect
from dsgd.config import DataConfig
from dsgd.data import make_workload
from dsgd.live.prometheus import RunMetrics, RunsCollector
from dsgd.metrics import Tally
from dsgd.strategies import load
from dsgd.work.optim import Weights

WORKERS, UPDATES, TURNS = 4, 1500, 7


def updates_on_ray(mode: str) -> tuple[float, list[Update], Engine]:
    """Return the seconds of an update, the updates, and the cluster that made them."""
    strategy = load(mode)
    cfg = strategy.Config(
        mode=mode, num_workers=WORKERS, steps=10**6, data=DataConfig(model="logistic", dim=999)
    )
    workload, updates = make_workload(cfg), list[Update]()
    tally = Tally(WORKERS, cfg.batch_size)
    with RayCluster(cfg, workload) as cluster:
        for update in strategy.train(cluster, Weights(workload.objective.initial_weights(0)), cfg):
            tally.add(update)
            updates.append(update)
            if len(updates) == 200:
                began_s = time.perf_counter()
            if len(updates) == 200 + UPDATES:
                return (time.perf_counter() - began_s) / UPDATES, updates, cluster
    raise AssertionError


def exporter_s(updates: list[Update], cluster: Engine) -> tuple[float, RunMetrics]:
    """Return the seconds (of a core) that the exporter adds to an update, and what it counted."""
    tally = Tally(WORKERS, 32)
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
