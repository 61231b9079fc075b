"""The nodes of a private cluster: raylets on this machine, which stand for machines.

Node a is the driver's own. The others are started here, may be ended by a fault, and are started again.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from string import ascii_lowercase
from typing import Any

from dsgd.engines.ray.connection.processes import awaited, processes_of

# isort: split
import ray
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.services import wait_for_node

_STORE_BYTES = 150 * 2**20  # of shared memory for the objects of a node, as in Ray's own tests
_START_S = 30


class Nodes:
    """`count` nodes of this machine; with one there is nothing to start, and Ray chooses where hosts are."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._nodes: dict[int, Any] = {}
        self._starting: dict[int, Future[None]] = {}
        self._pool = ThreadPoolExecutor(count)

    def start(self) -> None:
        """Start all nodes but the driver's."""
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
            nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            head = "node:__internal_head__"
            ids = [
                n["NodeID"] for n in sorted(nodes, key=lambda n: (head not in n["Resources"], n["NodeID"]))
            ]
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
        address = ray.get_runtime_context().gcs_address
        # What ray.cluster_utils.Cluster, which would start another head, gives a further node.
        wanted = RayParams(
            gcs_address=address,
            redis_address=address,
            num_cpus=1,
            num_gpus=0,
            object_store_memory=_STORE_BYTES,
            min_worker_port=0,
            max_worker_port=0,
            node_manager_port=0,
            dashboard_agent_listen_port=None,
        )
        wanted.update(include_log_monitor=False)  # type: ignore[no-untyped-call]
        node = Node(wanted, head=False, shutdown_at_exit=False, spawn_reaper=False)
        self._nodes[number] = node
        wait_for_node(node.gcs_address, node.plasma_store_socket_name, _START_S)


def _end(node: Any) -> None:
    with awaited(processes_of(node)):
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
