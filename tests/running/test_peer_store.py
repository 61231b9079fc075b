"""Checkpoints in the memory of another node of a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PATIENCE_S, ROOT, Nodes, wait_for

pytestmark = pytest.mark.ray

DRIVER = """
import os, signal, sys
from dsgd.engines.ray.connection.connect import connect
from dsgd.running.checkpoints.peer_store import PeerStore
from dsgd.records.stores.store import name_of, newest_whole, version_of
import ray
from ray._private.state import actors

connect()
store = PeerStore("lab/a", patience_s=float(sys.argv[2]))
if sys.argv[1] == "write":
    for version in (1, 2):
        parts = [bytes(1 << 20), b"%d" % version]
        store.write(name_of(version, parts), parts)
    [keeper] = [a for a in actors().values() if a["Name"] == "keeper:lab/a" and a["State"] == "ALIVE"]
    assert keeper["Address"]["NodeID"] != ray.get_runtime_context().get_node_id()
    print(keeper["Address"]["NodeID"], keeper["Pid"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
found = newest_whole(store)
print(found.name and version_of(found.name), len(found.content), found.skipped)
if sys.argv[1] == "close":
    store.close()
    print(store.names())
"""


def drive(address: str | None, what: str, patience_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Be the driver of a run, in a separate process."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.run(
        [sys.executable, "-c", DRIVER, what, str(patience_s)],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
        env=environment | ({"RAY_ADDRESS": address} if address else {}),
    )  # fmt: skip


@pytest.mark.thorough
def test_a_copy_in_another_nodes_memory_outlives_the_driver(nodes: Nodes) -> None:
    """The next driver finds the checkpoints of a killed one. A lost node costs the copy: the next one has
    another keeper. The run's end, or an hour without a call, ends it; no process is left.
    """
    address = nodes.address
    first = drive(address, "write")
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert drive(address, "read").stdout == f"2 {(1 << 20) + 1} []\n"
    node, _ = first.stdout.split()
    nodes.remove(node)
    assert drive(address, "read").stdout == "None 0 []\n"
    second = drive(address, "write")
    other, pid = second.stdout.split()
    assert other != node
    assert drive(address, "close").stdout == f"2 {(1 << 20) + 1} []\n[]\n"
    wait_until_gone(int(pid))
    *_, pid = drive(address, "write", patience_s=1).stdout.split()
    wait_until_gone(int(pid))


def wait_until_gone(pid: int) -> None:
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the end of a process")


@pytest.mark.thorough
def test_a_single_node_cannot_keep_a_copy_for_another() -> None:
    """The tier peer on a cluster that ends with the run is refused, in one line with the remedy."""
    done = drive(None, "read")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "ValueError: --checkpoint-every peer: the cluster on this machine ends with the run"
    )
    assert "RAY_ADDRESS" in last
