"""Messages, links and topologies: times and bytes are those of the closed forms."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

from dsgd.compare.experiment_file import load
from dsgd.core.protocol import Engine, Update
from dsgd.core.tasks import Gradient, gradient
from dsgd.core.timing import ComputeTimes
from dsgd.core.traffic import MessageSizes
from dsgd.core.weights import Weights
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster
from dsgd.engines.ray.transport.delayed_results import HeldBack
from dsgd.engines.replay import ReplayCluster, rolled_forward
from dsgd.engines.sim.sim import SimCluster
from dsgd.records.writer import RunRecord
from dsgd.running.execute import Ended, execute
from dsgd.running.quick_run import QuickRun, Workers, config, run, same_bytes
from dsgd.running.replaying import recorded_run
from dsgd.scenario.allreduce import AllReduce
from dsgd.scenario.links import Links, PeerLinks
from dsgd.scenario.star import Network, Star
from dsgd.strategies import strategy_of
from dsgd.theory.exchanges import served_round_time


@dataclass(frozen=True)
class Halved(Gradient):
    """A gradient that travels in half the bytes."""

    def value_bytes(self, num_weights: int) -> int:
        return 2 * num_weights


def simulated(num_workers: int = 2, network: Network | None = None, **options: Any) -> SimCluster:
    """Return a cluster of xor's mlp, with steps of 1 s."""
    cfg = config("ssgd", num_workers=num_workers, **options)
    return SimCluster(make_workload(cfg), ComputeTimes(cfg.timing.compute_law, 0), network)


def test_each_message_has_its_own_size() -> None:
    """A value travels in the bytes that its task says, weights in those that they say, padding added."""
    cluster = simulated(network=Network(bytes_per_s=100.0, padding_bytes=40))
    num_weights = 65  # of an mlp 2-16-1
    w = Weights(make_workload(config("ssgd")).objective.initial_weights(0))
    assert len(w.vector) == num_weights
    cluster.start(0, Halved(), w._replace(wire_bytes=10))
    cluster.start(1, gradient, w)
    first, second = cluster.next_done(), cluster.next_done()
    assert first
    assert second
    assert (first.bytes_to_worker, first.bytes_to_server) == (10 + 40, 2 * 65 + 40)
    assert (second.bytes_to_worker, second.bytes_to_server) == (4 * 65 + 40, 4 * 65 + 40)
    assert first.finished_s == pytest.approx(0.5 + 1 + 1.7, rel=1e-12)
    assert second.finished_s == pytest.approx(0.5 + 3.0 + 1 + 3.0, rel=1e-12)


def test_a_message_has_four_bytes_for_each_weight() -> None:
    """Unless a task or a version of the weights says otherwise, and then that version alone."""
    sizes = MessageSizes(1000, 8)
    w = Weights(make_workload(config("ssgd")).objective.initial_weights(0), wire_bytes=7)
    assert sizes.to_server(gradient) == sizes.to_worker(w.replaced(w.vector)) == 4008
    assert sizes.to_worker(w) == sizes.to_worker(w.keeping(1)) == 15
    assert sizes.to_server(Halved()) == 2008


# --- what an exchange takes ---------------------------------------------------------------------------------

_RING = {"topology": "allreduce:ring", "latency_s": 0.1, "bytes_per_s": 1000.0}


@pytest.mark.parametrize(
    ("mode", "options", "seconds"),
    [
        ("ssgd", {}, 0.0),
        ("ssgd", {"latency_s": 0.5}, 1.0),
        ("asgd", {"latency_s": 0.5}, 1.0),
        ("localsgd", {"latency_s": 0.5, "local_steps": 4}, 1.0),
        ("ssgd", _RING, 6 * (0.1 + 260 / 4 / 1000)),
        ("ssgd", {"bytes_per_s": 1000.0, "latency_s": 0.1}, 2 * (0.1 + 0.26)),
        ("sgp", {"bytes_per_s": 1000.0, "latency_s": 0.1, "compute_time": "constant:1"}, 0.36 * 11 / 12),
    ],
)
def test_an_exchange_is_measured_without_the_waiting_for_others(
    mode: str, options: dict[str, Any], seconds: float
) -> None:
    """`exchange_s` is what messages take, there and back, by the formulas, whatever the compute times; a
    round of gossip begins with the second one.
    """
    given = {"num_workers": 4, "steps": 12, "compute_time": "exponential:1", **options}
    assert ended(mode, **given).summary["exchange_s"] == pytest.approx(seconds, abs=1e-8)


# --- all that is sent counts --------------------------------------------------------------------------------


def ended(mode: str, **options: Any) -> Ended:
    """Run in the simulator, to the end."""
    found = execute(config(mode, record="none", **options))
    assert not found.error, found.error
    return found


VECTOR = 4 * 65  # bytes of the weights of an mlp 2-16-1


def test_backups_cost_their_weights() -> None:
    """Of P workers whose K fastest count, K send results, and all have been sent weights."""
    cfg = {"num_workers": 16, "k": 8, "rest": "cancel", "compute_time": "exponential:1"}
    found = ended("ksync", **cfg, steps=10)
    updates = found.tally.updates
    moved = found.summary["bytes"]
    assert (moved["to_workers"], moved["to_server"]) == (16 * VECTOR * updates, 8 * VECTOR * updates)
    assert found.summary["wasted_bytes"] == 8 * VECTOR * updates


def test_a_lost_task_costs_its_weights_again() -> None:
    """A task that is sent again to another process is paid for twice; that is wasted."""
    found = ended("ssgd", num_workers=4, steps=10, faults="kill:2@step=5", restart_s=3.0)
    moved = found.summary["bytes"]
    assert (moved["to_workers"], moved["to_server"]) == (41 * VECTOR, 40 * VECTOR)
    assert found.summary["wasted_bytes"] == VECTOR


def test_discarded_results_are_wasted() -> None:
    """A result that came in and was ignored has cost both its messages."""
    found = ended("ksync", num_workers=3, k=2, rest="ignore", slowdown="0=3", steps=20)
    ignored = found.tally.ignored
    assert ignored > 0
    in_flight = len(found.cluster.in_flight)
    assert found.summary["wasted_bytes"] == (2 * ignored + in_flight) * VECTOR


@pytest.mark.parametrize("mode", ["ssgd", "asgd", "ssp", "localsgd", "ringmaster", "easgd"])
def test_what_is_sent_is_useful_wasted_or_in_flight(mode: str) -> None:
    """Nothing is lost from the counts: by worker, by direction and by use they have the same sum."""
    found = ended(mode, num_workers=5, steps=16, compute_time="exponential:1", slowdown="0=9")
    traffic, summary = found.cluster.traffic, found.summary
    assert traffic.total == found.tally.useful_bytes + summary["wasted_bytes"]
    workers = summary["workers"].values()
    assert sum(w["received_bytes"] for w in workers) == summary["bytes"]["to_workers"]
    assert sum(w["sent_bytes"] for w in workers) == summary["bytes"]["to_server"]
    assert found.evaluations[-1].bytes == traffic.total


def test_what_was_sent_before_a_driver_was_lost_was_sent() -> None:
    """A run that goes back to a checkpoint has sent more than one that did not, and all of that is wasted."""
    options: dict[str, Any] = {"num_workers": 3, "steps": 20, "checkpoint_every": "disk=4"}
    whole = ended("ssgd", **options)
    lost = ended("ssgd", **options, faults="driver@update=11")
    repeated = lost.tally.repeated // 3
    assert repeated == 3
    assert lost.summary["bytes"]["to_server"] == whole.summary["bytes"]["to_server"] + 3 * repeated * VECTOR
    assert lost.summary["wasted_bytes"] == 2 * 3 * repeated * VECTOR


# --- topologies: values, times and bytes --------------------------------------------------------------------

EXACTLY = 1e-12
LATENCY_S, RATE = 0.25, 1000.0  # so a vector takes .26 s on a link
LINKS: dict[str, Any] = {"latency_s": LATENCY_S, "bytes_per_s": RATE}
TOPOLOGIES = ["server", "sharded:3", "allreduce", "allreduce:ring", "allreduce:halving"]
WAITING: dict[str, dict[str, Any]] = {
    "ssgd": {"momentum": 0.9},
    "localsgd": {"local_steps": 4},
    "adacomm": {"interval_s": math.inf, "local_steps": 4},
    "diloco": {"local_steps": 4},
    "easgd": {"local_steps": 4},
}


@pytest.mark.parametrize("mode", WAITING)
def test_a_topology_changes_no_value(mode: str) -> None:
    """Every mode that can all-reduce has the server's weights on each topology, bit for bit."""
    options: dict[str, Any] = {"num_workers": 5, "steps": 8, "compute_time": "exponential:1"}
    options |= {**LINKS, **WAITING[mode], "server_bytes_per_s": RATE}
    runs = [run(mode, topology=topology, **options) for topology in TOPOLOGIES[:2]]
    del options["server_bytes_per_s"]
    runs += [run(mode, topology=topology, **options) for topology in TOPOLOGIES[2:]]
    assert all(same_bytes(runs[0], other) for other in runs[1:])
    assert len({other.tally.last_update_s for other in runs}) == len(runs)


@pytest.mark.parametrize("mode", ["asgd", "ksync", "ringmaster"])
def test_shards_change_no_value_where_time_does_not_decide(mode: str) -> None:
    """Without any time on the way, an asynchronous mode is the same on one server and on several."""
    options: dict[str, Any] = {"num_workers": 4, "steps": 12, "compute_time": "exponential:1"}
    assert same_bytes(run(mode, **options), run(mode, topology="sharded:4", **options))


def round_s(outcome: QuickRun, compute_s: float = 1.0) -> float:
    """Return the seconds of each round that are not computing; all rounds are equally long."""
    ends = [0.0, *(update.finished_s for update in outcome.updates)]
    gaps = np.diff(ends)
    assert gaps == pytest.approx([gaps[0]] * len(gaps), rel=1e-9)
    return float(gaps[0]) - compute_s


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5, 8])
def test_a_synchronous_round_takes_what_the_closed_form_says(num_workers: int) -> None:
    """With constant compute times, on the server, shards and each all-reduce, with equal links."""
    p, a, x = num_workers, LATENCY_S, VECTOR / RATE
    power = 1 << (p.bit_length() - 1)
    fold_s = 2 * (a + x) if power < p else 0.0
    servers = {"server_bytes_per_s": RATE}
    said: dict[str, tuple[dict[str, Any], float]] = {
        "server": (servers, (p + 1) * x + 2 * a),
        "sharded:2": (servers, max(2.0, p / 2 + 1) * x + 2 * a),
        "sharded:4": (servers, max(2.0, p / 4 + 1) * x + 2 * a),
        "allreduce": ({}, 2 * a + 2 * (p - 1) / p * x if p > 1 else 0.0),
        "allreduce:ring": ({}, 2 * (p - 1) * (a + x / p)),
        "allreduce:halving": ({}, 2 * math.log2(power) * a + 2 * (power - 1) / power * x + fold_s),
    }
    for topology, (more, seconds) in said.items():
        found = run("ssgd", num_workers=p, steps=3, topology=topology, **LINKS, **more)
        assert round_s(found) == pytest.approx(seconds, abs=EXACTLY), topology


def test_a_backup_costs_a_vector_and_a_round_trip_and_its_server_may_be_lost() -> None:
    """Each result passes a server's link once more, and the last one of a round waits for the answer, as the
    closed form says. Until a loss is noticed all results wait, those of the round that has begun; it
    costs no bit of the weights.
    """
    options: dict[str, Any] = {"num_workers": 4, "steps": 6, "topology": "sharded:2", **LINKS}
    options["server_bytes_per_s"] = RATE
    alone = run("ssgd", **options)
    backed_up = {**options, "topology": "sharded:2,replicas=2"}
    both = run("ssgd", **backed_up)
    for rate in (RATE, 3 * RATE):
        found = run("ssgd", **{**backed_up, "bytes_per_s": rate})
        said = served_round_time(4, VECTOR, LATENCY_S, rate, RATE, servers=2, replicas=2)
        assert round_s(found) == pytest.approx(said, abs=EXACTLY)
    assert round_s(found) - round_s(run("ssgd", **{**options, "bytes_per_s": 3 * RATE})) == pytest.approx(
        2 * LATENCY_S + VECTOR / RATE / 2, abs=EXACTLY
    )
    assert both.cluster.traffic.by_direction["between_servers"] == 4 * 6 * VECTOR
    waits_s = both.updates[4].finished_s - both.updates[3].finished_s + 1.5
    lost = run("ssgd", **backed_up, faults=f"kill:s1@update=3+{waits_s}; kill:s0,s1@update=5")
    assert same_bytes(alone, lost)
    assert lost.tally.last_update_s - both.tally.last_update_s == pytest.approx(1.5, abs=EXACTLY)
    assert [(seen.kind, seen.recovered_s) for seen in lost.cluster.faults_seen] == [
        ("kill", waits_s),
        ("kill", 0),
    ]


def test_racks_take_what_the_closed_form_says() -> None:
    """Two racks of two: all-reduce in two levels, a ring at its slowest link, a server behind the racks."""
    x, z, a = VECTOR / RATE, VECTOR / 100.0, LATENCY_S
    racks: dict[str, Any] = {"num_workers": 4, "steps": 3, "racks": "2,100", **LINKS}
    two_levels = 4 * a + 2 * x / 2 + 2 / 2 * max(z, x / 2)
    assert round_s(run("ssgd", topology="allreduce", **racks)) == pytest.approx(two_levels, abs=EXACTLY)
    ring = 2 * 3 * (a + z / 4)
    assert round_s(run("ssgd", topology="allreduce:ring", **racks)) == pytest.approx(ring, abs=EXACTLY)
    served = run("ssgd", server_bytes_per_s=RATE, **racks)
    expected = 2 * a + max(4 * x, 2 * z, x) + max(x, z)
    assert round_s(served) == pytest.approx(expected, abs=EXACTLY)


@pytest.mark.parametrize("topology", ["allreduce", "allreduce:ring"])
def test_the_exchange_begins_when_the_last_is_ready(topology: str) -> None:
    """With any compute times, a round takes the slowest worker's, and then the exchange."""
    options: dict[str, Any] = {"num_workers": 4, "steps": 6, "compute_time": "exponential:1"}
    computed = run("ssgd", **options)
    found = run("ssgd", topology=topology, **LINKS, **options)
    way = AllReduce("direct" if topology == "allreduce" else "ring", Links(4, RATE), LATENCY_S)
    seconds = way.seconds(range(4), VECTOR)
    for n, (alone, update) in enumerate(zip(computed.updates, found.updates, strict=True), 1):
        assert update.finished_s == pytest.approx(alone.finished_s + n * seconds, rel=1e-9)
        assert max(done.finished_s for done in update.dones) < update.finished_s - 0.9 * seconds
    assert found.tally.last_update_s == found.updates[-1].finished_s


def test_one_slow_link_slows_every_step_of_a_ring() -> None:
    """A link of a tenth of the bandwidth makes the bytes of any all-reduce take ten times as long."""
    options: dict[str, Any] = {"num_workers": 4, "steps": 3, "bytes_per_s": RATE}
    for topology in ("allreduce", "allreduce:ring", "allreduce:halving"):
        fast = round_s(run("ssgd", topology=topology, **options))
        assert round_s(run("ssgd", topology=topology, slow_link="2=10", **options)) == pytest.approx(
            10 * fast
        )


def test_a_slow_link_delays_no_other_worker() -> None:
    """Behind its slow link, a worker's result comes later, and those of others overtake it."""
    options: dict[str, Any] = {"num_workers": 3, "steps": 1, "bytes_per_s": RATE, "slow_link": "0=10"}
    (update,) = run("ssgd", server_bytes_per_s=RATE, **options).updates
    x = VECTOR / RATE
    finished = [done.finished_s for done in update.dones]
    assert finished == pytest.approx([1 + 2 * 10 * x, 1 + 3 * x, 1 + 4 * x], abs=EXACTLY)


def naive_shards(
    servers: int, latency_s: float, rate: float, own: float, events: Sequence[Any]
) -> list[float]:
    """Return when messages (direction, seconds, bytes) are there: every slice on every server's link."""
    free = {(way, server): 0.0 for way in ("out", "in") for server in range(servers)}
    there = []
    for way, at_s, num_bytes in events:
        begin_s = at_s if way == "out" else at_s + latency_s
        for server in range(servers):
            free[way, server] = max(begin_s, free[way, server]) + num_bytes / servers / rate
        through_s = [max(free[way, server], begin_s + num_bytes / own) for server in range(servers)]
        there.append(max(through_s) + (latency_s if way == "out" else 0.0))
    return there


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_shards_are_links_of_slices(servers: int) -> None:
    """S servers with a slice each are as fast as every slice on a link by itself, for any messages."""
    rng = np.random.default_rng(servers)
    star = Star(Network(LATENCY_S, RATE, None, 0, servers, Links(4, 700.0)))
    times = np.cumsum(rng.exponential(0.2, 60))
    events = [(rng.choice(["out", "in"]), float(t), int(rng.integers(1, 2000))) for t in times]
    found = [
        star.send(at_s, size, 0) if way == "out" else star.pass_links(at_s, size, 0)
        for way, at_s, size in events
    ]
    assert found == pytest.approx(naive_shards(servers, LATENCY_S, RATE, 700.0, events), abs=EXACTLY)


@pytest.mark.parametrize("kind", ["direct", "ring", "halving"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 16])
def test_every_all_reduce_sends_the_same_bytes(kind: str, size: int) -> None:
    """2 (N-1) n in all, sent and received; in racks too; and with equal slices 2 (N-1)/N n a member."""
    for n, racks in ((997, 1), (997, min(3, size)), (16 * 105, 1)):
        way = AllReduce(kind, Links(size, 1.0, {}, racks, 1.0))
        sent, received = way.sent(range(size), n), way.received(range(size), n)
        assert sum(sent) == sum(received) == 2 * (size - 1) * n
        if racks == 1 and n % size == 0 and (kind != "halving" or size & (size - 1) == 0):
            assert set(sent) == set(received) == {2 * (size - 1) * n // size}


NONE = {"to_workers": 0, "to_server": 0, "between_workers": 0, "between_servers": 0, "fetched": 0}


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_record_has_the_bytes_of_the_formula(topology: str) -> None:
    """Bytes by direction, and what the driver fetched to evaluate, are those of the closed form, exactly."""
    p, updates = 3, 12
    found = ended("ssgd", num_workers=p, steps=updates, topology=topology, eval_every=6, padding_mb=100e-6)
    n = VECTOR + 100
    moved, workers = found.summary["bytes"], found.summary["workers"].values()
    if topology.startswith("allreduce"):
        between = 2 * (p - 1) * n * updates
        assert moved == NONE | {"between_workers": between, "fetched": 2 * n}
        assert sum(w["sent_bytes"] for w in workers) == between + 2 * n
        assert sum(w["received_bytes"] for w in workers) == between
    else:
        one_way = p * n * updates
        assert moved == NONE | {"to_workers": one_way, "to_server": one_way}
    assert found.summary["wasted_bytes"] == 0
    assert found.evaluations[-1].bytes == sum(moved.values())


@pytest.mark.parametrize("drop_rate", [0.0, 0.3])
@pytest.mark.parametrize("topology", ["sharded:2", "server,replicas=2", "allreduce"])
def test_a_run_goes_on_from_its_state_on_any_topology(topology: str, drop_rate: float) -> None:
    """Taken apart and put together at any update, the cluster goes on bit for bit: links, bytes and clock."""
    cfg = config(
        "ssgd",
        num_workers=3,
        steps=6,
        topology=topology,
        racks="3,500",
        compute_time="exponential:1",
        drop_rate=0.0 if topology == "allreduce" else drop_rate,
        **LINKS,
    )
    workload = make_workload(cfg)

    def updates(cut: int | None) -> list[Any]:
        w, seen, state = Weights(workload.objective.initial_weights(0)), list[Any](), None
        while len(seen) < 6:
            with open_cluster(cfg, workload) as cluster:
                if state:
                    cluster.restore(state)
                for update in strategy_of(cfg).train(cluster, w, cfg):
                    w = update.weights
                    seen.append((update.finished_s, w.vector.tobytes(), cluster.traffic.total))
                    state = cluster.state()
                    if len(seen) in (cut, 6):
                        break
        return seen

    assert updates(None) == updates(3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "asgd", "topology": "allreduce"}, "waits for all workers, and asgd does not as asked for"),
        ({"mode": "ksync", "k": 2, "topology": "allreduce:ring"}, "and ksync does not as asked for"),
        ({"mode": "diloco", "exchange": "async", "topology": "allreduce"}, "and diloco does not as asked"),
        ({"drop_rate": 0.1}, "has an effect where messages take time; give --latency-s or --bytes-per-s too"),
        ({"drop_rate": 1.0, "latency_s": 1.0}, "must lie in [0, 1)"),
        ({"drop_rate": 0.1, "latency_s": 1.0, "topology": "allreduce"}, "leave out --drop-rate"),
        ({"topology": "sharded:0"}, "S must be a whole number of servers of at least 1, like sharded:4"),
        ({"topology": "sharded"}, "S must be a whole number of servers of at least 1, like sharded:4"),
        ({"topology": "ring"}, "must be server, sharded:S with S servers"),
        ({"topology": "allreduce", "server_bytes_per_s": 10.0}, "leave out --server-bytes-per-s"),
        ({"topology": "allreduce", "server_time": "constant:1"}, "leave out --server-time"),
        ({"topology": "allreduce", "regroup_s": 1.0}, "give --topology allreduce and --faults too"),
        ({"topology": "allreduce", "aggregate": "median"}, "use --aggregate mean"),
        ({"topology": "allreduce:halving", "racks": "2,1"}, "use allreduce or allred"),
        ({"topology": "sharded:2", "engine": "ray", "transport": "local"}, "leave out --transport local"),
        ({"topology": "sharded:2", "engine": "ray", "padding_mb": 1.0}, "leave out --padding-mb"),
        (
            {"mode": "asgd", "topology": "server,replicas=2", "engine": "ray", "filter": "kardam:1"},
            "needs whole vectors",
        ),
        (
            {"mode": "streaming", "topology": "server,replicas=2", "engine": "ray"},
            "--mode streaming has fragments",
        ),
        ({"mode": "dpsgd", "topology": "server,replicas=2"}, "which has no server"),
        ({"topology": "allreduce,replicas=2"}, "replicas are for servers, and allreduce has none"),
        ({"topology": "sharded:2", "faults": "kill:s0@t=3"}, "no server has a backup that could take over"),
        ({"topology": "server,replicas=2", "faults": "kill:s1@t=3"}, "servers are numbered s0 to s0"),
        (
            {"topology": "server,replicas=2", "engine": "ray", "faults": "kill:s0@t=3+1"},
            "leave the duration out",
        ),
        ({"slow_link": "1=2"}, "give that too"),
        ({"slow_link": "9=2", "bytes_per_s": 5.0}, "workers are numbered 0 to 3"),
        ({"racks": "2"}, "give their rate too"),
        (
            {"mode": "dpsgd", "engine": "ray", "racks": "2,1"},
            "holding back results, and --mode dpsgd has none",
        ),
        ({"racks": "9,1"}, "must be at most --num-workers 4"),
        ({"racks": "1,1"}, "give 2 racks or more"),
        ({"bytes_per_s": 0.0}, "must be above 0"),
    ],
)
def test_what_a_topology_cannot_do_is_refused(options: dict[str, Any], said: str) -> None:
    """In one line that names the option, before the run begins."""
    with pytest.raises(ValueError, match=r"^--[a-z-]+ ") as error:
        config(**{"mode": "ssgd", "num_workers": 4, **options})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("topology", ["server", "allreduce", "allreduce:ring"])
def test_a_replay_counts_what_the_run_has_sent(topology: str, tmp_path: Path) -> None:
    """So a run on Ray that is resumed has counted its updates since the checkpoint, by direction."""
    cfg = config("ssgd", num_workers=3, steps=4, topology=topology, out=str(tmp_path))
    ended = execute(cfg, [], record=RunRecord(cfg))
    assert ended.path
    replayed = ReplayCluster(cfg, make_workload(cfg), recorded_run(ended.path).updates(None))
    w = Weights(make_workload(cfg).objective.initial_weights(cfg.seed))
    for _ in rolled_forward(replayed, replayed.last_version, strategy_of(cfg).train, w, cfg):
        pass
    sent = ended.summary["bytes"]
    assert replayed.traffic.by_direction == {**sent, "fetched": 0}


# --- packets that are lost ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "packets"), [(0.01, 1), (0.01, 400), (0.3, 3), (0.3, 40)])
def test_lost_packets_delay_a_message_by_what_is_sent_again(rate: float, packets: int) -> None:
    """On average k p/(1-p) packets, in as many round trips as the unluckiest of k is sent again, a sum of
    1 - (1 - p^r)^k; within 4 standard errors of 4,000 messages.
    """
    links, num_bytes = Links(drop_rate=rate, seed=5), 1460 * packets - 7
    by_bytes = np.array([links.late_s(n, num_bytes, 0.0, 1 / 1460) for n in range(4000)])
    by_trips = np.array([links.late_s(n, num_bytes, 0.5, 0.0) for n in range(4000)])
    said = {
        "bytes": packets * rate / (1 - rate),
        "trips": sum(1 - (1 - rate**r) ** packets for r in range(1, 60)),
    }
    for found, mean in zip((by_bytes, by_trips), said.values(), strict=True):
        assert abs(found.mean() - mean) < 4 * found.std() / math.sqrt(len(found))


@pytest.mark.parametrize("rate", [4e6, math.inf])
def test_a_run_is_longer_by_what_its_messages_are_late(rate: float) -> None:
    """With one worker each message is waited for, so the delays add up; no byte is counted twice."""
    options = {
        "num_workers": 1,
        "steps": 20,
        "compute_time": "constant:1",
        "latency_s": 0.5,
        "bytes_per_s": rate,
    }
    lossless = ended("ssgd", padding_mb=1.0, **options)
    lossy = ended("ssgd", padding_mb=1.0, drop_rate=0.01, seed=3, **options)
    links = Links(drop_rate=0.01, seed=3)
    late_s = sum(links.late_s(n, VECTOR + 10**6, 0.5, 1 / rate) for n in range(1, 41))
    assert late_s > 40 * 0.9  # of 685 packets some are lost: nearly every message takes another round trip
    assert lossy.summary["clock_s"] - lossless.summary["clock_s"] == pytest.approx(late_s)
    assert lossy.summary["bytes"] == lossless.summary["bytes"]


def test_a_lost_packet_between_workers_delays_the_task_that_waits_for_it() -> None:
    """And the books go on from their state: each message has its own number."""
    links = Links(2, RATE, drop_rate=0.5, seed=1)
    peers, number = PeerLinks(LATENCY_S, links), iter(range(1, 100))
    for _ in range(20):
        peers.travel(0, 1, 500, 7.0)
        late_s = links.late_s(next(number), 500, LATENCY_S, 1 / RATE)
        assert peers.begin(1, 0.0) == pytest.approx(7.0 + LATENCY_S + 0.5 + late_s, abs=EXACTLY)
        again = PeerLinks(LATENCY_S, links)
        again.restore({"messages": peers.state()["messages"]})
        peers = again


# --- messages between workers -------------------------------------------------------------------------------


def test_a_message_to_a_peer_takes_its_slowest_link() -> None:
    """Latency, and the bytes over the slowest of both workers' links and, between racks, of the racks'."""
    links = Links(4, RATE, {1: 10.0}, racks=2, rack_bytes_per_s=50.0)
    for source, target, seconds in ((0, 1, 10 * 0.5), (2, 3, 0.5), (0, 2, 10.0), (1, 2, 10.0)):
        peers = PeerLinks(LATENCY_S, links)
        peers.travel(source, target, 500, 7.0)
        assert peers.begin(target, 0.0) == pytest.approx(7.0 + LATENCY_S + seconds, abs=EXACTLY)


def test_messages_between_racks_pass_one_after_another() -> None:
    """Two workers of a rack that send to another rack share its link; within a rack they do not."""
    peers = PeerLinks(0.0, Links(4, RATE, {}, racks=2, rack_bytes_per_s=RATE))
    peers.travel(0, 2, 500, 0.0)
    peers.travel(1, 3, 500, 0.0)
    assert (peers.begin(2, 0.0), peers.begin(3, 0.0)) == (0.5, 1.0)
    peers.travel(0, 1, 500, 2.0)
    peers.travel(2, 3, 500, 2.0)
    assert (peers.begin(1, 0.0), peers.begin(3, 0.0)) == (2.5, 2.5)


# --- the network on Ray -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "network",
    [
        Network(LATENCY_S),
        Network(LATENCY_S, RATE),
        Network(LATENCY_S, RATE, None, 0, 1, Links(3, 400.0, {1: 5.0}, 3, 300.0)),
        Network(LATENCY_S, RATE, links=Links(3, drop_rate=0.5)),
    ],
)
def test_results_are_held_back_as_long_as_in_the_simulator(network: Network) -> None:
    """With the simulator's compute times, results come in when they do there, and in the same order."""
    cfg = config("asgd", num_workers=3, steps=8, compute_time="exponential:1")
    times = ComputeTimes(cfg.timing.compute_law, 0)
    cluster = SimCluster(make_workload(cfg), times, network)
    w = Weights(make_workload(cfg).objective.initial_weights(0))
    held = HeldBack[int](Star(network))
    computed: list[tuple[float, int]] = []  # as real workers would be, who get their tasks at once
    now_s, steps = 0.0, [0, 0, 0]

    def begin(worker: int) -> None:
        cluster.start(worker, gradient, w)
        held.sent(worker, now_s, VECTOR)
        computed.append((now_s + times.seconds(worker, steps[worker]), worker))
        steps[worker] += 1

    for worker in range(3):
        begin(worker)
    for _ in range(24):
        done = cluster.next_done()
        assert done
        found = None
        while found is None:
            now_s = min([held.next_s(), *(at_s for at_s, _ in computed)])
            for at_s, worker in sorted(computed):
                if at_s <= now_s:
                    computed.remove((at_s, worker))
                    held.hold(worker, at_s, VECTOR, worker)
            found = held.there(now_s)
        assert found == done.worker
        assert now_s == pytest.approx(done.finished_s, abs=EXACTLY)
        begin(found)


def test_what_is_stopped_does_not_come() -> None:
    """A result that is held back is dropped with its task; of two copies of a task the first one counts."""
    held = HeldBack[str](Star(Network(1.0)))
    held.sent(0, 0.0, 8)
    held.hold(0, 2.0, 8, "stopped")
    held.drop(0)
    held.sent(0, 2.0, 8)
    held.hold(0, 4.0, 8, "first")
    held.hold(0, 4.5, 8, "second")
    assert held.there(5.9) is None
    assert held.there(6.0) == "first"
    assert not held
    assert held.there(99.0) is None


@pytest.mark.parametrize(("name", "batches"), [("compare-localsgd", 2), ("local-steps-and-skew", 4)])
def test_a_message_takes_as_long_as_an_experiment_says(name: str, batches: int) -> None:
    """In its record, a task takes two messages of so many mini-batches more than its computing."""
    asked = load(ROOT / f"experiments/{name}.yaml").variants[0].options
    found = run(**{**asked, "steps": 64})
    for done in found.dones:
        assert (done.finished_s - done.started_s - done.compute_s) / 2 == pytest.approx(batches)
    assert np.mean([done.compute_s / done.batches for done in found.dones]) == pytest.approx(1, rel=0.2)


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_network_on_ray_takes_the_time_that_was_asked_for() -> None:
    """A round takes both latencies and its messages' time on the links, at least; bytes are the simulator's.

    A worker that is killed meanwhile changes no value: what has left it comes in, the rest is computed again.
    """
    options: dict[str, Any] = {"num_workers": 2, "steps": 4, "compute_time": "constant:.02"}
    options |= {
        "latency_s": 0.05,
        "server_bytes_per_s": 10_400.0,
        "slow_link": "1=4",
        "bytes_per_s": 10_400.0,
    }

    def kill(cluster: Engine, update: Update) -> None:
        if update.weights.version == 1:
            pid = cluster.pids[1]
            timers.append(threading.Timer(0.15, os.kill, [pid, signal.SIGKILL]))  # a result is on its way
            timers[0].start()

    timers: list[threading.Timer] = []
    with Workers(**options, on_loss="rehost") as workers:
        found = workers.run("ssgd")
        moved = found.cluster.traffic.by_direction
        disturbed = workers.run("ssgd", kill)
        assert list(disturbed.cluster.restarts) == [0, 1]
    timers[0].join()
    simulated = run("ssgd", **options)
    ends = [0.0, *(update.finished_s for update in found.updates)]
    expected = [0.0, *(update.finished_s for update in simulated.updates)]
    assert expected[1] == pytest.approx(0.02 + 2 * (0.05 + 4 * 0.025))
    for real_s, said_s in zip(np.diff(ends), np.diff(expected), strict=True):
        assert real_s >= said_s - 1e-6
    assert moved == simulated.cluster.traffic.by_direction
    assert moved["to_workers"] == moved["to_server"] == 2 * 4 * VECTOR
    assert same_bytes(found, disturbed)


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_an_all_reduce_on_ray_takes_the_time_that_was_asked_for() -> None:
    """Real workers all-reduce in no less than the closed form, with the simulator's bytes."""
    options: dict[str, Any] = {"num_workers": 2, "steps": 3, "compute_time": "constant:.02"}
    options |= {"topology": "allreduce", "latency_s": 0.1, "bytes_per_s": 5200.0}
    found, simulated = run("ssgd", engine="ray", **options), run("ssgd", **options)
    way = AllReduce("direct", Links(2, 5200.0), 0.1)
    for update in found.updates:
        ready_s = max(done.finished_s for done in update.dones)
        assert update.finished_s >= ready_s + way.seconds(range(2), VECTOR)
    assert found.cluster.traffic.to_peers == simulated.cluster.traffic.to_peers


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_bytes_are_the_formula_on_ray() -> None:
    """All that was sent is what the tasks that were started and came in say, on real workers."""
    with Workers(num_workers=2, steps=6, padding_mb=100e-6, compute_time="constant:.002") as workers:
        for mode in ("asgd", "ksync"):
            found = workers.run(mode)
            n, traffic = VECTOR + 100, found.cluster.traffic
            cancelled = sum(found.cluster.cancelled)
            came_in = len(found.dones) + found.tally.ignored
            assert sum(traffic.to_server) == n * came_in
            assert sum(traffic.to_worker) == n * (came_in + cancelled + len(found.cluster.in_flight))
