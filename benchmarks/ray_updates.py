"""What an update on Ray costs beyond Ray itself: 1,000 weights, 2 workers.

    python benchmarks/ray_updates.py

SSGD against a bare barrier (ray.get of one empty call an actor), ASGD against a bare loop (ray.wait for
one empty call, ray.get, call again). Both sides take turns in one process on one cluster, and the
medians of several turns are compared. The quadratic's gradient costs three small operations, so it shows
the suite's own cost; logistic regression on mini-batches of 32 adds that of a real gradient.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import ray

from dsgd.cluster.ray import RayCluster, connect
from dsgd.config import DataConfig
from dsgd.data import make_workload
from dsgd.metrics import Tally
from dsgd.strategies import load
from dsgd.work.optim import Weights

WORKERS, CALLS, TURNS = 2, 1500, 7


@ray.remote(num_cpus=0)
class Empty:
    """An actor that does nothing."""

    def call(self) -> None:
        return None


def barrier_s(actors: list[Any]) -> float:
    began_s = time.perf_counter()
    for _ in range(CALLS):
        ray.get([actor.call.remote() for actor in actors])
    return (time.perf_counter() - began_s) / CALLS


def wait_loop_s(actors: list[Any]) -> float:
    refs = {actor.call.remote(): actor for actor in actors}
    began_s = time.perf_counter()
    for _ in range(CALLS):
        (ref,), _ = ray.wait(list(refs), num_returns=1)
        actor = refs.pop(ref)
        ray.get(ref)
        refs[actor.call.remote()] = actor
    took_s = (time.perf_counter() - began_s) / CALLS
    ray.get(list(refs))
    return took_s


def update_s(mode: str, data: DataConfig) -> float:
    strategy = load(mode)
    cfg = strategy.Config(mode=mode, num_workers=WORKERS, steps=10**6, data=data)
    workload = make_workload(cfg)
    tally = Tally(WORKERS, cfg.batch_size)
    with RayCluster(cfg, workload) as cluster:
        w = Weights(workload.objective.initial_weights(0))
        for n, update in enumerate(strategy.train(cluster, w, cfg)):
            tally.add(update)
            if n == 200:
                began_s = time.perf_counter()
            if n == 200 + CALLS:
                return (time.perf_counter() - began_s) / CALLS
    raise AssertionError


def compare(name: str, mode: str, data: DataConfig, bare: Any, actors: list[Any]) -> None:
    bare(actors)
    turns = [(bare(actors), update_s(mode, data)) for _ in range(TURNS)]
    bare_s, ours_s = (statistics.median(column) for column in zip(*turns, strict=True))
    print(
        f"{mode}, {data.dataset:9}: {ours_s * 1e3:.2f} ms an update ({1 / ours_s:,.0f}/s), "
        f"{name} {bare_s * 1e3:.2f} ms ({1 / bare_s:,.0f}/s): "
        f"{ours_s / bare_s:.2f} x the time, {bare_s / ours_s:.2f} x the rate"
    )


if __name__ == "__main__":
    connect()
    actors = [Empty.remote() for _ in range(WORKERS)]  # type: ignore[attr-defined]
    for data in (DataConfig(dataset="quadratic", dim=1000), DataConfig(model="logistic", dim=999)):
        compare("bare barrier", "ssgd", data, barrier_s, actors)
        compare("bare ray.wait loop", "asgd", data, wait_loop_s, actors)
    ray.shutdown()
