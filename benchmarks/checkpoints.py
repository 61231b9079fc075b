"""What checkpoints cost, and how soon a resumed run makes its first update.

    python benchmarks/checkpoints.py

SSGD on two simulated workers with real gradients. Prints how long a checkpoint takes, and its share of the
wall time: with a million weights, one every 10 s, also measured by runs with and without checkpoints in turn;
with 25 million, one per Daly's interval for a loss every hour. Then the time to the first update of a resumed
run and of a fresh one.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from dsgd.config import TrainConfig
from dsgd.core.protocol import Update
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import name_of
from dsgd.records.writer import RunRecord
from dsgd.running.checkpoints.codec import vocabulary
from dsgd.running.checkpoints.run_state import RunState, from_bytes, to_parts
from dsgd.running.execute import execute
from dsgd.running.keeper import Watcher
from dsgd.strategies import configured, strategy_of
from dsgd.theory.checkpointing import checkpoint_interval

MTBF_S = 3600.0


class Cost(NamedTuple):
    """Wall seconds of one checkpoint's parts."""

    snapshot_s: float
    encode_s: float
    write_s: float
    size: int


def options(weights: int, **more: Any) -> TrainConfig:
    """Return a run with momentum, so two vectors of so many weights."""
    some: dict[str, Any] = {
        "mode": "ssgd",
        "engine": "sim",
        "num_workers": 2,
        "momentum": 0.9,
        "eval_every": 0,
    }
    return configured({**some, "workload": "quadratic", "dim": weights, "trace_last": 0, **more})


def cost(weights: int, folder: Path, times: int = 5) -> Cost:
    """Return the median cost of a checkpoint of a running cluster."""
    cfg = options(weights)
    workload, strategy = make_workload(cfg), strategy_of(cfg)
    found: list[Cost] = []
    with open_cluster(cfg, workload) as cluster:
        w = Weights(workload.objective.initial_weights(0))
        for update, n in zip(strategy.train(cluster, w, cfg), range(times), strict=False):
            began_s = time.perf_counter()
            state = RunState(weights=update.weights, cluster=cluster.state())
            taken_s = time.perf_counter()
            parts = to_parts(state, vocabulary(strategy))
            encoded_s = time.perf_counter()
            DiskStore(folder / str(n)).write(name_of(update.weights.version, parts), parts)
            size = sum(len(part) for part in parts)
            found.append(Cost(taken_s - began_s, encoded_s - taken_s, time.perf_counter() - encoded_s, size))
    assert (
        from_bytes(b"".join(parts), vocabulary(strategy)).weights.vector.tobytes()
        == update.weights.vector.tobytes()
    )
    return Cost(*(statistics.median(values) for values in zip(*found, strict=True)))


def share(weights: int, every_s: float, updates: int, out: str) -> float:
    """Return how much longer a run takes with checkpoints, as a share of its time.

    Runs with as many checkpoints as possible alternate with runs without, so that the cost shows above the
    noise; the share is that of one checkpoint every `every_s` wall seconds.
    """
    walls: dict[bool, list[float]] = {False: [], True: []}
    written = 0
    for n in range(6):
        with_them = bool(n % 2)
        every = (
            {"checkpoint_every": "1", "compute_time": "constant:1"}
            if with_them
            else {"compute_time": "constant:1"}
        )
        cfg = options(weights, steps=updates, out=out, run_name=f"{weights}-{n}", record="none", **every)
        ended = execute(cfg, record=RunRecord(cfg))
        assert not ended.error, ended.error
        walls[with_them].append(ended.wall_s)
        if with_them:
            written += ended.checkpoints_written
    extra_s = (sum(walls[True]) - sum(walls[False])) / max(1, written)
    return max(0.0, extra_s) / every_s


class First(Watcher):
    """Notes when the first update of this process came."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def updated(self, update: Update) -> None:
        self.at_s = self.at_s or time.perf_counter()


def first_update_s(cfg: TrainConfig, resume: str | None) -> float:
    """Return the wall seconds from the call to the first update."""
    first, began_s = First(), time.perf_counter()
    execute(cfg, [first], record=RunRecord(cfg, resume=bool(resume)), resume=resume)
    assert first.at_s
    return first.at_s - began_s


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        for weights in (1_000_000, 25_000_000):
            one = cost(weights, Path(out))
            total_s = sum(one[:3])
            every_s = 10.0 if weights < 10_000_000 else checkpoint_interval(total_s, MTBF_S)
            background_ms = 1e3 * (one.encode_s + one.write_s)
            print(
                f"{weights:>11,} weights, {one.size / 1e6:,.0f} MB: snapshot {1e6 * one.snapshot_s:.0f} us, "
                f"then {background_ms:.0f} ms in the background; one every {every_s:.0f} s is at most "
                f"{total_s / every_s:.2%} of the time",
                flush=True,
            )
        print(f"measured with a million weights: {share(1_000_000, 10.0, 100, out):.2%}", flush=True)
        fresh = [
            first_update_s(options(1_000_000, out=out, run_name=f"f{n}", steps=1), None) for n in range(5)
        ]
        cfg = options(1_000_000, out=out, run_name="r", steps=1, checkpoint_every="1")
        first_update_s(cfg, None)
        resumed = []
        for steps in range(2, 7):
            cfg = options(1_000_000, out=out, run_name="r", steps=steps, checkpoint_every="1")
            resumed.append(first_update_s(cfg, "killed"))
        a, b = statistics.median(fresh), statistics.median(resumed)
        print(f"first update: fresh {1e3 * a:.0f} ms, resumed {1e3 * b:.0f} ms, {b / a:.2f} times (aim: 1.2)")


if __name__ == "__main__":
    main()
