"""The restart law: at any update, `train` started again on the same cluster goes on bit for bit.

So a driver that ends (a crash, a hand-over, a pause) loses nothing: all is in the weights or in the cluster.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from golden_runs import SCENARIOS, VARIANTS, name

from dsgd.cluster import Update
from dsgd.cluster.open import open_cluster
from dsgd.cluster.sim import SimCluster
from dsgd.config import TrainConfig
from dsgd.data import make_workload
from dsgd.execution.quick import config
from dsgd.strategies import load
from dsgd.work.weights import Weights

EACH = [
    pytest.param(mode, options, scenario, id=name(mode, options, scenario))
    for mode, variants in VARIANTS.items()
    for options in variants
    for scenario in SCENARIOS
]


def begin(mode: str, options: dict[str, Any]) -> tuple[TrainConfig, SimCluster, Weights]:
    cfg = config(mode, **options)
    workload = make_workload(cfg)
    with open_cluster(cfg, workload) as cluster:
        assert isinstance(cluster, SimCluster)
        return cfg, cluster, Weights(workload.objective.initial_weights(0))


def facts(update: Update) -> tuple[Any, ...]:
    """Return all that an update says, so that two can be compared bit for bit."""
    tasks = [
        (d.worker, d.step, d.batches, d.read, d.loss, d.started_s, d.finished_s, d.value.tobytes())
        for d in (*update.dones, *update.ignored)
    ]
    w = update.weights
    slots = {name: slot.tobytes() for name, slot in w.slots.items()}
    return w.version, w.vector.tobytes(), slots, w.kept, tasks


def within(cfg: TrainConfig, updates: Iterator[Update], spent: int = 0) -> Iterator[Update]:
    """Yield updates until the budget is spent, of which `spent` mini-batches already are."""
    for update in updates:
        yield update
        spent += sum(done.batches for done in update.dones)
        if spent >= cfg.budget:
            return


@pytest.mark.parametrize(("mode", "options", "scenario"), EACH)
def test_train_begun_anew_at_any_update_goes_on_bit_for_bit(
    mode: str, options: dict[str, Any], scenario: str
) -> None:
    """At every update: pickle cluster and weights, call `train` again on the copy, and get the same run."""
    common = {"num_workers": 4, "steps": 6, "dataset": "xor"}
    if mode in ("adacomm", "localsgd", "diloco", "easgd"):
        common["steps"] = 40 if mode == "adacomm" else 17  # several rounds, the last one shorter
    cfg, cluster, w = begin(mode, common | SCENARIOS[scenario] | options)
    train = load(mode).train
    seen, cuts, spent = [], [], 0
    for update in within(cfg, train(cluster, w, cfg)):
        seen.append(facts(update))
        spent += sum(done.batches for done in update.dones)
        cuts.append((pickle.dumps((cluster, update.weights)), spent))
    assert len(seen) > 1
    for number, (cut, spent) in enumerate(cuts[:-1], start=1):
        cluster, w = pickle.loads(cut)
        again = within(cfg, train(cluster, w, cfg), spent)
        assert [facts(update) for update in again] == seen[number:], f"cut after update {number}"


def changing(cluster: SimCluster) -> None:
    """Have members leave and come back, at times that fall between tasks and into them."""
    for at_s, worker in ((1.5, 2), (4.0, 0), (7.0, 1)):
        cluster.schedule(at_s, "leave", worker)
    for at_s, worker in ((6.5, 2), (9.0, 0), (9.0, 1)):
        cluster.schedule(at_s, "join", worker)


@pytest.mark.parametrize(("mode", "options", "scenario"), EACH)
def test_every_strategy_goes_on_as_members_leave_and_join(
    mode: str, options: dict[str, Any], scenario: str
) -> None:
    """The budget is spent, no mini-batch twice; and `train` started again at a cut knows its members."""
    common = {"num_workers": 4, "steps": 40, "dataset": "quadratic", "grad_noise": 0.5}
    cfg, cluster, w = begin(mode, common | SCENARIOS[scenario] | options)
    changing(cluster)
    train = load(mode).train
    seen, cuts, spent, finished = [], [], 0, []
    for update in within(cfg, train(cluster, w, cfg)):
        seen.append(facts(update))
        spent += sum(done.batches for done in update.dones)
        finished += [*update.dones, *update.ignored]
        cuts.append((pickle.dumps((cluster, update.weights)), spent))
    assert spent >= cfg.budget
    taken = [(d.worker, d.step + k) for d in finished for k in range(d.batches)]
    assert len(taken) == len(set(taken))
    assert cluster.lost > 0
    assert list(cluster.workers) == [0, 1, 2, 3]
    for number in range(1, len(seen), max(1, len(seen) // 8)):
        cut, spent = cuts[number - 1]
        cluster, w = pickle.loads(cut)
        again = within(cfg, train(cluster, w, cfg), spent)
        assert [facts(update) for update in again] == seen[number:], f"cut after update {number}"
