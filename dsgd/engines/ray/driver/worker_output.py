"""How the driver gets what its workers print and log, and how much memory they take: by calls of Ray that
wait in each process until there is something, and so cost nothing meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

# isort: split
import ray

from dsgd.engines.ray.driver.host_process import HostProcess
from dsgd.engines.ray.worker.captured_output import OutputLine, OutputNews

_WAIT_S = 10.0  # within which a process says at least how much memory it takes
_FAREWELL_S = 5.0  # as a rule it takes milliseconds; one that is stopped does not answer

_LOGGER = logging.getLogger("dsgd.worker")


class WorkerOutput:
    """Logs, in a thread, what the processes of a run say."""

    def __init__(self) -> None:
        self.level = _LOGGER.getEffectiveLevel()
        """The lowest level that is logged here, so that processes keep no more."""
        self.memory_bytes: Mapping[str, int] = {}
        """Of the processes that live, by the names of their hosts; replaced, never changed."""
        self._came: SimpleQueue[tuple[HostProcess, Future[OutputNews]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="dsgd-output", daemon=True)
        self._thread.start()

    def listen(self, process: HostProcess) -> None:
        """Log what a process says, as long as it lives."""
        future = process.actor.output.remote(_WAIT_S).future()
        future.add_done_callback(lambda news: self._came.put((process, news)))

    def close(self, processes: Iterable[HostProcess]) -> None:
        """Log the last words of these processes, if they come at once, and listen no more."""
        with suppress(Exception):  # the cluster may be gone already
            started = [process for process in processes if process.pid]  # others would not answer
            last = {process.actor.last_output.remote(): process for process in started}
            for ref in ray.wait(list(last), num_returns=len(last), timeout=_FAREWELL_S)[0] if last else ():
                with suppress(Exception):  # of a process that died, the others' are logged
                    log_output(last[ref].host, ray.get(ref))
        self._came.put(None)  # now: what is on its way from a call before is logged too
        self._thread.join(_FAREWELL_S)

    def _work(self) -> None:
        while came := self._came.get():
            process, future = came
            name = f"host {process.host}"
            if future.exception() is not None or process.ended:
                self.memory_bytes = {n: size for n, size in self.memory_bytes.items() if n != name}
                continue
            news = future.result()
            self.memory_bytes = {**self.memory_bytes, name: news.memory_bytes}
            log_output(process.host, news)
            with suppress(Exception):  # it, or the cluster, has just gone
                self.listen(process)


def log_output(host: int, news: OutputNews) -> None:
    """Log what a host has said, each line with the worker whose task it was computing and, of a follower, its
    rank in the group.
    """
    for line in news.lines:
        _log(host, line)
    if news.left_out:
        text = f"{news.left_out:,} more lines are left out; all of them are in its own log, on its node"
        _log(host, news.lines[-1]._replace(level=logging.WARNING, text=text))


def _log(host: int, line: OutputLine) -> None:
    if _LOGGER.isEnabledFor(line.level):
        who = f"host {host}" if line.worker is None else f"worker {line.worker}"
        extra: dict[str, Any] = {"rank": f"{who} rank {line.rank}" if line.rank else who}
        record = _LOGGER.makeRecord(_LOGGER.name, line.level, "", 0, line.text, (), None, extra=extra)
        record.created = line.epoch_s
        _LOGGER.handle(record)
