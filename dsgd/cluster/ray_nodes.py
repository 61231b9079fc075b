"""The nodes of a private cluster: raylets on this machine, which stand for machines.

Node a is the driver's own. The others are started here, may be ended by a fault, and are started again.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from string import ascii_lowercase
from typing import Any

from dsgd.cluster.processes import awaited, processes_of

# isort: split
import ray
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.services import wait_for_node

_STORE_BYTES = 150 * 2**20  # of shared memory for the objects of a node, as in Ray's own tests


class Nodes:
    """`count` nodes of this machine; with one, or on a cluster that was not started here, none of its own.

    Raises ClusterError if one cannot be started.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._nodes: dict[int, Any] = {}
        for number in range(1, count):
            self._start(number)

    def letter(self, host: int) -> str:
        """Return the name of the node on which a host is."""
        return ascii_lowercase[host % self._count]

    def of(self, host: int) -> str | None:
        """Return the id of the node on which a host is to be started; None: Ray chooses."""
        if self._count == 1:
            return None
        number = host % self._count
        node_id = self._nodes[number].node_id if number else ray.get_runtime_context().get_node_id()
        return str(node_id)

    def lives(self, host: int) -> bool:
        """Whether the node of a host is there."""
        number = host % self._count
        return number == 0 or not self._nodes[number].dead_processes()

    def start_again(self, host: int) -> Future[None]:
        """Start the node of a host again, in the background."""
        started: Future[None] = Future()

        def start() -> None:
            try:
                self._start(host % self._count)
                started.set_result(None)
            except BaseException as error:  # whoever waits for it raises it
                started.set_exception(error)

        threading.Thread(target=start, daemon=True).start()
        return started

    def close(self) -> None:
        """End all nodes but the driver's."""
        for node in self._nodes.values():
            _end(node)
        self._nodes.clear()

    def _start(self, number: int) -> None:
        if number in self._nodes:
            _end(self._nodes[number])
        address = ray.get_runtime_context().gcs_address
        # What ray.cluster_utils.Cluster, which needs a head of its own, gives a further node.
        wanted = RayParams(
            gcs_address=address,
            redis_address=address,
            num_cpus=1,
            num_gpus=0,
            object_store_memory=_STORE_BYTES,
            min_worker_port=0,
            max_worker_port=0,
            node_manager_port=0,
        )
        wanted.update(dashboard_agent_listen_port=None, include_log_monitor=False)
        node = Node(wanted, head=False, shutdown_at_exit=False, spawn_reaper=False)
        self._nodes[number] = node
        wait_for_node(node.gcs_address, node.plasma_store_socket_name, 30)


def _end(node: Any) -> None:
    with awaited(processes_of(node)):
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
