"""Theory's lines in figures: what the closed forms say of a recorded run.

A run's own predictions stand in its summary. Here are those that need more than one number: distributions,
and values by worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsgd.cluster.laws import Law, parse_law
from dsgd.config import TimingConfig
from dsgd.records.reader import Record
from dsgd.records.schema import Summary
from dsgd.theory import formulas as theory

Floats = NDArray[np.float64]


def staleness_pmf(record: Record, largest: int) -> Floats | None:
    """Return P(staleness = 0 ... `largest`) where a closed form is known, shape (largest + 1,)."""
    config = record.config
    k = _gradients_per_update(config)
    if k is None or not _only_computing(config):
        return None
    try:
        law = _law_of_equal_workers(config)
        pmf = [theory.k_async_staleness_pmf(law, config["num_workers"], k, tau) for tau in range(largest + 1)]
    except ValueError:  # outside the formula's assumptions, or no formula is known
        return None
    return np.array(pmf)


def staleness_by_worker(record: Record) -> Floats | None:
    """Return each worker's mean staleness, shape (P,), where a closed form is known."""
    config = record.config
    if config["mode"] not in ("asgd", "dcasgd") or not _only_computing(config):
        return None
    try:
        slow = TimingConfig(slowdown=config.get("slowdown", "")).slowdowns
        return theory.asgd_mean_staleness_by_worker(config["num_workers"], slow)
    except ValueError:
        return None


def gradients_per_s(summary: Summary) -> float | None:
    """Return the throughput (mini-batches applied per engine second) that theory says."""
    entry = summary.theory.get("s_per_update")
    if entry is None or not entry.theory or not summary.updates:
        return None
    return summary.gradients / summary.updates / entry.theory


def value(summary: Summary, name: str) -> float | None:
    """Return a prediction that stands in the summary, like `staleness_mean`."""
    entry = summary.theory.get(name)
    return entry.theory if entry else None


def _gradients_per_update(config: Mapping[str, Any]) -> int | None:
    """Return K where the workers whose gradients make an update wait for it, as K-async's formula wants."""
    if config["mode"] in ("asgd", "dcasgd"):
        return 1
    if config["mode"] == "kasync" and config.get("count") == "workers":
        return int(config.get("k") or (config["num_workers"] + 1) // 2)
    return None


def _only_computing(config: Mapping[str, Any]) -> bool:
    """Whether nothing but computing takes time."""
    return bool(
        config.get("latency_s", 0) == 0
        and config.get("server_bytes_per_s", float("inf")) == float("inf")
        and config.get("server_time", "none") == "none"
    )


def _law_of_equal_workers(config: Mapping[str, Any]) -> Law:
    if config.get("slowdown"):
        raise theory.NoClosedForm("the formula is for equal workers")
    return parse_law(str(config.get("compute_time", "none")))
