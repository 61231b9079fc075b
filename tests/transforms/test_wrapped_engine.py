"""Engines around engines."""

from __future__ import annotations

from typing import Any

import pytest

import dsgd.engines.open_cluster
from dsgd.config import TrainConfig
from dsgd.core.model import Workload
from dsgd.core.protocol import Engine
from dsgd.running.execute import Ended, execute
from dsgd.strategies import configured
from dsgd.transforms.wrapped_engine import WrappedEngine


def wrapped_twice(cfg: TrainConfig, workload: Workload, engine: Engine) -> Engine:
    return WrappedEngine(WrappedEngine(engine))


def simulated(options: dict[str, Any]) -> Ended:
    return execute(configured({"engine": "sim", "num_workers": 4, "steps": 12, **options}))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "asgd", "compute_time": "exponential:1"},
        {"mode": "ksync", "backup": 2, "compute_time": "exponential:1", "latency_s": 0.1},
        {"mode": "diloco", "local_steps": 3, "faults": "kill:1@t=4; leave:2@step=6", "on_loss": "drop"},
    ],
    ids=lambda options: str(options["mode"]),
)
def test_what_changes_nothing_changes_nothing(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that only passes everything on leaves weights, times and counts as they are."""
    plain = simulated(options)
    monkeypatch.setattr(dsgd.engines.open_cluster, "wrapped_as_asked", wrapped_twice)
    around = simulated(options)
    assert isinstance(around.cluster, WrappedEngine)
    assert around.weights.vector.tobytes() == plain.weights.vector.tobytes()
    assert around.evaluations == plain.evaluations
    assert around.tally.state() == plain.tally.state()
    assert around.cluster.faults_seen == plain.cluster.faults_seen
