"""The end of what the processes of a run have written to their logs, also where they are gone with their pod.

On each node Ray reads the logs of its processes as they grow, what native code writes included (NCCL, the
stack trace of a crash), and publishes the lines. The driver keeps the last of each process, so nothing has to
be fetched when the run is over: a process that died, or its whole pod, could not be asked any more.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

# isort: split
import ray

MOST_LINES = 200
MOST_BYTES = 64 * 1024
"""That are kept of a process: its last ones, of at most so many lines."""

_MOST_CHARACTERS = 2000  # of a line
_MOST_PROCESSES = 256  # of which lines are kept; a run that starts more loses the oldest
_POLL_S = 0.5
_LAST_S = 2.0  # how long last lines are waited for; as a rule they come within 0.1 s
_MANY_LINES, _PAUSE_S = 500, 0.02  # of a process that prints in a loop Ray drops some, rather than fill this
_OF_A_NODE = ("raylet", "gcs_server")  # Ray's own processes, in place of a number


@dataclass(eq=False)
class _Kept:
    """What is kept of one process."""

    address: str
    pid: str
    name: str
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    num_lines: int = 0

    def __str__(self) -> str:
        text = "\n".join(self.lines).encode()[-MOST_BYTES:].decode(errors="replace")
        which = self.pid if self.pid in _OF_A_NODE else f"process {self.pid}"
        return f"=== {which} on {self.address}: the last of {self.num_lines:,} lines\n{text}\n"


class ProcessLogs:
    """Keeps, in a thread, the last lines of each process of this job, and of Ray's own on its nodes.

    An actor is named by its `__repr__`.
    """

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._job = context.get_job_id()
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._closing, self._until_s = False, 0.0
        self._address = context.gcs_address
        self._subscriber: Any = None
        self._thread = threading.Thread(target=self._work, name="dsgd-process-logs", daemon=True)
        self._thread.start()

    def close(self, *, wait: bool) -> Mapping[str, str]:
        """Keep no more; return what there is by the names of the processes, several of one name together.

        wait: for the last lines of processes that have just died, for a second or two at most.
        """
        self._until_s = time.monotonic() + _LAST_S
        self._closing = True
        if not wait:
            with suppress(Exception):  # the cluster may be gone already
                self._subscriber.close()
        self._thread.join(_LAST_S + _POLL_S if wait else _POLL_S)
        found: dict[str, str] = {}
        for kept in list(self._kept.values()):
            found[kept.name] = found.get(kept.name, "") + str(kept)
        return found

    def _work(self) -> None:
        with suppress(Exception):  # without it a run does as well: Ray's way of doing this is not public
            self._subscriber = ray._raylet.GcsLogSubscriber(  # type: ignore[attr-defined]
                worker_id=os.urandom(28), address=self._address
            )
            self._subscriber.subscribe()
            while not self._closing or time.monotonic() < self._until_s:
                batch = self._subscriber.poll(timeout=_POLL_S)
                if batch and batch["lines"]:
                    self._keep(batch)
                    if len(batch["lines"]) > _MANY_LINES and not self._closing:
                        time.sleep(_PAUSE_S)
                elif self._closing:
                    return

    def _keep(self, batch: Mapping[str, Any]) -> None:
        address, pid = str(batch["ip"]), str(batch["pid"])
        if pid not in _OF_A_NODE and batch["job"] != self._job:
            return
        kept = self._kept.get((address, pid))
        if kept is None:
            if len(self._kept) >= _MOST_PROCESSES:
                self._kept.pop(next(iter(self._kept)))
            name = f"node {address}" if pid in _OF_A_NODE else f"process {pid}"
            kept = self._kept[address, pid] = _Kept(address, pid, name)
        if " " in batch["actor_name"]:  # until it has begun, Ray has its class's name
            kept.name = batch["actor_name"]
        kept.num_lines += len(batch["lines"])
        kept.lines.extend(line[:_MOST_CHARACTERS] for line in batch["lines"][-MOST_LINES:])
