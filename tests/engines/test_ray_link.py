"""A network link that is really taken down: two nodes, one of them in another network namespace.

A host on the far node says nothing while the link is down, and no connection ends: what a partition is like.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import PATIENCE_S, needs, python, wait_for

from dsgd.core.protocol import ClusterError, Engine, Update
from dsgd.records.writer import RunRecord
from dsgd.running.execute import execute
from dsgd.running.quick_run import QuickRun, Workers, config, run, same_bytes
from dsgd.running.replaying import compared, recorded_run
from dsgd.strategies import modes

pytestmark = [pytest.mark.ray, pytest.mark.thorough, needs("root"), needs("ip")]

LEARNING: dict[str, Any] = {"engine": "ray", "num_workers": 2, "steps": 24, "local_steps": 2}
_PID = os.getpid()
# Others may run these tests on this machine now.
HERE, THERE, PORT = f"10.213.{_PID % 256}.1", f"10.213.{_PID % 256}.2", 20_000 + _PID % 10_000
NODE = [
    *(str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"),
    *("--num-cpus=1", "--object-store-memory=157286400"),
]
AT_ONCE = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # a node that has had objects drains for 30 s


class Link(NamedTuple):
    """A veth pair: one end is here, the other in the namespace."""

    namespace: str
    near: str

    def up(self) -> None:
        ip("link", "set", self.near, "up")

    def down(self) -> None:
        ip("link", "set", self.near, "down")

    def carries(self, pid: int) -> bool:
        """Whether a process is at the far end."""
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@pytest.fixture(scope="module")
def link() -> Iterator[Link]:
    """Make a namespace and a link to it; skip where that cannot be done."""
    link, far = Link(f"dsgd-{_PID}", f"dsgd-n{_PID}"), f"dsgd-f{_PID}"
    with contextlib.ExitStack() as made:
        try:
            ip("netns", "add", link.namespace)
            made.callback(ip, "netns", "del", link.namespace)
            ip("link", "add", link.near, "type", "veth", "peer", "name", far, "netns", link.namespace)
            made.callback(ip, "link", "del", link.near)
            ip("netns", "exec", link.namespace, "true")
        except OSError as error:
            pytest.skip(f"no network namespace can be made here: {error}")
        # `ip netns exec` shows these files in the namespace, where no name server would answer: torch looks
        # up the names of addresses, and would wait for many seconds.
        files = Path("/etc/netns", link.namespace)
        files.mkdir(parents=True)
        made.callback(shutil.rmtree, files)
        (files / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        ip("addr", "add", f"{HERE}/30", "dev", link.near)
        link.up()
        for command in (f"addr add {THERE}/30 dev {far}", f"link set {far} up", "link set lo up",
                        f"route add default via {HERE}"):  # fmt: skip
            ip("-n", link.namespace, *command.split())
        yield link


@contextlib.contextmanager
def far_node(link: Link, address: str, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """Start a raylet in the namespace, as a further node of a cluster."""
    command = ["ip", "netns", "exec", link.namespace, *NODE, f"--address={address}"]
    node = subprocess.Popen(
        [*command, f"--node-ip-address={THERE}"],
        stdout=subprocess.DEVNULL,
        env={**(env or os.environ), **AT_ONCE},
    )
    try:
        yield
    finally:
        link.up()
        node.terminate()
        node.wait(PATIENCE_S)
        for pid in ip("netns", "pids", link.namespace).split():
            os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(scope="class")
def two_nodes(ray_cluster: str, link: Link) -> Iterator[None]:
    """Have a far node in the tests' own cluster."""
    import ray

    def nodes() -> int:
        found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        return sum(node["Alive"] for node in found)

    with far_node(link, ray_cluster):
        wait_for(lambda: nodes() == 2)
        yield
    wait_for(lambda: nodes() == 1)  # no later test may be given the lost one


class Down:
    """Takes a link down after the third update; up again after `lasts_s`, unless that is None."""

    def __init__(self, link: Link, lasts_s: float | None) -> None:
        self._link, self.timer = link, threading.Timer(lasts_s, link.up) if lasts_s else None

    def __call__(self, cluster: Engine, update: Update) -> None:
        if update.weights.version == 3:
            assert sorted(map(self._link.carries, cluster.pids)) == [False, True]
            self._link.down()
            if self.timer:
                self.timer.start()


@functools.cache
def undisturbed() -> QuickRun:
    """Run on whatever nodes there are, with one server."""
    return run("diloco", **LEARNING)


@pytest.mark.usefixtures("two_nodes")
class TestOnTwoNodes:
    def test_every_mode_runs_on_both(self, link: Link, tmp_path: Path) -> None:
        """One worker is on each machine; a replay of each record, which has no machines, gives its bytes."""
        with Workers(num_workers=2, steps=16) as workers:
            for mode in modes():
                cfg = config(mode, **workers.options, out=str(tmp_path), run_name=mode)
                ended = execute(cfg, record=RunRecord(cfg), engine=workers.fresh())
                assert ended.error is None, mode
                found = compared(recorded_run(tmp_path / mode))
                assert (found.differs, found.same_weights) == (None, True), mode
            assert sorted(map(link.carries, workers.fresh().pids)) == [False, True]

    def test_a_link_that_is_down_for_a_while_changes_no_bit(self, link: Link) -> None:
        """Nothing that was sent is lost: the far worker's answer comes when the link is up again. And where
        it stays down, a silent task is given to the other host.
        """
        before = undisturbed()
        for_a_while = Down(link, 1.0)
        waited = run("diloco", for_a_while, **LEARNING)
        assert for_a_while.timer
        for_a_while.timer.join()
        assert same_bytes(before, waited)
        assert waited.updates[3].finished_s - waited.updates[2].finished_s > 0.9
        suspected = run("diloco", Down(link, None), **LEARNING, suspect_after=0.3)
        link.up()
        assert same_bytes(before, suspected)
        assert {seen.kind for seen in suspected.cluster.faults_seen} == {"suspect"}

    def test_servers_and_workers_on_two_machines_have_the_bits_of_one(self, link: Link) -> None:
        """Each slice has a process at either end, and workers are at both; a lost primary changes nothing."""
        from dsgd.engines.ray.exchange.sharded import RaySharded

        far: list[list[list[bool]]] = []

        def look(cluster: Engine, update: Update) -> None:
            assert isinstance(cluster, RaySharded)
            if update.weights.version == 1:
                processes = [*cluster.servers.pids, cluster.pids]
                far.append([sorted(map(link.carries, pids)) for pids in processes])

        options = {**LEARNING, "workload": "quadratic", "dim": 140_000}
        sharded = run("diloco", look, **options, topology="sharded:2,replicas=2", faults="kill:s1@update=4")
        assert far == [[[False, True]] * 3]
        assert same_bytes(sharded, run("diloco", **{**options, "engine": "sim"}))

    def test_an_all_reduce_reaches_another_machine(self, link: Link) -> None:
        """The far process gets its steps by Ray's calls and its sums over TCP, to a server's bytes; where the
        link is down for a while, the update waits.
        """
        down = Down(link, 1.0)
        reduced = run("diloco", down, **LEARNING, topology="allreduce")
        assert same_bytes(reduced, undisturbed())
        assert down.timer
        down.timer.join()
        assert reduced.updates[3].finished_s - reduced.updates[2].finished_s > 0.9

    def test_an_all_reduce_between_machines_is_refused_under_tls(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RAY_USE_TLS encrypts Ray's calls and not the sums, so these do not cross machines with it."""
        monkeypatch.setenv("RAY_USE_TLS", "1")
        with pytest.raises(ClusterError, match="--topology allreduce: RAY_USE_TLS encrypts"):
            run("diloco", **LEARNING, topology="allreduce")


BOTH_NODES = """
import time, ray
ray.init(log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.05)
"""
LONG = "--mode diloco --num-workers 2 --steps 80 --local-steps 2 --compute-time constant:.1 --on-loss rehost"


def test_a_node_that_is_out_of_reach_for_good_is_given_up(link: Link, tmp_path: Path) -> None:
    """Ray reports its process lost once it has missed health checks; its worker goes on elsewhere and
    computes what a replay computes. Nobody waits longer for it in a sum, though no connection ends.
    """
    health = {"initial_delay_ms": 1000, "period_ms": 1000, "timeout_ms": 1000, "failure_threshold": 3}
    often = {f"RAY_health_check_{name}": str(value) for name, value in health.items()}
    env = os.environ | often | {"RAY_AUTH_MODE": "disabled"}
    head = [*NODE, "--head", f"--node-ip-address={HERE}", f"--port={PORT}", "--include-dashboard=false"]
    command = f"main.py {LONG} --topology allreduce --out {tmp_path} --run-name r --quiet"
    updates = tmp_path / "r" / "updates.jsonl"
    with contextlib.ExitStack() as begun:
        folder = begun.enter_context(tempfile.TemporaryDirectory(prefix="dsgd-ray-", dir="/tmp"))
        node = subprocess.Popen([*head, f"--temp-dir={folder}"], stdout=subprocess.DEVNULL, env=env | AT_ONCE)
        begun.callback(node.wait, PATIENCE_S)
        begun.callback(node.terminate)
        wait_for(_answers)
        begun.enter_context(far_node(link, f"{HERE}:{PORT}", env))
        env["RAY_ADDRESS"] = f"{HERE}:{PORT}"
        # Before the node has joined, Ray would place both workers on the head.
        subprocess.run([sys.executable, "-c", BOTH_NODES], env=env, timeout=PATIENCE_S, check=True)
        process = python(*command.split(), env=env)
        begun.callback(process.kill)
        wait_for(lambda: updates.exists() and updates.stat().st_size > 0)
        wait_for(lambda: "ray::Host" in names_of(link))  # a name cannot be read while it changes
        link.down()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    ran = recorded_run(tmp_path / "r")
    (lost,) = ran.faults
    assert (lost.kind, lost.asked, len(lost.workers)) == ("kill", False, 1)
    found = compared(ran)
    assert (found.differs, found.same_weights) == (None, True)


def names_of(link: Link) -> str:
    """Return the command lines of the processes at the far end."""
    lines = [Path(f"/proc/{pid}/cmdline") for pid in ip("netns", "pids", link.namespace).split()]
    return " ".join(line.read_text() for line in lines if line.exists())


def _answers() -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((HERE, PORT), 1).close()
        return True
    return False
