"""A replay is the run: in its recorded order, every version of the weights has the bytes that it had."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import CommandLine, Ran

import dsgd
from dsgd.authoring.restart import SCENARIOS
from dsgd.authoring.subject import Subject
from dsgd.cluster import ClusterError, Engine, Update
from dsgd.cluster.open import open_cluster
from dsgd.cluster.replay import ReplayCluster, rolled_forward
from dsgd.cluster.state import ClusterState
from dsgd.config import TrainConfig
from dsgd.data import make_workload
from dsgd.execution.execute import Running, Watcher, execute
from dsgd.execution.quick import config
from dsgd.execution.replaying import compared, recorded_run
from dsgd.records.reader import read_updates
from dsgd.records.writer import RunRecord
from dsgd.strategies import modes, strategy_of
from dsgd.work.weights import Weights

SCENARIO = {"num_workers": 4, "steps": 48, "dataset": "xor"}
VARIANTS = [
    pytest.param(mode, dict(variant), scenario, id=f"{mode} {variant} {scenario}")
    for mode in modes()
    for variant in Subject(mode).laws.variants
    for scenario in SCENARIOS
]


class Cuts(Watcher):
    """Keeps the cluster and the weights as they were after each update."""

    def __init__(self) -> None:
        self.kept: list[tuple[ClusterState, Weights]] = []

    def started(self, running: Running) -> None:
        self._cluster = running.cluster

    def updated(self, update: Update) -> None:
        self.kept.append((self._cluster.state(), update.weights))


def recorded(folder: Path, mode: str, **options: Any) -> tuple[Path, Cuts]:
    """Run with a record; return its folder, and the run as it was after each update."""
    cfg, cuts = config(mode, **{**SCENARIO, "out": str(folder), **options}), Cuts()
    ended = execute(cfg, [cuts], record=RunRecord(cfg))
    assert ended.error is None
    assert ended.path
    return ended.path, cuts


def rolled(
    cfg: TrainConfig, path: Path, after: tuple[ClusterState, Weights] | None = None, until: int | None = None
) -> tuple[ReplayCluster, list[Update]]:
    """Roll a recorded run forward from its beginning, or from what it was `after` some update."""
    workload = make_workload(cfg)
    first = after[1].version if after else 0
    updates = (u for u in islice(read_updates(path), until) if u.version > first)
    cluster = ReplayCluster(cfg, workload, updates)
    w = Weights(workload.objective.initial_weights(cfg.seed))
    if after:
        cluster.restore(after[0])
        w = after[1]
    return cluster, list(rolled_forward(cluster, strategy_of(cfg).train, w, cfg))


def of_all_engines(state: ClusterState) -> dict[str, Any]:
    """Return what a cluster's state has on every engine, comparable."""
    flights = [(f.worker, f.task, f.origin.version, f.origin.vector.tobytes()) for f in state.flights]
    names = ("workers", "clocks", "slowest", "fastest", "steps", "came_in_s", "given", "cancelled", "came_in")
    whole = {name: getattr(state, name) for name in names}
    states = {worker: vector.tobytes() for worker, vector in state.states.items()}
    idle = {state.latest, *state.waiting} - {None}
    return {**whole, "workers": tuple(state.workers), "flights": flights, "states": states, "idle": idle}


@pytest.mark.parametrize(("mode", "variant", "scenario"), VARIANTS)
def test_every_mode_replays_in_the_simulator(
    mode: str, variant: dict[str, Any], scenario: str, tmp_path: Path
) -> None:
    """Each variant, with equal times, a network and states, is replayed bit for bit, and the cluster is then
    as it was: from the beginning, and from a cut in the middle.
    """
    path, cuts = recorded(tmp_path, mode, **SCENARIOS[scenario], **variant)
    run = recorded_run(path)
    found = compared(run)
    assert (found.differs, found.same_weights, found.updates) == (None, True, len(cuts.kept))
    middle = len(cuts.kept) // 2
    for after in (None, cuts.kept[middle]):
        cluster, updates = rolled(run.cfg, path, after)
        kept = cuts.kept[after[1].version if after else 0 :]
        assert [u.weights.vector.tobytes() for u in updates] == [w.vector.tobytes() for _, w in kept]
        assert of_all_engines(cluster.state()) == of_all_engines(cuts.kept[-1][0])
