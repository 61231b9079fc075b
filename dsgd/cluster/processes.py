"""The processes of a private Ray cluster: when it is closed, none of them is left.

`ray.shutdown` returns once it has asked them to end; on a busy machine, workers outlive it. Import
`dsgd.cluster.ray_connection` first: it sets what Ray reads when it is imported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import ray._private.worker

# isort: split
import psutil  # Ray brings it, and makes it importable

_END_S = 10.0


def own_processes() -> list[psutil.Process]:
    """Return the processes of the Ray node that this process has started, its workers among them."""
    node = ray._private.worker.global_worker.node
    return processes_of(node) if node else []


def processes_of(node: Any) -> list[psutil.Process]:
    """Return the processes of a Ray node that this process has started, its workers among them."""
    found: list[psutil.Process] = []
    for _, started in node.live_processes():
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(started.pid)
            found += [process, *process.children(recursive=True)]
    return found


@contextmanager
def awaited(processes: Sequence[psutil.Process], timeout_s: float = _END_S) -> Iterator[None]:
    """Wait, after the block, until all processes have ended; kill those that have not after `timeout_s`."""
    try:
        yield
    finally:
        until_s = time.monotonic() + timeout_s
        while left := [process for process in processes if _lives(process)]:
            if time.monotonic() > until_s:
                for process in left:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
                break
            time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie, ended but not yet reaped by its parent, does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
