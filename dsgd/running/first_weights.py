"""The weights that a run starts from: the seed's, or those of another run (`--init-from`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsgd.config import TrainConfig
from dsgd.core.model import Workload
from dsgd.core.option_rules import require
from dsgd.core.weights import Vector, Weights
from dsgd.records.reader import read_summary
from dsgd.records.s3 import CHECKPOINTS
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import require_whole, version_of
from dsgd.records.whole import last_weights
from dsgd.running.checkpoints.run_state import weights_in


def first_weights(cfg: TrainConfig, workload: Workload) -> Vector:
    """Return the weights (D,) of version 0, read-only.

    Raises ValueError, naming the option, for a record or checkpoint that is not there, is damaged or has
    another number of weights.
    """
    source = cfg.checkpoint.init_from
    if source is None:
        vector = workload.objective.initial_weights(cfg.seed)
    else:
        try:
            vector = _of_run(source)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            require(False, "init-from", source, f"{reason}; give a run's folder, or RUN@VERSION")
        needed = workload.objective.num_weights
        rule = f"has {vector.size:,} weights and this run {needed:,}; choose the same model and data"
        require(vector.shape == (needed,), "init-from", source, rule)
    vector.setflags(write=False)
    return vector


def _of_run(source: str) -> Vector:
    run, at, version = source.rpartition("@")
    if at and version.isdigit():
        return of_checkpoint(Path(run), int(version))[0].vector
    path = Path(source)
    if not (path / "weights.npy").is_file():
        raise ValueError("has no weights.npy: it is no record, or its run has not ended")
    sha256 = read_summary(path).weights_sha256 if (path / "summary.json").exists() else None
    return last_weights(path, sha256).astype(np.float32, copy=False)


def of_checkpoint(run: Path, version: int, *, mapped: bool = False) -> tuple[Weights, Mapping[str, Any]]:
    """Return the weights in a record's checkpoint of a version, and what the first worker's module carries.

    mapped: leave them in the file's pages. Raises ValueError, in one line, where there is none or it is
    damaged; OSError where it cannot be read.
    """
    store = DiskStore(run / CHECKPOINTS)
    names = store.names()
    found = next((name for name in names if version_of(name) == version), None)
    if found is None:
        there = ", ".join(str(version_of(name)) for name in names) or "none"
        raise ValueError(f"has no checkpoint of that version; it has {there}")
    content: Any = np.memmap(store.folder / found, mode="c") if mapped else store.read(found)
    require_whole(found, content)
    return weights_in(content)
