"""The simulator with hosts and faults: what each fault costs, and that it changes nothing else."""

from __future__ import annotations

import json
import math
import pickle
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.config import TrainConfig
from dsgd.core.protocol import ClusterError, DriverLost, Update
from dsgd.core.timing import ComputeTimes
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.configured_network import network_of
from dsgd.engines.open_cluster import open_cluster
from dsgd.engines.sim.sim import SimCluster
from dsgd.engines.sim.sim_with_faults import HostedCluster
from dsgd.running.quick_run import QuickRun, config, run
from dsgd.scenario.fault_options import FaultConfig
from dsgd.strategies import load

SMALL: dict[str, Any] = {"num_workers": 4, "steps": 12, "workload": "quadratic", "grad_noise": 0.5}
SYNCHRONOUS = ("ssgd", "localsgd", "diloco", "easgd")
MASKED: dict[str, dict[str, Any]] = {
    "kill": {"faults": "kill:2@t=3.3; kill:0@update=2", "restart_s": 2.0},
    "kill under rehost": {"faults": "kill:2@t=3.3+5; kill:0,1@step=4", "on_loss": "rehost"},
    "pause": {"faults": "pause:1=5@t=3.25"},
    "slow": {"faults": "slow:1=1~4@t=2+6; slow:0=3@t=1+4"},
    "cut": {"faults": "cut:1,3@t=3.5+2"},
    "node": {"faults": "node:b@t=2.5+3", "nodes": 2, "on_loss": "rehost"},
    "spares": {"faults": "kill:1@t=2.5; kill:1@t=3.5", "spares": 2, "restart_s": 4.0},
    "fewer hosts": {"hosts": 3, "faults": "kill:0@t=4.4", "restart_s": 1.0},
    "suspicion": {"faults": "pause:1=50@t=3.25; slow:2=9@t=4+20", "suspect_after": 2.0},
    "spot": {"faults": "spot:mtbf=15,back=2", "restart_s": 0.5, "restarts": "100"},
}


def followed(updates: list[Update]) -> list[object]:
    """Return all that can be seen of updates."""
    return [
        (u.weights.vector.tobytes(), [(d.worker, d.step, *d[6:11], d.read) for d in (*u.dones, *u.ignored)])
        for u in updates
    ]


def last_s(outcome: QuickRun) -> float:
    return outcome.tally.last_update_s


@pytest.mark.parametrize(
    "network",
    [
        {},
        {"latency_s": 0.25, "server_bytes_per_s": 40.0},
        {"latency_s": 0.25, "server_bytes_per_s": 40.0, "topology": "sharded:3"},
        {"bytes_per_s": 20.0, "slow_link": "1=3", "racks": "2,30"},
    ],
)
@pytest.mark.parametrize("mode", ["ssgd", "ssp", "ksync", "ringmaster", "diloco", "adpsgd"])
def test_without_faults_it_is_the_bare_simulator(mode: str, network: dict[str, Any]) -> None:
    """With a host for each worker and no faults all values and all times are the bare simulator's, bit for
    bit: with cancelled tasks, and a server that stands still, too.
    """
    options = {**SMALL, "compute_time": "exponential:1", "server_time": "exponential:.05", **network}
    if mode == "adpsgd":  # it has no server
        options = {**SMALL, "compute_time": "exponential:1", "latency_s": network.get("latency_s", 0)}
    cfg = config(mode, **options, **({"backup": 1} if mode == "ksync" else {}))
    workload = make_workload(cfg)

    def end(cluster: SimCluster) -> object:
        spent, seen = 0, []
        for update in load(mode).train(cluster, Weights(workload.objective.initial_weights(0)), cfg):
            seen.append(update)
            spent += sum(done.batches for done in update.dones)
            if spent >= cfg.budget:
                break
            if len(seen) % 5 == 0:
                cluster.stand_still(1.7)
        return followed(seen), [*cluster.cancelled_s]

    star = network_of(cfg)
    times = [ComputeTimes(cfg.timing.compute_law, 0) for _ in range(2)]
    assert end(SimCluster(workload, times[0], star)) == end(
        HostedCluster(workload, times[1], star, fault=FaultConfig())
    )


@pytest.mark.crossing
@pytest.mark.parametrize("masked", MASKED)
@pytest.mark.parametrize("mode", SYNCHRONOUS)
def test_a_masked_fault_leaves_the_weights_of_a_synchronous_mode(mode: str, masked: str) -> None:
    """Kill, pause, slow, cut, a node, spot, spares, fewer hosts, suspicion: only the times change."""
    options = {**SMALL, "compute_time": "exponential:1"}
    ours, plain = run(mode, **options, **MASKED[masked]), run(mode, **options)
    assert [u.weights.vector.tobytes() for u in ours.updates] == [
        u.weights.vector.tobytes() for u in plain.updates
    ]
    assert last_s(ours) >= last_s(plain)
    assert ours.cluster.faults_seen


@pytest.mark.parametrize("mode", ["asgd", "ssp", "kasync"])
def test_an_asynchronous_run_with_faults_is_reproducible(mode: str) -> None:
    """The same command gives the same weights, times and lines of faults; what it had is in the lines."""
    faults = "spot:mtbf=15,back=2; cut:1@t=3+2; kill:2@update=9; leave:0@step=5; join:0@t=9; slow:3=2@t=6"
    options = {**SMALL, "compute_time": "exponential:1", "restarts": "100", "faults": faults}
    first, second = run(mode, **options), run(mode, **options)
    assert followed(first.updates) == followed(second.updates)
    assert first.cluster.faults_seen == second.cluster.faults_seen
    assert {"kill", "cut", "leave", "join", "slow"} <= {seen.kind for seen in first.cluster.faults_seen}


# --- What each fault costs ----------------------------------------------------------------------------------

EIGHTHS = st.integers(1, 79).map(lambda n: n / 8).filter(lambda at_s: at_s % 1 != 0)
LENGTHS = st.integers(1, 40).map(lambda n: n / 8)
TEN_SECONDS: dict[str, Any] = {"num_workers": 3, "steps": 10, "workload": "none"}


@settings(deadline=None)
@given(EIGHTHS, LENGTHS, LENGTHS)
def test_a_kill_costs_what_was_computed_and_the_restart(at_s: float, restart_s: float, gone_s: float) -> None:
    """In the middle of a task: its computed part, --restart-s and the fault's own duration, to a barrier."""
    faults = f"kill:1@t={at_s}+{gone_s}"
    outcome = run("ssgd", **TEN_SECONDS, faults=faults, restart_s=restart_s)
    assert last_s(outcome) == 10 + at_s % 1 + restart_s + gone_s
    (seen,) = outcome.cluster.faults_seen
    assert (seen.t_s, seen.recovered_s, seen.repeated) == (at_s, restart_s + gone_s, 1)
    assert seen.came_in == 3 * int(at_s)
    assert seen.update == int(at_s)
    assert [*outcome.cluster.restarts] == [0, 1, 0]


@settings(deadline=None)
@given(EIGHTHS, LENGTHS)
def test_a_pause_costs_its_length(at_s: float, length_s: float) -> None:
    """A host that stands still takes that much longer, and repeats nothing."""
    outcome = run("ssgd", **TEN_SECONDS, faults=f"pause:1={length_s}@t={at_s}")
    assert last_s(outcome) == 10 + length_s
    assert [(s.recovered_s, s.repeated) for s in outcome.cluster.faults_seen if s.recovered_s] == (
        [(length_s, 0)] if at_s + length_s < 10 + length_s else []
    )


@settings(deadline=None)
@given(EIGHTHS, st.sampled_from([0.5, 2.0, 4.0]))
def test_a_slow_host_computes_the_rest_that_much_slower(at_s: float, factor: float) -> None:
    """From the fault on each second of work lasts `factor` seconds; the other workers wait at the barrier."""
    outcome = run("ssgd", **{**TEN_SECONDS, "num_workers": 1}, faults=f"slow:0={factor}@t={at_s}")
    assert last_s(outcome) == at_s + (10 - at_s) * factor
    assert sum(done.compute_s for done in outcome.dones) == last_s(outcome)
    (seen,) = outcome.cluster.faults_seen
    assert seen.recovered_s is None


def test_a_slowdown_can_grow() -> None:
    """From 1 to F during D a host works D ln F / (F - 1) seconds' worth, to the width of a step."""
    outcome = run("ssgd", num_workers=1, steps=10, workload="none", faults="slow:0=1~4@t=2+6")
    work_in_ramp_s = 6 * 1.3863 / 3
    assert last_s(outcome) == pytest.approx(8 + (10 - 2 - work_in_ramp_s) * 4, rel=0.02)


@settings(deadline=None)
@given(EIGHTHS, LENGTHS)
def test_a_cut_link_holds_messages_back(at_s: float, length_s: float) -> None:
    """A result that is computed meanwhile comes in when the link is back; computing itself goes on."""
    outcome = run("ssgd", **{**TEN_SECONDS, "num_workers": 1}, faults=f"cut:0@t={at_s}+{length_s}")
    came = [done.finished_s for done in outcome.dones]
    held_s = max(0.0, at_s % 1 + length_s - 1)
    assert came == [n + (held_s if n > at_s else 0) for n in range(1, 11)]


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 4])
def test_a_host_computes_its_workers_tasks_one_after_the_other(num_hosts: int) -> None:
    """A round lasts as long as the fullest host's tasks together."""
    outcome = run("ssgd", num_workers=4, steps=6, workload="none", hosts=num_hosts, slowdown="0=2")
    times = [2.0, 1.0, 1.0, 1.0]
    assert outcome.s_per_update == max(sum(times[host::num_hosts]) for host in range(num_hosts))


@pytest.mark.parametrize("num_hosts", [2, 3, 5])
def test_rehosting_keeps_the_throughput_of_the_others(num_hosts: int) -> None:
    """With one of H hosts away the others do (H - 1)/H of the work in the same time."""
    workers, steps = num_hosts * (num_hosts - 1), 12
    options: dict[str, Any] = {"num_workers": workers, "steps": steps, "workload": "none", "hosts": num_hosts}
    away = run("ssgd", **options, on_loss="rehost", faults="kill:0@t=0+1e6")
    assert last_s(away) == last_s(run("ssgd", **options)) * num_hosts / (num_hosts - 1)


def test_hosts_that_go_and_come_back_share_the_work() -> None:
    """8 hosts, then 4, then 8 again: the time is that of the work shared among those there are, to 5 %."""
    options: dict[str, Any] = {"num_workers": 24, "steps": 30, "workload": "none", "hosts": 8, "nodes": 2}
    outcome = run("ssgd", **options, on_loss="rehost", faults="node:b@t=30+60")
    assert last_s(outcome) == pytest.approx(30 + 60 + (24 * 30 - 8 * 30 - 4 * 60) / 8, rel=0.05)


def test_what_arrives_at_a_host_that_stands_still_waits() -> None:
    """A pause that begins while a worker waits at the barrier delays its next task."""
    outcome = run("ssgd", **TEN_SECONDS, slowdown="0=3", faults="pause:1=6@t=2")
    assert [update.finished_s for update in outcome.updates][:3] == [3, 9, 12]


def test_a_result_on_its_way_is_not_computed_again() -> None:
    """What has left a host before it is lost comes in; only tasks that it still had are repeated."""
    outcome = run("ssgd", **TEN_SECONDS, latency_s=0.5, faults="kill:1@t=1.75", restart_s=4.0)
    assert [update.finished_s for update in outcome.updates][:2] == [2, 5.75 + 2]
    (seen,) = outcome.cluster.faults_seen
    assert seen.repeated == 0


def test_a_late_join_is_waited_for() -> None:
    """If all members leave, the run goes on with the first that joins at a later time."""
    outcome = run("ssgd", **TEN_SECONDS, faults="leave:0,1,2@t=2.5; join:1@t=8")
    assert members(outcome)[:4] == [(0, 1, 2)] * 3 + [(1,)]
    assert outcome.updates[3].finished_s == 9


def test_who_leaves_for_good_does_not_come_back_with_a_process() -> None:
    """A member that was to leave when its host is lost is gone, also under drop."""
    faults = "leave:1@t=2.25; kill:1@t=2.5+3"
    outcome = run("ssgd", **TEN_SECONDS, faults=faults, on_loss="drop")
    assert all(who == (0, 2) for who in members(outcome)[2:])


def test_a_new_process_does_not_stand_still() -> None:
    """A pause ends with the process, and one of a process that is not there hits nobody."""
    faults = "pause:1=100@t=2.5; kill:1@t=4+3; pause:1=50@t=5"
    outcome = run("ssgd", **TEN_SECONDS, faults=faults)
    assert last_s(outcome) == 15  # the third task begins again at 7
    lines = {(seen.kind, seen.t_s): seen for seen in outcome.cluster.faults_seen}
    assert lines["pause", 2.5].recovered_s == 1.5
    assert lines["pause", 5].workers == ()


@pytest.mark.parametrize(("on_loss", "left"), [("rehost", 3), ("drop", 2)])
def test_a_process_that_is_given_up_is_in_the_faults(on_loss: str, left: int) -> None:
    """The run goes on without it, and says so once."""
    faults = "kill:1@t=1.5; kill:1@t=3.5; kill:1@t=5.5"
    outcome = run("ssgd", **TEN_SECONDS, faults=faults, on_loss=on_loss, restarts="1")
    given_up = [seen for seen in outcome.cluster.faults_seen if seen.kind == "given-up"]
    assert [(seen.t_s, seen.asked, seen.recovered_s) for seen in given_up] == [(3.5, False, None)]
    assert given_up[0].text.startswith("host 1 was lost more than 1 times within 600 s")
    assert len(outcome.cluster.workers) == left


def test_a_spare_takes_over_at_once() -> None:
    """With a spare a kill costs the computed part alone, and the lost process is the next spare."""
    faults = "kill:1@t=2.5; kill:2@t=8.75"
    outcome = run("ssgd", **TEN_SECONDS, faults=faults, spares=1, restart_s=4.0)
    assert last_s(outcome) == 10 + 0.5 + 0.25
    assert [seen.recovered_s for seen in outcome.cluster.faults_seen] == [0, 0]


@settings(deadline=None)
@given(st.integers(1, 40).map(lambda n: n / 8))
def test_a_silent_task_is_answered_by_a_second_host(after_s: float) -> None:
    """A paused worker's task comes from a second host, suspect-after + its compute time later."""
    faults = "pause:1=100@t=3.5"
    outcome = run("ssgd", **TEN_SECONDS, faults=faults, suspect_after=after_s)
    fourth = outcome.updates[3].dones[1]
    assert fourth.worker == 1
    busy_s = max(0.0, 1 - after_s)  # the second host computes its own task first
    assert fourth.finished_s == 3 + after_s + busy_s + 1
    lines = [seen for seen in outcome.cluster.faults_seen if seen.kind == "suspect" and seen.t_s > 3]
    assert lines[0].t_s == 3 + min(after_s, 1) if after_s < 1 else 3 + after_s
    (pause,) = (seen for seen in outcome.cluster.faults_seen if seen.kind == "pause")
    assert pause.detected_s is not None or after_s <= 0.5  # suspected already when it begins


@pytest.mark.parametrize("ends", ["", "; kill:1@t=60+8"])
@pytest.mark.parametrize("policy", [{}, {"on_loss": "rehost"}, {"spares": 1}, {"hosts": 2}])
def test_a_host_that_stands_still_is_suspected_once(policy: dict[str, Any], ends: str) -> None:
    """For a hundred times as long as a silence lasts, others carry its workers; then they go home. It may be
    lost meanwhile.
    """
    options = {**TEN_SECONDS, "steps": 300, "compute_time": "constant:.5", **policy}
    plain = run("ssgd", **options, suspect_after=1.25)
    outcome = run("ssgd", **options, suspect_after=1.25, faults=f"pause:1=125@t=5.25{ends}")
    assert [u.weights.vector.tobytes() for u in outcome.updates] == [
        u.weights.vector.tobytes() for u in plain.updates
    ]
    assert not plain.cluster.faults_seen
    assert [seen.kind for seen in outcome.cluster.faults_seen].count("suspect") == 1
    assert last_s(outcome) <= 1.25 + 2 * last_s(plain)
    back_s = 68.25 if ends else 130.25
    late = [update for update in outcome.updates if update.finished_s > back_s + 2]
    assert {u.finished_s - u.dones[0].started_s for u in late} == {1.0 if "hosts" in policy else 0.5}


@pytest.mark.parametrize("policy", [{}, {"spares": 1}])
def test_a_slow_host_is_tried_less_and_less_often(policy: dict[str, Any]) -> None:
    """A host that is always five times slower is suspected some log2 T times in T seconds."""
    options = {**TEN_SECONDS, "steps": 600, **policy}
    outcome = run("asgd", **options, suspect_after=2.5, faults="slow:1=5@t=0")
    suspicions = [seen for seen in outcome.cluster.faults_seen if seen.kind == "suspect"]
    assert 5 <= len(suspicions) <= 2 + math.log2(last_s(outcome))
    assert all(seen.text.startswith("worker 1 was silent on host 1") for seen in suspicions)


def test_a_cut_host_is_suspected_once_and_answers_after_the_cut() -> None:
    """Its answer is held back as its results are."""
    outcome = run("ssgd", **{**TEN_SECONDS, "steps": 40}, suspect_after=1.5, faults="cut:1@t=3.5+20")
    assert [seen.kind for seen in outcome.cluster.faults_seen] == ["suspect", "cut"]
    assert {u.finished_s - u.dones[0].started_s for u in outcome.updates[-5:]} == {1}


def test_a_host_with_a_queue_is_not_silent() -> None:
    """It is as long as it has answered nothing, not as long as a task has waited in its queue."""
    options: dict[str, Any] = {"num_workers": 6, "steps": 5, "workload": "none", "hosts": 2}
    assert not run("ssgd", **options, suspect_after=1.25).cluster.faults_seen


def test_a_wrong_suspicion_costs_work_and_no_byte() -> None:
    """A slow worker that answers first has its second copy stopped: what that computed is counted."""
    options = {**SMALL, "slowdown": "2=3"}
    ours, plain = run("ssgd", **options, suspect_after=2.5), run("ssgd", **options)
    assert followed(ours.updates) != followed(plain.updates) or last_s(ours) == last_s(plain)
    assert [u.weights.vector.tobytes() for u in ours.updates] == [
        u.weights.vector.tobytes() for u in plain.updates
    ]
    assert {seen.kind for seen in ours.cluster.faults_seen} == {"suspect"}
    assert sum(seen.wasted for seen in ours.cluster.faults_seen) == 12
    assert last_s(ours) == last_s(plain)


def test_a_node_takes_all_its_hosts() -> None:
    """Hosts are spread over the nodes in turn; the node's workers wait together."""
    options = {**TEN_SECONDS, "num_workers": 5}
    outcome = run("ssgd", **options, nodes=2, faults="node:b@t=4.25", restart_s=2.0)
    (seen,) = outcome.cluster.faults_seen
    assert (seen.kind, seen.workers, seen.repeated, seen.recovered_s) == ("node", (1, 3), 2, 2.0)
    assert last_s(outcome) == 12.25


def test_a_host_that_fails_too_often_ends_the_run() -> None:
    """More losses in the window than --restarts are an error that names the option, if workers wait."""
    options = {**TEN_SECONDS, "faults": "kill:1@t=1.5; kill:1@t=4.5; kill:1@t=8.5", "restarts": "2"}
    with pytest.raises(ClusterError, match="worker 1: its process was lost more than 2 times within"):
        run("ssgd", **options)
    assert run("ssgd", **options, on_loss="rehost").tally.gradients == 30
    assert run("ssgd", **{**options, "restarts": "2,within=1"}).tally.gradients == 30


# --- Members ------------------------------------------------------------------------------------------------


def members(outcome: QuickRun) -> list[tuple[int, ...]]:
    """Return who took part in each update."""
    return [tuple(sorted(done.worker for done in update.dones)) for update in outcome.updates]


def test_a_member_leaves_when_its_task_has_come_in() -> None:
    """It takes part in the update of that task, is no member after it, and joins again."""
    outcome = run("ssgd", **TEN_SECONDS, faults="leave:1@t=2.5; join:1@t=4.5")
    assert members(outcome)[:7] == [(0, 1, 2)] * 3 + [(0, 2)] * 2 + [(0, 1, 2)] * 2
    assert outcome.tally.gradients >= 30
    assert outcome.cluster.restarts == [0, 0, 0]


def test_membership_by_update_and_step() -> None:
    """`update=V` changes the members once the next round has begun; `step=K`, with that mini-batch's task."""
    outcome = run("ssgd", **TEN_SECONDS, faults="leave:1@step=2; leave:2@update=5; join:1@update=7")
    assert members(outcome)[:9] == [(0, 1, 2)] * 3 + [(0, 2)] * 3 + [(0,)] * 2 + [(0, 1)]


def test_who_joins_first_begins_outside() -> None:
    """A worker whose first fault is a join is no member before."""
    outcome = run("ssgd", **TEN_SECONDS, faults="join:1@t=2.5")
    assert members(outcome)[:4] == [(0, 2)] * 3 + [(0, 1, 2)]


def test_under_drop_workers_leave_with_their_process() -> None:
    """Their tasks are lost, the mini-batches are taken again; they join with the new process."""
    outcome = run("ssgd", **TEN_SECONDS, faults="kill:1@t=2.5+3", on_loss="drop")
    assert members(outcome)[:7] == [(0, 1, 2)] * 2 + [(0, 2)] * 4 + [(0, 1, 2)]
    assert [done.step for done in outcome.dones if done.worker == 1][:3] == [0, 1, 2]
    kinds = [(seen.kind, seen.asked) for seen in outcome.cluster.faults_seen]
    assert kinds == [("leave", False), ("kill", True), ("join", False)]
    assert outcome.cluster.faults_seen[1].wasted == 1


def test_under_drop_the_fewest_members_wait() -> None:
    """With --min-workers members left, the next ones wait for their new process instead."""
    faults = "kill:0,1@t=2.5+3"
    outcome = run("ssgd", **TEN_SECONDS, faults=faults, on_loss="drop", min_workers=2)
    assert members(outcome)[2] == (1, 2)
    assert outcome.updates[2].finished_s == 6.5


def test_a_member_that_joins_while_its_host_is_away_waits_for_it() -> None:
    """It joins with the new process, not before."""
    outcome = run("asgd", **TEN_SECONDS, faults="leave:1@t=2; kill:1@t=3.5+4; join:1@t=5")
    joined = next(seen for seen in outcome.cluster.faults_seen if seen.kind == "join")
    assert joined.t_s == 7.5
    assert not [done for done in outcome.dones if done.worker == 1 and 3 < done.started_s < 7.5]


def test_nobody_left_and_none_to_come_is_an_error() -> None:
    """The run does not wait for ever: it fails in one line."""
    with pytest.raises(ClusterError, match="all members have left, and none will join"):
        run("ssgd", **TEN_SECONDS, faults="leave:0,1@t=2.5; leave:2@update=4; join:1@update=9")


def test_the_driver_may_be_lost_while_all_members_are_leaving() -> None:
    """It comes back without members, and waits for those that join."""
    options = {**TEN_SECONDS, "slowdown": "1=1.1,2=1.37", "checkpoint_every": ".01"}
    outcome = run("asgd", **options, faults="leave:0,1,2@t=3.5; driver@t=4.15+1; join:0@t=9")
    assert {(done.worker, done.started_s >= 9) for done in outcome.dones[-4:]} == {(0, True)}


@pytest.mark.parametrize("trigger", ["t=4.5", "update=4"])
def test_a_lost_driver_ends_the_run_once(trigger: str) -> None:
    """It raises, says for how long, and does not happen again in a cluster that goes back because of it."""
    cfg = config("ssgd", **TEN_SECONDS, faults=f"driver@{trigger}+7")
    seen, states = list[Update](), list[Any]()
    cluster, w = begun(cfg)
    with pytest.raises(DriverLost) as lost:
        follow(cfg, cluster, w, seen, states)
    assert lost.value.lasts_s == 7
    assert [line.kind for line in cluster.faults_seen] == ["driver"]
    state, w = states[1]
    cluster.restore(replace(state, faults=cluster.state().faults))
    again = list[Update]()
    follow(cfg, cluster, w, again, [], spent=6)
    assert followed(seen[2:]) == followed(again[: len(seen) - 2])
    assert len(again) == 8


def test_what_is_not_over_when_the_run_ends_is_recorded_then() -> None:
    """Each fault leaves one line, also one in which the run ends; without a time of recovery."""
    outcome = run("asgd", **TEN_SECONDS, faults="pause:1=100@t=4; cut:0@t=2+1; kill:2@t=9+50")
    assert [(s.kind, s.recovered_s) for s in outcome.cluster.faults_seen] == [
        ("cut", 1.0), ("pause", None), ("kill", None),
    ]  # fmt: skip


# --- The whole ----------------------------------------------------------------------------------------------


def begun(cfg: TrainConfig) -> tuple[HostedCluster, Weights]:
    workload = make_workload(cfg)
    with open_cluster(cfg, workload) as cluster:
        assert isinstance(cluster, HostedCluster)
        return cluster, Weights(workload.objective.initial_weights(cfg.seed))


def follow(
    cfg: TrainConfig,
    cluster: HostedCluster,
    w: Weights,
    seen: list[Update],
    states: list[Any],
    spent: int = 0,
) -> None:
    """Run to the end of the budget, and keep the state after each update."""
    for update in load(cfg.mode).train(cluster, w, cfg):
        seen.append(update)
        cluster.reached(update.weights.version)
        states.append((cluster.state(), update.weights))
        spent += sum(done.batches for done in update.dones)
        if spent >= cfg.budget:
            return


def schedule(rng: random.Random, workers: int) -> str:
    """Return faults of all kinds at random."""
    found = ["spot:mtbf=30,back=2"] * (rng.random() < 0.3)
    for _ in range(rng.randint(1, 7)):
        who, at_s = rng.randrange(workers), round(rng.uniform(0, 25), 2)
        long_s = round(rng.uniform(0.1, 6), 2)
        when = rng.choice(
            [f"t={at_s}", f"t={at_s}", f"update={rng.randint(1, 30)}", f"step={rng.randint(0, 9)}"]
        )
        found += rng.choice(
            [
                [f"kill:{who}@{when}+{long_s}"],
                [f"pause:{who}={long_s}@{when}"],
                [f"slow:{who}={rng.choice(['3', '1~4'])}@{when}+{long_s}"],
                [f"cut:{who}@{when}+{long_s}"],
                [f"node:{rng.choice('ab')}@t={at_s}+{long_s}"],
                [f"leave:{who}@t={at_s}", f"join:{who}@t={at_s + long_s}"],
            ]
        )
    return "; ".join(found)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["ssgd", "asgd", "ssp", "ringmaster", "kasync", "localsgd"]))
def test_it_goes_on_from_any_state(seed: int, mode: str) -> None:
    """Under any schedule: every task that was started is done, lost, cancelled or in flight, and from the
    state after any update, kept as JSON where it is not arrays, the run goes on bit for bit.
    """
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "faults": schedule(rng, 4),
        "on_loss": rng.choice(["replace", "rehost", "drop"]),
        "hosts": rng.choice([None, 2, 3]),
        "spares": rng.choice([0, 0, 1]),
        "nodes": 2,
        "suspect_after": rng.choice([None, 1.5, 4.0]),
        "latency_s": rng.choice([0.0, 0.25]),
        "compute_time": rng.choice(["exponential:1", "constant:1"]),
        "restarts": "1000",
    }
    try:
        cfg = config(mode, **{**SMALL, "steps": 6}, **options)
    except ValueError:  # like a leave of somebody who has left
        return
    cluster, w = begun(cfg)
    started, came = count(cluster)
    seen, states = list[Update](), list[Any]()
    with suppress(ClusterError):  # all have left: known only now, where an update triggers it
        follow(cfg, cluster, w, seen, states)
    assert cluster.workers or not cluster.in_flight
    in_flight = sum(cluster._ledger.flights[worker].task.batches for worker in cluster.in_flight)
    assert sum(started) == sum(came) + cluster.lost + sum(cluster.cancelled) + in_flight
    whole = sum(done.batches for update in seen for done in update.dones) >= cfg.budget
    waits = [n for n, (state, _) in enumerate(states[:-1]) if state.faults["due"]]
    for n in (*waits, *rng.sample(range(len(states) - 1), min(3, len(states) - 1))) if whole else ():
        state, w = pickle.loads(pickle.dumps(states[n]))
        for part in (state.engine, state.hosts, state.faults):
            assert json.loads(json.dumps(part)) == part
        if rng.random() < 0.5:  # as earlier versions kept what a step has triggered
            state.engine["future"] += [[0.0, 1, 0, "fault", [text]] for text in state.faults.pop("due")]
        other, _ = begun(cfg)
        other.restore(state)
        again = list[Update]()
        follow(cfg, other, w, again, [], spent=sum(d.batches for u in seen[: n + 1] for d in u.dones))
        assert followed(again) == followed(seen[n + 1 :])


def count(cluster: HostedCluster) -> tuple[list[int], list[int]]:
    """Count the mini-batches that are started and that come in, beside the cluster's own books."""
    started, came = list[int](), list[int]()
    start, next_done = cluster.start, cluster.next_done

    def counted_start(worker: int, task: Any, w: Weights) -> None:
        start(worker, task, w)
        started.append(task.batches)

    def counted_next() -> Any:
        done = next_done()
        came.extend([done.batches] if done else [])
        return done

    cluster.start, cluster.next_done = counted_start, counted_next  # type: ignore[method-assign]
    return started, came
