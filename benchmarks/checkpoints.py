"""What checkpoints cost, and how soon a resumed run makes its first update.

    python benchmarks/checkpoints.py

SSGD on two simulated workers with real gradients, with and without checkpoints, in turns. Prints: the share of the
wall time that checkpoints take, with a million weights (one each 10 s) and with 25 million (Daly's interval for a
loss each hour); the parts of one checkpoint; and the time to the first new update, resumed and fresh.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from dsgd.checkpoints.checkpointer import Tier
from dsgd.checkpoints.codec import vocabulary
from dsgd.checkpoints.disk_store import DiskStore
from dsgd.checkpoints.run_state import RunState, from_bytes, to_parts
from dsgd.checkpoints.store import name_of
from dsgd.cluster import Update
from dsgd.cluster.open import open_cluster
from dsgd.config import TrainConfig
from dsgd.data import make_workload
from dsgd.execution.execute import Watcher, execute
from dsgd.records.writer import RunRecord
from dsgd.strategies import configured, strategy_of
from dsgd.theory.checkpointing import checkpoint_interval
from dsgd.work.weights import Weights

MTBF_S = 3600.0


class Cost(NamedTuple):
    """Wall seconds of one checkpoint's parts."""

    snapshot_s: float
    encode_s: float
    write_s: float
    size: int


def options(weights: int, **more: Any) -> TrainConfig:
    """Return a run with momentum, so two vectors of so many weights."""
    some: dict[str, Any] = {"mode": "ssgd", "engine": "sim", "num_workers": 2, "momentum": 0.9, "eval_every": 0}
    return configured({**some, "dataset": "quadratic", "dim": weights, "trace_last": 0, **more})


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
    assert from_bytes(b"".join(parts), vocabulary(strategy)).weights.vector.tobytes() == update.weights.vector.tobytes()
    return Cost(*(statistics.median(values) for values in zip(*found, strict=True)))
