"""A network link that is really taken down: two nodes, one of them in a network namespace of its own.

A host on the far node says nothing while the link is down, and no connection ends: what a partition is like.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dsgd.cluster import Engine, Update
from dsgd.execution.quick import run, same_bytes

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

LEARNING: dict[str, Any] = {"engine": "ray", "num_workers": 2, "steps": 24, "local_steps": 2}
HERE, THERE = "10.213.77.1", "10.213.77.2"
START_S = 40.0


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
    if os.geteuid():
        pytest.skip("a link can only be taken down by root")
    if not shutil.which("ip"):
        pytest.skip("the command ip is not there; Debian's package is iproute2")
    link, far = Link(f"dsgd-{os.getpid()}", f"dsgd-n{os.getpid()}"), f"dsgd-f{os.getpid()}"
    with contextlib.ExitStack() as made:
        try:
            ip("netns", "add", link.namespace)
            made.callback(ip, "netns", "del", link.namespace)
            ip("link", "add", link.near, "type", "veth", "peer", "name", far, "netns", link.namespace)
            made.callback(ip, "link", "del", link.near)
            ip("netns", "exec", link.namespace, "true")
        except OSError as error:
            pytest.skip(f"no network namespace can be made here: {error}")
        ip("addr", "add", f"{HERE}/30", "dev", link.near)
        link.up()
        for command in (f"addr add {THERE}/30 dev {far}", f"link set {far} up", "link set lo up",
                        f"route add default via {HERE}"):  # fmt: skip
            ip("-n", link.namespace, *command.split())
        yield link


@pytest.fixture(scope="module", autouse=True)
def far_node(ray_cluster: str, link: Link) -> Iterator[None]:
    """Start a raylet in the namespace, as a second node of the cluster."""
    ray = str(Path(sys.executable).with_name("ray"))
    start = [ray, "start", f"--address={ray_cluster}", f"--node-ip-address={THERE}", "--num-cpus=1"]
    start += ["--object-store-memory=157286400", "--disable-usage-stats", "--block"]
    node = subprocess.Popen(["ip", "netns", "exec", link.namespace, *start], stdout=subprocess.DEVNULL)
    try:
        await_nodes(2)
        yield
    finally:
        link.up()
        node.terminate()
        node.wait(START_S)
        for pid in ip("netns", "pids", link.namespace).split():
            os.kill(int(pid), signal.SIGKILL)
        await_nodes(1)  # no later test may be given the lost one


def await_nodes(count: int) -> None:
    import ray

    until_s = time.monotonic() + START_S
    while sum(node["Alive"] for node in ray.nodes()) != count:  # type: ignore[no-untyped-call]
        assert time.monotonic() < until_s, f"the cluster has not {count} nodes after {START_S:g} s"
        time.sleep(0.05)


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


def test_a_link_that_is_down_for_a_while_changes_no_bit(link: Link) -> None:
    """Nothing that was sent is lost: the far worker's answer comes when the link is up again. And where it
    stays down, a silent task is given to the other host.
    """
    before = run("diloco", **LEARNING)
    for_a_while = Down(link, 1.0)
    waited = run("diloco", for_a_while, **LEARNING)
    assert for_a_while.timer
    for_a_while.timer.join()
    assert same_bytes(before, waited)
    assert waited.updates[3].finished_s - waited.updates[2].finished_s > 0.9
    suspected = run("diloco", Down(link, None), **LEARNING, suspect_after=0.3)
    assert same_bytes(before, suspected)
    assert {seen.kind for seen in suspected.cluster.faults_seen} == {"suspect"}
