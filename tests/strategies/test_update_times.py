"""The time of an update is when it is made, also where that is after its last result came in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from virtual_ray import virtual_ray

import dsgd
from dsgd.core.protocol import Update
from dsgd.data import make_workload
from dsgd.engines.replay import ReplayCluster
from dsgd.running.quick_run import config
from dsgd.running.quick_run import run as quick_run
from dsgd.running.replaying import compared, recorded_run
from dsgd.running.run import Run

GRACE = '''
"""Takes the first `quorum` results, and those that come within `grace_s` of the last of them."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dsgd.strategy import *


@dataclass(frozen=True, kw_only=True)
class Config(GradientConfig):
    mode: str = "grace"

    quorum: int = 2
    """Results that each update waits for."""

    grace_s: float = 1.0
    """Seconds for which it then waits for others."""


def train(cluster: Cluster, w: Weights, cfg: Config) -> Iterator[Update]:
    rule = server_rule(cfg, cfg.quorum)
    while True:
        start_all(cluster, gradient, w)
        dones, late, until_s = [], [], math.inf
        while cluster.in_flight and not late:
            if done := cluster.next_done():
                (dones if done.finished_s <= until_s else late).append(done)
                if len(dones) == cfg.quorum:
                    until_s = min(until_s, done.finished_s + cfg.grace_s)
        w = cluster.combine(rule, w, in_worker_order(dones))
        yield Update(w, dones, late, made_s=1e9)  # which nobody believes
'''
WORKERS = {"num_workers": 3, "compute_time": "constant:1", "slowdown": "1=2,2=5", "steps": 2}
AT = [5.0, 10.0, 15.0]
"""Workers take 1, 2 and 5 s: what comes in after 1 and 2 s is applied once the third has been too late."""


def on_ray_in_virtual_time(options: dict[str, Any]) -> list[Update]:
    cfg = config(**options)
    with virtual_ray(cfg) as cluster:
        return [*Run(cfg, make_workload(cfg), cluster).updates()]


def simulated(options: dict[str, Any]) -> list[Update]:
    return quick_run(**options).updates


@pytest.fixture
def grace(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "train_grace.py"
    file.write_text(GRACE)
    return {"mode": "grace", "strategy_file": str(file), "workload": "quadratic", "dim": 2, **WORKERS}


@pytest.mark.parametrize("followed", [simulated, on_ray_in_virtual_time])
@pytest.mark.parametrize("faults", ["", "pause:0=1@t=1000"])
def test_it_is_later_where_a_strategy_waits_for_others(
    followed: Callable[[dict[str, Any]], list[Update]], faults: str, grace: dict[str, Any]
) -> None:
    """Both engines, with hosts or without, say when a window has closed, and when each result came in."""
    updates = followed(grace | {"faults": faults})
    assert [update.finished_s for update in updates] == pytest.approx(AT, abs=1e-6)
    came_s = [[done.finished_s for done in update.dones] for update in updates]
    assert followed(grace | {"num_workers": 1, "quorum": 1, "slowdown": ""})[0].finished_s == pytest.approx(1)
    assert came_s == [pytest.approx([at - 4, at - 3], abs=1e-6) for at in AT]


@pytest.mark.parametrize("followed", [simulated, on_ray_in_virtual_time])
def test_it_is_later_where_a_barrier_waits_for_who_leaves(
    followed: Callable[[dict[str, Any]], list[Update]],
) -> None:
    """The second worker is lost after 3.5 s, in its first task; until then the others' results wait."""
    options = {"mode": "ssgd", "num_workers": 3, "steps": 2, "compute_time": "constant:1", "slowdown": "1=9"}
    options |= {"workload": "quadratic", "faults": "leave:2@t=.5; kill:1@t=3.5", "on_loss": "drop"}
    first = followed(options)[0]
    assert [done.finished_s for done in first.dones] == pytest.approx([1, 1], abs=1e-6)
    assert first.finished_s == pytest.approx(3.5, abs=1e-6)


def test_the_record_the_curve_and_the_tables_have_it(grace: dict[str, Any], tmp_path: Path) -> None:
    """Time to a loss, the record and a replay go by it; a task's row has both times."""
    options = {name: x for name, x in grace.items() if name not in ("mode", "strategy_file")}
    mode, options = grace["strategy_file"], {**options, "engine": "sim", "eval_every": 1}
    result = dsgd.run(mode, **options, out=str(tmp_path))
    assert result.evaluations["t_s"].to_list() == [0, *AT[1:]]
    applied = result.tasks.filter(result.tasks["applied"])
    assert applied["applied_at_s"].to_list() == [at for at in AT for _ in range(2)]
    assert applied["finished_s"].to_list() == [at - before for at in AT for before in (4, 3)]
    assert result.tasks.filter(~result.tasks["applied"])["applied_at_s"].to_list() == [None] * 3
    assert result.summary["clock_s"] == AT[-1]
    assert result.path
    lines = (result.path / "updates.jsonl").read_text().splitlines()
    assert [json.loads(line)["t_s"] for line in lines] == AT
    assert compared(recorded_run(result.path)).differs is None
    aimed = dsgd.run(mode, **options, target_loss=result.evaluations["loss"][1])
    assert aimed.summary["clock_s"] == AT[1]


def test_a_replay_of_ray_waits_as_long() -> None:
    """AdaComm looks at the clock before its update: 7 s, when one leaves, not 4 s, when the other is done."""
    options = {"num_workers": 2, "steps": 12, "compute_time": "constant:1", "slowdown": "1=9"}
    options |= {"workload": "quadratic", "local_steps": 4, "interval_s": 5.0, "on_loss": "drop"}
    cfg = config("adacomm", **options, faults="kill:1@t=7")
    with virtual_ray(cfg) as cluster:
        ran, faults = [*Run(cfg, make_workload(cfg), cluster).updates()], [*cluster.faults_seen]
    names = "version", "t_s", "gradients", "ignored"
    values = ((u.weights.version, u.finished_s, u.dones, u.ignored) for u in ran)
    seen = [SimpleNamespace(**dict(zip(names, value, strict=True))) for value in values]
    object.__setattr__(cfg, "engine", "ray")
    replay = ReplayCluster(cfg, make_workload(cfg), seen, faults)
    assert [u.extra for u in Run(cfg, make_workload(cfg), replay).updates()] == [u.extra for u in ran]
    assert ran[1].extra["tau"] == 2
