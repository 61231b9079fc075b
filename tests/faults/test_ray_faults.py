"""Real faults on the Ray engine: processes that are killed, stopped, cut off and asked to end, on purpose.

In a synchronous mode none of them changes a bit of the weights, however the lost work is made up for. Most
runs here only schedule (workload none): such processes start in a tenth of the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import PATIENCE_S, python

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import ClusterError, Engine, Update
from dsgd.core.rng import Purpose, generator
from dsgd.engines.ray.driver.cluster import RayCluster
from dsgd.running.quick_run import QuickRun, Workers, run, same_bytes

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

MASKED = ("ssgd", "localsgd", "diloco")
SCHEDULE: dict[str, Any] = {
    "engine": "ray",
    "num_workers": 2,
    "workload": "none",
    "compute_time": "constant:.01",
}


def learning(mode: str) -> dict[str, Any]:
    """Return the options of a run of twelve updates."""
    steps = {"steps": 12} if mode == "ssgd" else {"steps": 24, "local_steps": 2}
    return {"engine": "ray", "num_workers": 2, **steps}


@pytest.fixture(scope="module")
def undisturbed(ray_cluster: str) -> Mapping[str, QuickRun]:
    """Return, by mode, a run of two workers on a host each, to which nothing happens."""
    with Workers(num_workers=2) as workers:
        return {mode: workers.run(mode, **learning(mode)) for mode in MASKED}


def in_step(ran: QuickRun) -> bool:
    """Whether each worker computed each of its mini-batches once, in order, as without faults."""
    steps = [[done.step for done in ran.finished if done.worker == worker] for worker in range(2)]
    return steps == [list(range(ran.cfg.steps))] * 2


def fault(ran: QuickRun, kind: str) -> FaultSeen:
    """Return the only fault of a kind."""
    (found,) = (seen for seen in ran.cluster.faults_seen if seen.kind == kind)
    return found


class Kills:
    """Kills, after each of so many updates, the process that then carries a worker drawn at random."""

    def __init__(self, count: int, seed: int) -> None:
        self.left, self._draws = count, generator(seed, Purpose.FAULT)

    def __call__(self, cluster: Engine, update: Update) -> None:
        if self.left:
            self.left -= 1
            os.kill(cluster.pids[int(self._draws.integers(2))], signal.SIGKILL)


def at_update(version: int, action: Callable[[Engine], None]) -> Callable[[Engine, Update], None]:
    def on_update(cluster: Engine, update: Update) -> None:
        if update.weights.version == version:
            action(cluster)

    return on_update


@pytest.mark.thorough
def test_two_workers_on_one_host_have_the_weights_of_one_host_each(
    undisturbed: Mapping[str, QuickRun],
) -> None:
    """Who carries a worker changes no bit; a host computes its workers' tasks one after the other."""
    with Workers(num_workers=2, hosts=1) as workers:
        for mode in MASKED:
            assert same_bytes(undisturbed[mode], workers.run(mode, **learning(mode)))


@pytest.mark.thorough
def test_six_kills_change_no_bit(undisturbed: Mapping[str, QuickRun]) -> None:
    """Processes are killed after six of twelve updates: every version of the weights is the same, with the
    workers' states.
    """
    kills = Kills(6, seed=1)
    ran = run("diloco", kills, **learning("diloco"), on_loss="rehost", spares=2, restarts="3,within=.001")
    assert kills.left == 0
    assert [seen.asked for seen in ran.cluster.faults_seen] == [False] * 6
    assert same_bytes(undisturbed["diloco"], ran)


@pytest.mark.thorough
def test_twelve_kills_repeat_no_mini_batch_and_skip_none() -> None:
    """Whoever takes over a lost task gives its worker's next answer."""
    kills = Kills(12, seed=2)
    ran = run("ssgd", kills, **SCHEDULE, steps=20, on_loss="rehost", spares=2, restarts="3,within=.001")
    assert kills.left == 0
    assert in_step(ran)


def waits_less(cluster: Engine) -> None:
    """Have a cluster that has started give new processes less time than any takes."""
    assert isinstance(cluster, RayCluster)
    cfg = cluster._cfg
    cluster._cfg = replace(cfg, ray=replace(cfg.ray, start_timeout_s=0.01))


@pytest.mark.thorough
def test_a_process_that_nobody_waits_for_may_take_long_to_start() -> None:
    """The time limit of a start ends a run only if a worker cannot go on without the process."""
    options = {**SCHEDULE, "steps": 20, "faults": "kill:1@update=5"}
    assert in_step(run("ssgd", at_update(1, waits_less), **options, on_loss="rehost"))
    with pytest.raises(ClusterError, match="worker 1, which died, could not be started within"):
        run("ssgd", at_update(1, waits_less), **options, on_loss="replace")


@pytest.mark.crossing
@pytest.mark.parametrize("policy", [{"on_loss": "replace", "spares": 1}, {"on_loss": "rehost"}])
def test_a_lost_host_is_stood_in_for_before_a_new_process_starts(policy: dict[str, Any]) -> None:
    """By a spare or another host, which repeats the task."""
    ran = run("ssgd", **SCHEDULE, **policy, steps=10, faults="kill:1@update=5+60")
    assert in_step(ran)
    kill = fault(ran, "kill")
    assert (kill.workers, kill.asked, kill.update, kill.repeated, kill.wasted) == ((1,), True, 5, 1, 0)
    assert kill.text == f"worker 1 moved to host {2 if 'spares' in policy else 0}"
    assert kill.detected_s is not None
    assert kill.recovered_s is not None
    assert kill.detected_s < kill.recovered_s < 60


@pytest.mark.thorough
def test_otherwise_its_workers_wait_for_a_new_process() -> None:
    """Under --on-loss replace, at least for as long as no new one can start."""
    ran = run("ssgd", **SCHEDULE, steps=10, faults="kill:0@update=5+.3")
    assert in_step(ran)
    kill = fault(ran, "kill")
    assert kill.text == "worker 0 waits for a new process"
    assert kill.recovered_s is not None
    assert kill.recovered_s > 0.3


def test_workers_move_home_when_the_new_process_is_ready() -> None:
    """Under rehost a living host carries them only meanwhile."""

    class IsHome(Exception):
        pass

    carried_by: list[int] = []

    def look(cluster: Engine, update: Update) -> None:
        carried_by.append(cluster.pids[1])
        if len(set(carried_by)) == 3:
            raise IsHome

    with pytest.raises(IsHome):
        run("ssgd", look, **SCHEDULE, steps=10_000, on_loss="rehost", faults="kill:1@update=3")
    first, other, new = dict.fromkeys(carried_by)
    assert len({first, other, new}) == 3


def test_a_dropped_member_joins_again_with_its_new_process() -> None:
    """Under drop the algorithm goes on without it, and its lost mini-batch is given again."""

    class Back(Exception):
        pass

    members: list[int] = []

    def look(cluster: Engine, update: Update) -> None:
        members.append(len(cluster.workers))
        if members[-1] == 2 and 1 in members:
            steps.extend(done.step for done in update.dones if done.worker == 1)
            if steps:
                seen.extend(cluster.faults_seen)
                raise Back

    steps: list[int] = []
    seen: list[FaultSeen] = []
    with pytest.raises(Back):
        run("ssgd", look, **SCHEDULE, steps=10_000, on_loss="drop", faults="kill:1@update=3")
    assert steps == [3]
    assert [(s.kind, s.asked) for s in seen] == [("leave", False), ("kill", True), ("join", False)]


def test_the_last_members_wait_instead_of_leaving() -> None:
    """With --min-workers left, a lost process is waited for also under drop."""
    ran = run("ssgd", **SCHEDULE, steps=10, on_loss="drop", min_workers=2, faults="kill:1@update=3")
    assert in_step(ran)
    assert fault(ran, "kill").text == "worker 1 waits for a new process"


def test_a_stopped_process_is_found_and_its_task_given_to_another() -> None:
    """SIGSTOP: no answer, no error. The second host answers while the first one still stands."""
    ran = run("ssgd", **SCHEDULE, steps=100, faults="pause:1=2@update=5", suspect_after=0.2)
    assert in_step(ran)
    suspected = [seen for seen in ran.cluster.faults_seen if seen.kind == "suspect"]
    assert suspected[0].text == "worker 1 was silent on host 1: host 0 got its task too, and host 0 was first"
    assert suspected[0].wasted == 1
    pause = fault(ran, "pause")
    assert pause.detected_s is not None
    assert 0.1 < pause.detected_s < 0.2 + 1


@pytest.mark.thorough
def test_a_silent_host_gets_no_task_until_it_answers() -> None:
    """SIGSTOP: the other host carries its worker for many tasks, not for one after each silence; then the
    worker is at home again.
    """

    class IsHome(Exception):
        pass

    carriers: list[int] = []

    def look(cluster: Engine, update: Update) -> None:
        carriers.append(cluster.pids[1])
        if len(set(carriers)) == 2 and carriers[-1] == carriers[0]:
            raise IsHome

    with pytest.raises(IsHome):
        run("ssgd", look, **SCHEDULE, steps=100_000, suspect_after=0.5, faults="pause:1=2@update=5")
    away = [pid for pid in carriers if pid != carriers[0]]
    # At one task a silence there would be three of them in two seconds.
    assert len(away) > 10


def test_a_wrong_suspicion_costs_work_and_no_bit(undisturbed: Mapping[str, QuickRun]) -> None:
    """Every task is handed out twice, and the first answer counts."""
    wary = run("ssgd", **learning("ssgd"), suspect_after=1e-9)
    assert same_bytes(undisturbed["ssgd"], wary)


def test_without_suspicion_a_stopped_process_is_waited_for() -> None:
    """It goes on where it stopped, by itself."""

    class GoesOn(Exception):
        pass

    updates: list[Update] = []

    def look(cluster: Engine, update: Update) -> None:
        updates.append(update)
        if max((b.finished_s - a.finished_s for a, b in pairwise(updates[-12:-10])), default=0.0) > 0.4:
            raise GoesOn

    with pytest.raises(GoesOn):
        run("ssgd", look, **SCHEDULE, steps=100_000, faults="pause:1=.5@update=5")
    for worker in range(2):
        steps = [done.step for update in updates for done in update.dones if done.worker == worker]
        assert steps == list(range(len(updates)))


def test_a_cut_holds_messages_back_and_loses_none() -> None:
    """No answer of a host that is cut off counts, and it gets no task, until the cut is over."""
    ran = run("asgd", **SCHEDULE, steps=60, faults="cut:1@t=.1+.4")
    gaps = [b - a for a, b in pairwise(done.finished_s for done in ran.dones if done.worker == 1)]
    assert max(gaps) >= 0.4
    cut = fault(ran, "cut")
    assert cut.recovered_s is not None
    assert cut.recovered_s >= 0.4


@pytest.mark.thorough
@pytest.mark.parametrize("suspect_after", [None, 0.05])
def test_an_answer_that_a_cut_holds_back_counts_once(
    suspect_after: float | None, undisturbed: Mapping[str, QuickRun]
) -> None:
    """When the cut is over, or never, if a second host has computed the task meanwhile."""
    faults = {"faults": "cut:1@update=3+.2", "suspect_after": suspect_after}
    cut = run("ssgd", **{**learning("ssgd"), "compute_time": "constant:.03", **faults})
    assert same_bytes(undisturbed["ssgd"], cut)
    assert in_step(cut)


@pytest.mark.thorough
def test_a_slow_host_takes_as_many_times_longer() -> None:
    """As long as the fault lasts; a growing one ends at its full factor."""
    for text, factor in (("slow:1=4@update=4+60", 4), ("slow:1=1~6@t=0+.001", 6)):
        ran = run("ssgd", **SCHEDULE, steps=10, faults=text)
        slow, other = ([d.compute_s for d in ran.finished if d.worker == worker] for worker in (1, 0))
        assert slow[9] >= 0.01 * factor
        assert min(other) < 0.01 * factor


def test_members_leave_and_join_as_asked() -> None:
    """A worker that leaves finishes its task; one that joins takes part from the next round."""
    ran = run("ssgd", **SCHEDULE, steps=12, faults="leave:1@update=3; join:1@update=8")
    present = [len(update.dones) for update in ran.updates]
    assert present[:4] == [2] * 4
    assert present[5:8] == [1] * 3
    assert present[9:] == [2] * len(present[9:])
    assert sum(present) >= 24
    assert [(seen.kind, seen.asked) for seen in ran.cluster.faults_seen] == [("leave", True), ("join", True)]


def test_a_worker_whose_first_fault_is_a_join_begins_outside() -> None:
    """The others share the work until it comes."""
    ran = run("ssgd", **SCHEDULE, steps=6, faults="join:1@update=4")
    present = [[done.worker for done in update.dones] for update in ran.updates]
    assert present[:4] == [[0]] * 4
    assert present[-1] == [0, 1]


@pytest.mark.thorough
@pytest.mark.parametrize("on_loss", ["rehost", "drop"])
def test_a_notice_is_a_leave_in_good_order(on_loss: str) -> None:
    """SIGTERM, as before a spot instance is taken: the process finishes its task, and ends."""
    ends: list[int] = []

    def ask(cluster: Engine) -> None:
        ends.append(cluster.pids[1])
        # By this name the pods' preStop hook finds it.
        assert Path(f"/proc/{ends[0]}/cmdline").read_bytes().startswith(b"ray::Host")
        os.kill(ends[0], signal.SIGTERM)

    ran = run(
        "ssgd", at_update(5, ask), **SCHEDULE | {"compute_time": "constant:.1"}, steps=30, on_loss=on_loss
    )
    steps = [done.step for done in ran.finished if done.worker == 1]
    assert steps == list(range(len(steps)))
    seen = next(seen for seen in ran.cluster.faults_seen if seen.kind == "kill")
    assert seen.text.startswith("host 1 was asked to end; worker 1 ")
    assert (seen.repeated, seen.wasted, seen.asked) == (0, 0, False)
    assert not Path(f"/proc/{ends[0]}").exists()


@pytest.mark.thorough
def test_the_driver_s_node_cannot_be_ended() -> None:
    """It would end the run, not a node: refused in one line, as is a node that is not there."""
    with pytest.raises(ValueError, match="--faults node:a: that is the driver's own node; name another"):
        run("ssgd", **SCHEDULE, steps=2, faults="node:a@update=1")
    with pytest.raises(ValueError, match="--faults node:b: the nodes are a; "):
        run("ssgd", **SCHEDULE, steps=2, nodes=2, faults="node:b@update=1")


@contextlib.contextmanager
def second_node() -> Iterator[None]:
    from dsgd.engines.ray.connection.nodes import Nodes

    nodes = Nodes(2)
    nodes.start()
    try:
        yield
    finally:
        nodes.close()


@pytest.mark.thorough
def test_a_lost_node_takes_no_worker_s_state_with_it() -> None:
    """DiLoCo's moments, too large to travel with the answer, survive the machine on which they were."""
    large: dict[str, Any] = {"workload": "xor", "hidden": "40000", "steps": 8, "local_steps": 2, "nodes": 2}
    before = run("diloco", engine="ray", num_workers=2, **large)
    with second_node():
        ran = run("diloco", engine="ray", num_workers=2, **large, faults="node:b@update=2")
    assert fault(ran, "node").workers
    assert same_bytes(before, ran)


@pytest.mark.thorough
def test_a_private_cluster_of_two_nodes_ends_with_the_run(tmp_path: Path) -> None:
    """The lost node is started again, its workers go on there, and no process is left."""
    mark = f"dsgd-test-{uuid.uuid4().hex}"
    command = f"main.py {_PRIVATE} --faults node:b@update=3 --out {tmp_path} --run-name r --quiet"
    process = python(*command.split(), env=os.environ | {"DSGD_TEST_MARK": mark})
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    (lost,) = map(json.loads, (tmp_path / "r" / "faults.jsonl").read_text().splitlines())
    assert (lost["kind"], lost["workers"], lost["text"]) == ("node", [1], "worker 1 waits for a new process")
    assert lost["recovered_s"] > lost["detected_s"]
    assert not [p for p in Path("/proc").glob("[0-9]*") if _has(p, mark)]


@pytest.mark.thorough
def test_a_node_that_does_not_start_leaves_no_process(tmp_path: Path) -> None:
    """One that never shows up among the living ends the run in one line, and is ended with it."""
    mark = f"dsgd-test-{uuid.uuid4().hex}"
    code = (
        "import sys, dsgd.engines.ray.connection.connect; from dsgd.engines.ray.connection import nodes; "
        "nodes._living, nodes._START_S = list, 0; from main import main; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["-c", code, *_PRIVATE.split(), "--out", str(tmp_path), "--quiet"]
    process = python(*arguments, env=os.environ | {"DSGD_TEST_MARK": mark})
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    (line,) = err.splitlines()
    assert "node b did not start within 0 s" in line
    assert not [p for p in Path("/proc").glob("[0-9]*") if _has(p, mark)]


_PRIVATE = "--mode ssgd --num-workers 2 --nodes 2 --steps 6 --workload none --start-timeout-s 120"


def _has(process: Path, mark: str) -> bool:
    with contextlib.suppress(OSError):
        return mark.encode() in (process / "environ").read_bytes()
    return False
