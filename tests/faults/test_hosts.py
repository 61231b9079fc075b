"""Hosts: who carries whom after losses, and a simulated host against a naive walk through time."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.core.tasks import gradient
from dsgd.core.time_laws import Trace
from dsgd.core.timing import ComputeTimes
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.sim.sim_with_faults import HostedCluster
from dsgd.running.quick_run import config
from dsgd.scenario.fault_options import FaultConfig
from dsgd.scenario.hosts import Hosts, OnLoss

# --- Decisions ----------------------------------------------------------------------------------------------


def test_replace_waits() -> None:
    """Workers of a lost host wait for its new process; nobody else's do."""
    hosts = Hosts(6, 3)
    loss = hosts.lose(1, 0.0, range(6))
    assert (loss.moved, list(loss.waiting), list(loss.leaving), loss.restart_s) == ({}, [1, 4], [], 0.0)
    assert hosts.back(1, 0.0) == ([1, 4], [])


def test_rehost_moves_to_the_least_loaded_and_home_again() -> None:
    """Workers move to the living hosts with the fewest workers; with the new process they are at home."""
    hosts = Hosts(5, 3, on_loss="rehost")  # hosts carry 0 3, 1 4, 2
    assert hosts.lose(0, 0.0, range(5)).moved == {0: 2, 3: 1}
    assert hosts.carried(2) == [0, 2]
    assert hosts.back(0, 0.0)[0] == [0, 3]
    assert hosts.carrier == [0, 1, 2, 0, 1]


def test_rehost_with_nobody_left_takes_the_first_that_is_back() -> None:
    """If all hosts are lost their workers wait, and the first new process carries all of them."""
    hosts = Hosts(4, 2, on_loss="rehost")
    hosts.lose(0, 0.0, range(4))
    assert list(hosts.lose(1, 0.0, range(4)).waiting) == [0, 1, 2, 3]
    assert hosts.back(0, 0.0)[0] == [0, 1, 2, 3]
    assert hosts.back(1, 0.0)[0] == [1, 3]


@pytest.mark.parametrize("on_loss", ["replace", "rehost", "drop"])
def test_a_free_spare_takes_over_first(on_loss: OnLoss) -> None:
    """Under every policy a spare takes over at once, and is free again once the lost host is back."""
    hosts = Hosts(4, 2, 2, on_loss=on_loss)
    assert hosts.lose(0, 0.0, range(4)).moved == {0: 2, 2: 2}
    assert hosts.back(0, 0.0) == ([0, 2], [])
    assert hosts.lose(1, 1.0, range(4)).moved == {1: 2, 3: 2}


@pytest.mark.parametrize("on_loss", ["replace", "drop"])
def test_a_spare_that_is_free_again_stands_in_for_the_next_lost_host(on_loss: OnLoss) -> None:
    """Nobody waits while a living host carries nobody."""
    hosts = Hosts(3, 3, 1, on_loss=on_loss)
    hosts.lose(0, 0.0, range(3))
    left = hosts.lose(1, 1.0, range(3)).leaving
    assert hosts.back(0, 2.0) == ([0, 1], list(left))
    assert hosts.carrier == [0, 3, 2]
    hosts.lose(3, 3.0, range(3))
    assert hosts.back(1, 4.0)[0] == [1]


def test_drop_stops_at_min_workers() -> None:
    """Workers leave down to the fewest members; those below that wait."""
    hosts = Hosts(4, 2, on_loss="drop", min_workers=3)
    loss = hosts.lose(0, 0.0, range(4))
    assert (list(loss.leaving), list(loss.waiting)) == ([0], [2])
    assert hosts.back(0, 0.0) == ([0, 2], [0])


def test_restarts_are_counted_in_a_window_and_take_longer_each_time() -> None:
    """The first restart is at once, the next ones back off with jitter, too many are refused."""
    hosts = Hosts(1, 1, max_restarts=4, window_s=10.0, seed=5)
    waits = [hosts.lose(0, t_s, [0]).restart_s for t_s in (0.0, 1.0, 2.0, 3.0)]
    assert waits[0] == 0
    for wait_s, longest_s in zip(waits[1:], (0.5, 1.0, 2.0), strict=True):
        assert wait_s is not None
        assert longest_s / 2 <= wait_s <= longest_s
    assert hosts.lose(0, 4.0, [0]).restart_s is None
    assert hosts.lose(0, 30.0, [0]).restart_s == 0


# --- Suspicion ----------------------------------------------------------------------------------------------


def test_a_silent_host_s_workers_are_carried_by_others_until_it_answers() -> None:
    """By a free spare, else by those with the fewest; the second copy of a task goes there too."""
    hosts = Hosts(4, 2, 1)
    assert hosts.suspect(0, 1.0)
    assert hosts.carrier == [2, 1, 2, 1]
    assert hosts.second(0, 0) == 2
    assert not hosts.suspect(0, 1.0)
    hosts.answered(0, 2.0, late=True)
    assert hosts.carrier == [0, 1, 0, 1]
    without = Hosts(5, 3)  # hosts carry 0 3, 1 4, 2
    without.suspect(0, 1.0)
    assert without.carrier == [2, 1, 2, 1, 1]


def test_a_second_copy_goes_to_another_living_host() -> None:
    """Even if all of them are silent; if no other one lives there is none."""
    hosts = Hosts(3, 3)
    for host in range(3):
        hosts.suspect(host, 1.0)
    assert hosts.second(0, 0) == 1
    for host in (1, 2):
        hosts.lose(host, 2.0, range(3))
    assert hosts.second(0, 0) is None


def test_if_all_hosts_are_silent_everybody_is_at_home() -> None:
    """And the first that answers carries all, until the next one does."""
    hosts = Hosts(3, 3)
    for host in range(3):
        hosts.suspect(host, 1.0)
    assert hosts.carrier == [0, 1, 2]
    hosts.answered(1, 2.0, late=True)
    assert hosts.carrier == [1, 1, 1]
    hosts.answered(0, 3.0, late=True)
    assert hosts.carrier == [0, 1, 1]


@pytest.mark.parametrize("on_loss", ["replace", "rehost", "drop"])
def test_a_silent_host_that_is_lost_has_nobody_waiting(on_loss: OnLoss) -> None:
    """Its workers have moved; its new process is trusted, and carries them again."""
    hosts = Hosts(3, 3, on_loss=on_loss)
    hosts.suspect(1, 1.0)
    loss = hosts.lose(1, 2.0, range(3))
    assert (loss.moved, list(loss.waiting), list(loss.leaving)) == ({}, [], [])
    assert hosts.back(1, 3.0) == ([1], [])
    assert not hosts.is_silent(1)


def test_workers_of_a_silent_host_survive_the_one_that_stands_in() -> None:
    """Under every policy: their home still lives, so they need not wait for a new process."""
    hosts = Hosts(3, 3)
    hosts.suspect(1, 1.0)
    assert hosts.carrier == [0, 0, 2]
    loss = hosts.lose(0, 2.0, range(3))
    assert (loss.moved, list(loss.waiting)) == ({1: 2}, [0])


@pytest.mark.parametrize("answers", ["always late", "now and then in time"])
def test_a_host_that_is_only_slow_does_not_come_and_go_for_ever(answers: str) -> None:
    """Always late: within T seconds it is suspected some log2 T times. A result that counts clears it."""
    hosts, suspicions, tasks = Hosts(2, 2), 0, 0
    for second in range(10_000):
        if hosts.place(0, float(second)) == 0:
            tasks += 1
            late = answers == "always late" or tasks % 3 != 0
            if late:
                suspicions += hosts.suspect(0, second + 0.5)
            hosts.answered(0, second + 0.75, late=late)
    if answers == "always late":
        assert suspicions <= 2 + math.log2(10_000)
    else:
        assert suspicions > 1000


def test_an_old_state_trusts_all() -> None:
    """One that was kept before hosts were suspected is read."""
    hosts = Hosts(2, 2)
    hosts.suspect(1, 3.0)
    new = ("heard_s", "trusted_s", "late_since_s")
    hosts.restore({name: value for name, value in Hosts(2, 2).state().items() if name not in new})
    assert hosts.state() == Hosts(2, 2).state()


@settings(max_examples=400)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 2),
    st.sampled_from(["replace", "rehost", "drop"]),
    st.lists(
        st.tuples(st.sampled_from(["lose", "back", "suspect", "answer"]), st.integers(0, 7)), max_size=30
    ),
)
def test_every_worker_is_carried_or_waits_or_has_left(
    num_workers: int, num_hosts: int, spares: int, on_loss: OnLoss, actions: list[tuple[str, int]]
) -> None:
    """Whatever is lost and comes back: a member without a living host waits, but never beside a free host
    that is trusted, nor do workers of two homes share one then; with all hosts back and heard everybody is a
    member and carried; the state can be kept at any moment.
    """
    num_hosts = min(num_hosts, num_workers)

    def new() -> Hosts:
        return Hosts(num_workers, num_hosts, spares, on_loss=on_loss, max_restarts=10**6)

    hosts, members = new(), set(range(num_workers))
    for n, (action, number) in enumerate(actions):
        host = number % (num_hosts + spares)
        if action == "lose":
            loss = hosts.lose(host, float(n), sorted(members))
            members -= {*loss.leaving}
            assert all(hosts.alive[there] for there in loss.moved.values())
            assert not {*loss.moved} & {*loss.waiting}
        elif action == "back":
            members |= {*hosts.back(host, float(n))[1]}
        elif hosts.alive[host] and action == "suspect":
            hosts.suspect(host, float(n))
        elif hosts.alive[host]:
            hosts.answered(host, float(n), late=hosts.is_silent(host))
        if any(alive and not hosts.is_silent(h) for h, alive in enumerate(hosts.alive)):
            policy_allows = [
                w for w in range(num_workers) if on_loss == "rehost" or hosts.alive[hosts.home(w)]
            ]
            carriers = [hosts.carrier[worker] for worker in policy_allows]
            assert not any(hosts.alive[carrier] and hosts.is_silent(carrier) for carrier in carriers)
        assert members
        assert hosts.dropped == set(range(num_workers)) - members
        if on_loss == "rehost" and any(hosts.alive):
            assert all(hosts.alive[carrier] for carrier in hosts.carrier)
        suspected = any(action == "suspect" for action, _ in actions)
        free = any(alive and not hosts.carried(host) for host, alive in enumerate(hosts.alive))
        if free and not suspected:
            assert all(hosts.alive[carrier] for carrier in hosts.carrier)
            by_home = dict(zip(map(hosts.home, range(num_workers)), hosts.carrier, strict=True))
            assert len({*by_home.values()}) == len(by_home)
        kept = json.loads(json.dumps(hosts.state()))
        hosts = new()
        hosts.restore(kept)
    for host in range(num_hosts + spares):
        members |= {*hosts.back(host, 99.0)[1]}
        hosts.answered(host, 99.0, late=False)
    assert members == set(range(num_workers))
    assert len({*hosts.carrier}) == num_hosts
    assert all(hosts.alive[carrier] for carrier in hosts.carrier)


# --- Time ---------------------------------------------------------------------------------------------------

# Times are eighths and factors powers of two: both computations are exact, and compared for equality.
EIGHTHS = st.integers(1, 200).map(lambda n: n / 8)
LENGTHS = st.integers(1, 64).map(lambda n: n / 8)


class Disturbance(NamedTuple):
    """What happens to the one host: kind, when, for how long, and a factor on the compute time."""

    kind: str
    at_s: float
    lasts_s: float
    factor: float

    @property
    def text(self) -> str:
        match self.kind:
            case "pause":
                return f"pause:0={self.lasts_s}@t={self.at_s}"
            case "slow":
                return f"slow:0={self.factor}@t={self.at_s}+{self.lasts_s}"
        return f"{self.kind}:0@t={self.at_s}+{self.lasts_s}"


DISTURBANCES = st.lists(
    st.builds(
        Disturbance, st.sampled_from(["kill", "pause", "slow", "cut"]), EIGHTHS, LENGTHS,
        st.sampled_from([0.5, 2.0, 4.0]),
    ),
    max_size=6,
    unique_by=lambda d: d.at_s,
)  # fmt: skip


def naive(works_s: list[float], disturbances: list[Disturbance], restart_s: float) -> list[float]:
    """Return when each of a worker's tasks comes in: everything is looked up in the list, nothing is kept."""
    of = {kind: [d for d in disturbances if d.kind == kind] for kind in ("kill", "pause", "slow", "cut")}
    of["kill"].sort(key=lambda d: d.at_s)

    def back_s(lost_s: float) -> float:
        """When a new process can compute: one that is lost while it starts delays that, where none is there
        none can be lost.
        """
        began_s = back_s = lost_s
        for kill in of["kill"]:
            if kill.at_s == lost_s or began_s <= kill.at_s < back_s:
                began_s = kill.at_s + kill.lasts_s
                back_s = began_s + restart_s
        return back_s

    def link_s(t_s: float, *, after: bool) -> float:
        """When a message that is sent then passes; after: a cut that begins at that time comes too late."""
        cuts = [d for d in of["cut"] if d.at_s < t_s or (d.at_s == t_s and not after)]
        held_s = max([t_s, *(d.at_s + d.lasts_s for d in cuts)])
        return held_s if held_s == t_s else link_s(held_s, after=True)

    def finish_s(t_s: float, work_s: float, since_s: float) -> float:
        """When work that begins then is computed; since_s: the process is as old as that."""
        pauses = [(d.at_s, d.at_s + d.lasts_s) for d in of["pause"] if d.at_s >= since_s]
        ends = sorted({x for d in disturbances for x in (d.at_s, d.at_s + d.lasts_s) if x > t_s})
        for end_s in [*ends, math.inf]:
            if not any(begin_s <= t_s < end for begin_s, end in pauses):
                slows = (d.factor for d in of["slow"] if d.at_s <= t_s < d.at_s + d.lasts_s)
                factor = math.prod(slows)
                if t_s + work_s * factor <= end_s:
                    return t_s + work_s * factor
                work_s -= (end_s - t_s) / factor
            t_s = end_s
        raise AssertionError

    came, now_s, since_s = list[float](), 0.0, 0.0
    for work_s in works_s:
        sent_s, again = now_s, False
        while True:
            computed_s = finish_s(link_s(sent_s, after=again), work_s, since_s)
            now_s = link_s(computed_s, after=True)
            lost_s = next((d.at_s for d in of["kill"] if sent_s <= d.at_s < max(computed_s, now_s)), None)
            if lost_s is None:
                break
            sent_s = since_s = back_s(lost_s)
            again = True
        came.append(now_s)
    return came


def simulated(works_s: list[float], disturbances: list[Disturbance], restart_s: float) -> list[float]:
    """Return the same from the simulator, for a worker that gets its next task at once."""
    workload = make_workload(config("asgd", num_workers=1, workload="none"))
    fault = FaultConfig(
        faults="; ".join(d.text for d in disturbances),
        restart_s=restart_s,
        restarts="3,within=1e-9",  # each loss counts as the first: no backoff
    )
    times = ComputeTimes(Trace("", (tuple(works_s),), per_worker=False), 0)
    cluster = HostedCluster(workload, times, fault=fault)
    came = []
    for _ in works_s:
        cluster.start(0, gradient, Weights(workload.objective.initial_weights(0)))
        done = cluster.next_done()
        assert done
        came.append(done.finished_s)
    return came


@settings(max_examples=300, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=6), DISTURBANCES, st.sampled_from([0.0, 0.5]))
def test_a_host_keeps_the_times_of_a_naive_one(
    works_s: list[float], disturbances: list[Disturbance], restart_s: float
) -> None:
    """Whatever kills, pauses, slows down or cuts off a host, together too: each task comes in when a walk
    through the list of disturbances says.
    """
    assert simulated(works_s, disturbances, restart_s) == naive(works_s, disturbances, restart_s)
