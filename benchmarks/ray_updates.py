"""What an update on Ray costs beyond Ray itself: 1,000 weights, 2 workers.

    python benchmarks/ray_updates.py

SSGD against a bare barrier (ray.get of one empty call an actor), ASGD against a bare loop (ray.wait for
one empty call, ray.get, call again). Both sides take turns in one process on one cluster, and the
medians of several turns are compared. The quadratic's gradient costs three small operations, so it shows
the suite's own cost; logistic regression on mini-batches of 32 adds that of a real gradient.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import ray

from dsgd.cluster import Update
from dsgd.cluster.ray_connection import connect
from dsgd.config import DataConfig
from dsgd.execution.execute import Watcher, execute
from dsgd.strategies import load

WORKERS, FIRST, CALLS, TURNS = 2, 200, 1500, 7


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


class Timer(Watcher):
    """Notes the arrival times of updates, except the first FIRST."""

    def __init__(self) -> None:
        self._count, self.began_s = 0, 0.0

    def updated(self, update: Update) -> None:
        self._count += 1
        if self._count == FIRST:
            self.began_s = time.perf_counter()
        if self._count == FIRST + CALLS:
            self.update_s = (time.perf_counter() - self.began_s) / CALLS


def update_s(mode: str, data: DataConfig) -> float:
    gradients_per_update = WORKERS if mode == "ssgd" else 1
    steps = math.ceil((FIRST + CALLS) * gradients_per_update / WORKERS)
    timer = Timer()
    ended = execute(
        load(mode).Config(mode=mode, num_workers=WORKERS, steps=steps, data=data), [timer], evaluate=False
    )
    assert not ended.error, ended.error
    return timer.update_s


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
