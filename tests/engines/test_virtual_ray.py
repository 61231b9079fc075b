"""Random schedules of faults on `RayCluster`, in virtual time: held to what the simulator is held to."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
from dst.fault_schedule import FaultSchedule, drawn
from dst.invariants import survives
from virtual_ray import virtual_ray

from dsgd.config import TrainConfig
from dsgd.conformance.strategy_on_trial import Broken, Subject
from dsgd.engines.open_cluster import wrapped_as_asked
from dsgd.engines.ray.driver.cluster import RayCluster
from dsgd.engines.ray.driver.sent_tasks import SentTasks
from dsgd.scenario.supervisor import Supervisor
from dsgd.strategies import modes

ALL = [Subject(mode) for mode in modes()]
_OF_THE_DRIVER = ("driver", "crash", "torn", "rot", "full", "slow-disk")  # which here is the test itself


def on_ray(seed: int) -> FaultSchedule:
    """Return a schedule without the faults of the driver."""
    schedule = drawn(seed, ALL)
    faults = [fault for fault in schedule.faults if not fault.startswith(_OF_THE_DRIVER)]
    return schedule.having(faults="; ".join(faults))


def survived(seeds: range) -> Counter[str]:
    """Hold schedules to the invariants; return how often what happened."""
    found: Counter[str] = Counter()
    for schedule in map(on_ray, seeds):
        with virtual_ray(schedule.config()) as cluster:

            def opened(cfg: TrainConfig, workload: Any, cluster: Any = cluster) -> Any:
                return nullcontext(wrapped_as_asked(cfg, workload, cluster))

            what = survives(schedule, cuts=0, opened=opened)
        found += Counter(what.faults) + Counter(compared=what.compared, runs=1)
        found += Counter(name for name in ("compress", "compress_down") if name in schedule.options)
    return found


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_what_holds_in_the_simulator_holds_on_ray(first: int) -> None:
    """Whatever fails: and masked faults leave the weights that the simulator computes without them."""
    assert survived(range(first, first + 25))["runs"] == 25


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_it_holds_for_a_thousand_schedules(first: int) -> None:
    """Each fifty have losses, suspicions, slow hosts, changes of the members and compared weights."""
    kinds = {"kill", "suspect", "pause", "slow", "cut", "leave", "join", "compared"}
    assert survived(range(first, first + 50)).keys() >= kinds


def sends_nothing(supervisor: Any, worker: int) -> Any:
    return iter(())


def sends_no_state(cluster: Any, host: int, worker: int, send: Any = RayCluster._send_to) -> None:
    if cluster.restarts[worker]:
        cluster._ledger.states.pop(worker, None)
    send(cluster, host, worker)


MISTAKES = {
    "a lost host's tasks are not sent again": (Supervisor, "_send_to_carrier", sends_nothing),
    "nothing is sent when a cut is over": (RayCluster, "_send_unsent", lambda cluster: None),
    "a task that was stopped goes on": (SentTasks, "stop", lambda tasks, worker: 0),
    "a new process gets no state": (RayCluster, "_send_to", sends_no_state),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_of_ray_breaks_an_invariant(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first hundred and fifty schedules finds it."""
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(Broken):
        survived(range(150))
