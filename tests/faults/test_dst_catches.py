"""A harness that cannot fail is worth nothing: each planted mistake is found within 200 random schedules.

The mistakes are those that elastic and fault-tolerant systems make. Each is planted into a strategy, the
ledger, the clocks or the simulator. Without them the same schedules hold: tests/faults/test_dst.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from dst.many_schedules import many
from test_gate_catches import Plant, in_place, in_strategy

from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.clocks import Clocks
from dsgd.core.ledger import Idle, Ledger
from dsgd.core.protocol import Cluster, Done, in_worker_order, start_all
from dsgd.core.tasks import Task
from dsgd.core.weights import Weights
from dsgd.engines.sim.sim_hosts import SimHost
from dsgd.engines.sim.sim_with_faults import HostedCluster
from dsgd.engines.task_values import LazyValues
from dsgd.scenario.fault_plan import Plan
from dsgd.scenario.hosts import Hosts
from dsgd.strategies import modes


def after(function: Callable[..., Any], wrong: Callable[..., None]) -> Callable[..., Any]:
    """Return a method that then also does what is wrong: wrong(self, result, *arguments)."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        result = function(self, *arguments, **named)
        wrong(self, result, *arguments)
        return result

    return method


def joins_at_zero(clocks: Clocks, worker: int) -> None:
    clocks._clock[worker] = 0
    clocks._members_at[0] = clocks._members_at.get(0, 0) + 1
    clocks.slowest, clocks._lagging = 0, []


def leaves_its_clock(clocks: Clocks, worker: int) -> None:
    clocks._clock.pop(worker)


def given_is_not_reduced(ledger: Any, flight: Any, worker: int) -> None:
    ledger.given += flight.task.batches if flight else 0


def lost_step_is_skipped(ledger: Any, flight: Any, worker: int) -> None:
    ledger.steps[worker] += flight.task.batches if flight else 0


def cancelled_step_is_drawn_again(ledger: Any, flight: Any, worker: int, computed_s: float) -> None:
    ledger.steps[worker] -= flight.task.batches


def a_task_counts_as_one_mini_batch(ledger: Any, flight: Any, worker: int, now_s: float) -> None:
    ledger.steps[worker] -= flight.task.batches - 1


def barrier_counted_at_the_start(cluster: Cluster, task: Task, w: Weights) -> list[Done]:
    start_all(cluster, task, w)
    dones: list[Done] = []
    for _ in range(len(cluster.in_flight)):
        while not (done := cluster.next_done()):
            pass
        dones.append(done)
    return in_worker_order(dones)


def forget_states(values: LazyValues, _: None, states: Any) -> None:
    values._states = {}


def before(function: Callable[..., Any], wrong: Callable[..., None]) -> Callable[..., Any]:
    """Return a method that does what is wrong first: wrong(self, *arguments)."""

    def method(self: Any, *arguments: Any) -> Any:
        wrong(self, *arguments)
        return function(self, *arguments)

    return method


def no_least(hosts: Any, _: None, *arguments: Any) -> None:
    hosts._min_workers = 0


def draw_the_next(cluster: Any, worker: int, host: int, to_worker: int | None = None) -> None:
    flight = cluster._ledger.flights[worker]
    if to_worker is None and cluster._values:
        cluster._values.drop(worker)
        cluster._values.add(worker, flight.task, cluster._ledger.steps[worker] + 1, flight.w.vector)


def once(send: Callable[..., None]) -> Callable[..., None]:
    def method(cluster: Any, worker: int, host: int, to_worker: int | None = None) -> None:
        if to_worker is not None:
            send(cluster, worker, host, to_worker)

    return method


def states_are_lost(cluster: Any, _: bool, fault: Any, lost: Sequence[int]) -> None:
    for worker in cluster.workers:
        if cluster._values and cluster._hosts.home(worker) in lost:
            cluster._values._states.pop(worker, None)


def computed_is_lost(host: Any, _: None, now_s: float, until_s: float) -> None:
    host.held = _Nowhere()


class _Nowhere(list[Any]):
    """Keeps nothing."""

    def append(self, _: Any) -> None:
        pass


def forget_open(cluster: Any, _: None, state: Any) -> None:
    cluster._supervisor.book.open.clear()


def forget_losses(hosts: Any, _: None, state: Any) -> None:
    hosts._losses = [0] * len(hosts._losses)


def read_the_newest(cluster: Any, _: None, state: Any) -> None:
    flights = cluster._ledger.flights
    for worker, flight in flights.items():
        flights[worker] = flight._replace(w=max((f.w for f in flights.values()), key=lambda w: w.version))


def stays(hosts: Any, worker: int, now_s: float) -> None:
    if hosts.alive[hosts.carrier[worker]] and not hosts.is_silent(hosts.carrier[worker]):
        hosts.home = lambda _: hosts.carrier[worker]
    else:
        hosts.__dict__.pop("home", None)


MISTAKES: dict[str, Plant] = {
    "a newcomer's clock is 0": in_place(Clocks, "join", joins_at_zero),
    "a leaver's clock stays": in_place(Clocks, "leave", leaves_its_clock),
    "lost mini-batches are not given again": in_place(
        Ledger, "leave", after(Ledger.leave, given_is_not_reduced)
    ),
    "a lost mini-batch is skipped when its worker is back": in_place(
        Ledger, "leave", after(Ledger.leave, lost_step_is_skipped)
    ),
    "a cancelled mini-batch is drawn again": in_place(
        Ledger, "cancel", after(Ledger.cancel, cancelled_step_is_drawn_again)
    ),
    "a task of several mini-batches counts as one": in_place(
        Ledger, "finish", after(Ledger.finish, a_task_counts_as_one_mini_batch)
    ),
    "the order of waiting is lost in the state": in_place(
        Idle, "order", property(lambda idle: (None, sorted(idle)))
    ),
    "workers' states are not restored": in_place(
        LazyValues, "restart", after(LazyValues.restart, forget_states)
    ),
    "--min-workers is ignored": in_place(Hosts, "__init__", after(Hosts.__init__, no_least)),
    "a dropped worker never joins again": in_place(
        Hosts, "back", lambda hosts, *at, back=Hosts.back: (back(hosts, *at)[0], [])
    ),
    "a silent host is never trusted again": in_place(
        Hosts, "answered", lambda hosts, host, now_s, late: None
    ),
    "a silent host gets tasks": in_place(
        Hosts, "_doubt", lambda hosts, host, now_s: 0 if hosts.alive[host] else 3
    ),
    "a host that answers again stays without its workers": in_place(
        Hosts, "place", before(Hosts.place, stays)
    ),
    "the result of a second copy is taken for the worker's next task": in_place(
        HostedCluster, "_drop_void_results", lambda cluster: None
    ),
    "a repeated task draws the next mini-batch": in_place(
        HostedCluster, "_send", before(HostedCluster._send, draw_the_next)
    ),
    "a task is not sent again when its host is lost": in_place(
        HostedCluster, "_send", once(HostedCluster._send)
    ),
    "a worker loses its state with its process": in_place(
        HostedCluster, "_lose", after(HostedCluster._lose, states_are_lost)
    ),
    "results held back by a cut link are lost": in_place(
        SimHost, "cut", after(SimHost.cut, computed_is_lost)
    ),
    "faults come due again after a restart": in_place(Plan, "go_to", lambda plan, position: None),
    "which faults are not over is lost in the state": in_place(
        HostedCluster, "restore", after(HostedCluster.restore, forget_open)
    ),
    "how often a host was lost is lost in the state": in_place(
        Hosts, "restore", after(Hosts.restore, forget_losses)
    ),
    "a lost driver forgets what its tasks in flight had computed on": in_place(
        HostedCluster, "restore", after(HostedCluster.restore, read_the_newest)
    ),
    "a run ends while all members are away": in_strategy(
        "easgd",
        "    rule = chain(Pull(cfg.alpha))\n",
        "    rule = chain(Pull(cfg.alpha))\n"
        "    from dsgd.core.protocol import start_portions as right\n"
        "    start_portions = lambda *given: right(*given) and bool(cluster.in_flight)\n",
    ),
    "a worker that is about to leave is given a task": in_strategy(
        "dssp", "if left and i in cluster.idle else", "if left else"
    ),
    "changes of the members are hidden from the strategy": in_strategy(
        "asgd",
        "        if done := cluster.next_done():\n",
        "        while not (done := cluster.next_done()):\n            pass\n        if done:\n",
    ),
    "a barrier is counted at its start": in_strategy(
        "ssgd",
        "    rule = ",
        "    from test_dst_catches import barrier_counted_at_the_start as run_all\n    rule = ",
    ),
    "SSP is one too lax": in_strategy(
        "ssp",
        "    rule = ",
        "    from dataclasses import replace\n    cfg = replace(cfg, slack=cfg.slack + 1)\n    rule = ",
    ),
    "Ringmaster takes a gradient that is just too old": in_strategy(
        "ringmaster", "done.read >= cfg.bound", "done.read > cfg.bound"
    ),
    "K-sync takes any gradient": in_strategy("ksync", "done.read == w.version", "True"),
    "Rennala's late gradients are in no update": in_strategy(
        "rennala", "yield Update(w, dones, ignored=late)", "yield Update(w, dones)"
    ),
    "DSSP remembers by itself who may run ahead": in_strategy(
        "dssp", "dict(w.kept or {})", "cluster.__dict__.setdefault('extra', {})"
    ),
}
ONLY: dict[str, list[str]] = {
    "the order of waiting is lost in the state": ["ssp", "dssp", "diloco", "easgd"],
    "a worker loses its state with its process": ["diloco", "easgd"],
    "a lost driver forgets what its tasks in flight had computed on": ["asgd", "dcasgd"],
    "a run ends while all members are away": ["easgd"],
    "a worker that is about to leave is given a task": ["dssp"],
    "changes of the members are hidden from the strategy": ["asgd"],
    "a barrier is counted at its start": ["ssgd"],
    "SSP is one too lax": ["ssp"],
    "Ringmaster takes a gradient that is just too old": ["ringmaster"],
    "K-sync takes any gradient": ["ksync"],
    "Rennala's late gradients are in no update": ["rennala"],
    "DSSP remembers by itself who may run ahead": ["dssp"],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_breaks_an_invariant(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first 200 schedules finds it."""
    MISTAKES[mistake](monkeypatch)
    subjects = [Subject(mode) for mode in ONLY.get(mistake, modes())]
    each = (many(range(seed, seed + 1), subjects).broken for seed in range(200))
    broken = next(filter(None, each), None)
    assert broken
    assert not any(error in str(broken) for error in ("TypeError", "AttributeError"))  # planted wrongly
