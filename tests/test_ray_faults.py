"""Real faults on the Ray engine: processes that are killed, stopped and cut off, on purpose.

In a synchronous mode none of them changes a bit of the weights, however the lost work is made up for.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from typing import Any

import pytest

from dsgd.cluster import Engine, Update
from dsgd.execution.quick import QuickRun, run, same_bytes
from dsgd.work.rng import Purpose, generator

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

MASKED = ("ssgd", "localsgd", "diloco")


def options(mode: str, steps: int = 24) -> dict[str, Any]:
    return (
        {"num_workers": 2, "steps": steps, "local_steps": 2}
        if mode != "ssgd"
        else {"num_workers": 2, "steps": steps}
    )


@cache
def undisturbed(mode: str, steps: int = 24) -> QuickRun:
    """Return a run of two workers on a host each, to which nothing happens."""
    return run(mode, engine="ray", **options(mode, steps))


class Kills:
    """Kills, after each of so many updates, the process that then carries a worker drawn at random."""

    def __init__(self, count: int, seed: int) -> None:
        self.left, self._draws = count, generator(seed, Purpose.FAULT)

    def __call__(self, cluster: Engine, update: Update) -> None:
        if self.left:
            self.left -= 1
            os.kill(cluster.pids[int(self._draws.integers(2))], signal.SIGKILL)


@pytest.mark.parametrize("mode", MASKED)
@pytest.mark.parametrize("hosts", [{"hosts": 1}, {"hosts": 2, "spares": 1}])
def test_who_carries_a_worker_changes_no_bit(mode: str, hosts: dict[str, Any]) -> None:
    """Fewer hosts than workers, or more: the weights are those of one host each."""
    assert same_bytes(undisturbed(mode), run(mode, engine="ray", **options(mode), **hosts))


@pytest.mark.parametrize("policy", [{"on_loss": "replace", "spares": 1}, {"on_loss": "rehost"}])
def test_a_killed_host_is_stood_in_for_at_once(policy: dict[str, Any]) -> None:
    """A spare or another host repeats its task, long before a new process could."""
    ran = run("ssgd", engine="ray", **options("ssgd"), **policy, faults="kill:1@update=5")
    assert same_bytes(undisturbed("ssgd"), ran)
    (fault,) = ran.cluster.faults_seen
    assert (fault.kind, fault.workers, fault.asked, fault.update) == ("kill", (1,), True, 5)
    assert fault.text.startswith("worker 1 moved to host ")
    assert fault.recovered_s is not None
    assert fault.recovered_s < 1


def test_without_one_the_workers_wait_for_a_new_process() -> None:
    """Under --on-loss replace the task is repeated where its host was."""
    ran = run("ssgd", engine="ray", **options("ssgd"), faults="kill:0@update=5")
    assert same_bytes(undisturbed("ssgd"), ran)
    (fault,) = ran.cluster.faults_seen
    assert fault.text == "worker 0 waits for a new process"
    assert fault.repeated == 1
    assert fault.detected_s is not None
    assert fault.recovered_s is not None
    assert fault.detected_s < fault.recovered_s


@pytest.mark.parametrize("mode", MASKED)
def test_ten_kills_change_no_bit(mode: str) -> None:
    """Processes are killed at random updates, ten a mode: every version of the weights is the same."""
    kills = Kills(10, seed=1)
    ran = run(mode, kills, engine="ray", **options(mode), on_loss="rehost", spares=2, max_restarts=99)
    assert kills.left == 0
    assert [fault.asked for fault in ran.cluster.faults_seen] == [False] * 10
    assert same_bytes(undisturbed(mode), ran)
