"""The stand-ins of virtual_ray tell the truth: real processes, with the same faults, leave the same lines."""

from __future__ import annotations

from typing import Any

import pytest
from test_twins import followed
from virtual_ray import virtual_ray

from dsgd.core.fault_seen import FaultSeen
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.running.quick_run import config

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

COMMON: dict[str, Any] = {"num_workers": 3, "workload": "none", "slowdown": "1=1.3", "max_seconds": 300.0}
# The times of real processes are long against all that the driver does, and no two things happen at once.
SCRIPTS: dict[str, dict[str, Any]] = {
    "lost while computing, replace": {"steps": 8, "faults": "kill:1@update=3"},
    "lost while computing, rehost": {"steps": 8, "faults": "kill:1@update=3+60", "on_loss": "rehost"},
    "lost with nobody left": {"steps": 8, "faults": "kill:0,1,2@update=3"},  # drop: who leaves is by chance
    "lost twice": {"steps": 8, "faults": "kill:1@update=3; kill:1@update=6"},
    "lost too often": {"steps": 8, "faults": "kill:1@update=3; kill:1@update=6", "restarts": "1"},
    "given up, rehost": {"steps": 8, "faults": "kill:1@update=3", "restarts": "0", "on_loss": "rehost"},
    "kill with a spare": {"steps": 8, "faults": "kill:1@update=3+60; kill:2@update=5", "spares": 1},
    "no process there": {"steps": 8, "faults": "kill:1@update=3+60; kill:1@update=5", "on_loss": "rehost"},
    "silent, then back": {"steps": 16, "faults": "pause:1=3@update=3", "suspect_after": 1.0},
    "silent, then dead": {
        "steps": 20,
        "faults": "pause:1=60@update=3; kill:1@update=6",
        "suspect_after": 1.0,
        "on_loss": "rehost",
    },
    "cut under suspicion": {"steps": 8, "faults": "cut:1@update=3+2.5", "suspect_after": 1.0},
    "leave and join": {"steps": 8, "faults": "leave:1@update=3; join:1@update=6"},
    "leave and join at one update": {"steps": 8, "faults": "leave:0@update=3; join:0@update=3"},
}


def lines(faults: list[FaultSeen]) -> list[tuple[Any, ...]]:
    """Return what does not depend on how fast this machine is, nor on which loss is noticed first."""
    return [
        (s.kind, s.workers, s.asked, sorted(s.text.split("; ")), s.repeated, s.wasted, s.detected_s is None)
        for s in faults
    ]


@pytest.mark.crossing
@pytest.mark.parametrize("name", SCRIPTS)
def test_real_processes_leave_the_same_lines(name: str) -> None:
    """The kinds, whom they hit, what was done about it, and what it cost in mini-batches."""
    options = {**COMMON, "compute_time": "constant:.2", **SCRIPTS[name]}
    cfg = config("ssgd", engine="ray", **options)
    with open_cluster(cfg, make_workload(cfg)) as cluster:
        real = followed(cluster, "ssgd", cfg)
    simulated = config("ssgd", **options, **({"restart_s": 2.0} if "kill" in options["faults"] else {}))
    with virtual_ray(simulated) as cluster:
        virtual = followed(cluster, "ssgd", simulated)
    assert lines(real["faults"]) == lines(virtual["faults"])
    assert real["end"] == virtual["end"]
    assert real["restarts"] == virtual["restarts"]
    steps = [
        [[(worker, step) for worker, step, _ in update] for update in ran["tasks"]] for ran in (real, virtual)
    ]
    assert [sorted(one) for one in steps[0]] == [sorted(one) for one in steps[1]]
