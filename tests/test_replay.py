"""A replay is the run: in its recorded order, every version of the weights has the bytes that it had."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dsgd.authoring.restart import SCENARIOS
from dsgd.authoring.subject import Subject
from dsgd.cluster import Update
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


# What decides by the clock, cancels, discards or keeps state; test_ray.py replays every mode by default.
ON_RAY: list[tuple[str, dict[str, Any]]] = [
    ("adacomm", {"interval_s": 0.02, "first_local_steps": 8}),
    ("diloco", {"exchange": "async", "local_steps": 3}),
    ("dssp", {"slack_low": 0, "slack_high": 3, "momentum": 0.5}),
    ("easgd", {"exchange": "async", "local_steps": 3, "momentum": 0.5}),
    ("ksync", {"k": 2, "count": "gradients", "rest": "ignore"}),
    ("ringmaster", {"delay_bound": 2.0}),
]
REAL = {"engine": "ray", "num_workers": 3, "steps": 24, "device": "cpu"}


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(("mode", "variant"), ON_RAY)
def test_a_run_of_real_workers_replays(mode: str, variant: dict[str, Any], tmp_path: Path) -> None:
    """A record of real workers replays bit for bit, whatever the clock has decided, and so does its second
    half from the state that the cluster was in.
    """
    path, cuts = recorded(tmp_path, mode, **REAL, **variant, compute_time="exponential:.004")
    run = recorded_run(path)
    found = compared(run)
    assert (found.differs, found.same_weights) == (None, True)
    cluster, _ = rolled(run.cfg, path, cuts.kept[len(cuts.kept) // 2])
    assert of_all_engines(cluster.state()) == of_all_engines(cuts.kept[-1][0])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("mode", "options"), [("diloco", {"local_steps": 4}), ("asgd", {"compute_time": "exponential:.004"})]
)
def test_a_run_rolls_forward_and_goes_on(mode: str, options: dict[str, Any], tmp_path: Path) -> None:
    """From a checkpoint a replay reaches the last recorded update, and real workers go on from there: with a
    barrier to the bytes of the run that never stopped; without one, every mini-batch is taken once.
    """
    path, cuts = recorded(tmp_path, mode, **REAL, **options)
    cfg = recorded_run(path).cfg
    lost_at = 2 * len(cuts.kept) // 3
    workload, checkpoint = make_workload(cfg), cuts.kept[lost_at // 2]
    log = [u for u in islice(read_updates(path), lost_at) if u.version > checkpoint[1].version]
    replay = ReplayCluster(cfg, workload, log)
    replay.restore(checkpoint[0])
    train = strategy_of(cfg).train
    w = [update.weights for update in rolled_forward(replay, train, checkpoint[1], cfg)][-1]
    assert w.vector.tobytes() == cuts.kept[lost_at - 1][1].vector.tobytes()
    taken = {(t.worker, step) for u in islice(read_updates(path), lost_at) for t in u.gradients
             for step in range(t.step, t.step + t.batches)}  # fmt: skip
    with open_cluster(cfg, workload) as cluster:
        cluster.restore(replay.state())
        for update in train(cluster, w, cfg):
            w = update.weights
            for done in update.dones:
                new = {(done.worker, step) for step in range(done.step, done.step + done.batches)}
                assert not new & taken
                taken |= new
            if len(taken) >= cfg.budget:
                break
    assert len(taken) == cfg.budget
    if mode == "diloco":
        assert w.vector.tobytes() == cuts.kept[-1][1].vector.tobytes()


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
