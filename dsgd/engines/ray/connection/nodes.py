"""The nodes of a private cluster: raylets on this machine, which stand for machines.

Node a is the driver's own. The others are started here, may be ended by a fault, and are started again.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from string import ascii_lowercase
from typing import Any

from dsgd.engines.ray.connection.processes import awaited

# isort: split
import psutil  # Ray brings it, and makes it importable
import ray
from ray.cluster_utils import Cluster

_START_S = 30


class _Joined(Cluster):
    """A cluster whose head is there: else `add_node` would start another one."""

    def __init__(self, address: str) -> None:
        super().__init__(shutdown_at_exit=False)
        vars(self).update(redis_address=address, head_node=self)

    @property
    def gcs_address(self) -> str:
        return str(self.redis_address)


class Nodes:
    """`count` nodes of this machine; with one there is nothing to start, and Ray chooses where hosts are."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._nodes: dict[int, Any] = {}
        self._starting: dict[int, Future[None]] = {}
        self._pool = ThreadPoolExecutor(count)

    def start(self) -> None:
        """Start all nodes but the driver's."""
        self._cluster = _Joined(ray.get_runtime_context().gcs_address)
        for number in range(1, self._count):
            self._start(number)

    def of(self, host: int) -> str | None:
        """Return the id of the node on which a host is to be started; None: Ray chooses."""
        if self._count == 1:
            return None
        number = host % self._count
        return str(self._nodes[number].node_id if number else ray.get_runtime_context().get_node_id())

    def named(self) -> dict[str, str]:
        """Return the ids of the living nodes by letter: a is the head, or on this machine the driver's."""
        if self._count > 1:
            ids = [str(self.of(number)) for number in range(self._count)]
        else:
            head = "node:__internal_head__"
            nodes = sorted(_living(), key=lambda node: (head not in node["Resources"], node["NodeID"]))
            ids = [node["NodeID"] for node in nodes]
        return dict(zip(ascii_lowercase, ids, strict=False))

    def lives(self, host: int) -> bool:
        """Whether the node of a host is there."""
        number = host % self._count
        if self._count == 1 or number == 0:
            return True
        starting = number in self._starting and not self._starting[number].done()
        return not starting and not self._nodes[number].dead_processes()

    def start_again(self, host: int) -> Future[None]:
        """Start the node of a host again, in the background; once, whatever number of its hosts ask."""
        number = host % self._count
        if number not in self._starting or self._starting[number].done():
            self._starting[number] = self._pool.submit(self._start, number)
        return self._starting[number]

    def close(self) -> None:
        """End all nodes but the driver's."""
        wait(self._starting.values(), _START_S)  # one that is being started must not outlive this
        for node in self._nodes.values():
            _end(node)
        self._nodes.clear()

    def _start(self, number: int) -> None:
        if number in self._nodes:
            _end(self._nodes[number])
        # Kept before it is waited for, so that one that does not start is ended, too.
        node = self._nodes[number] = self._cluster.add_node(wait=False)
        until_s = time.monotonic() + _START_S
        while node.node_id not in {one["NodeID"] for one in _living()}:
            if time.monotonic() > until_s:
                raise TimeoutError(f"node {ascii_lowercase[number]} did not start within {_START_S} s")
            time.sleep(0.05)


def _living() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _end(node: Any) -> None:
    with awaited(_processes_of(node)):
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _processes_of(node: Any) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for _, started in node.live_processes():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(started.pid)
            found += [process, *process.children(recursive=True)]
    return found
