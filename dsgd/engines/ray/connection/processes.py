"""The processes of a private Ray cluster: when it is closed, none of them is left.

`ray.shutdown` returns once it has asked them to end; on a busy machine, workers outlive it. Import
`dsgd.engines.ray.connection.connect` first: it sets what Ray reads when it is imported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import ray._private.worker

# isort: split
import psutil  # Ray brings it, and makes it importable

T = TypeVar("T")

_END_S = 10.0


class Calls:
    """Makes calls that may hang: each returns in bounded time, and what hangs is left to itself.

    All are made by one thread that stays. The kernel ends a process of Ray with the thread that started it.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def within(self, timeout_s: float, call: Callable[[], T]) -> T:
        """Return what a call returns, or raise what it raises; TimeoutError if it does not end in time.

        Ray keeps Python's lock where it waits for a head that does not answer, so this may take 30 s longer.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        ended: Future[T] = Future()
        self._asked.put((call, ended))
        return ended.result(timeout_s)

    def _work(self) -> None:
        while True:
            call, ended = self._asked.get()
            try:
                ended.set_result(call())
            except BaseException as error:  # the thread that waits raises it
                ended.set_exception(error)


@contextmanager
def begun(program: str) -> Iterator[None]:
    """If the block raises, kill the processes of a program's folder that this process started during it."""
    before = {child.pid for child in psutil.Process().children()}
    try:
        yield
    except BaseException:
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):
                if child.pid not in before and any(program in part for part in child.cmdline()):
                    kill([*child.children(recursive=True), child])
        raise


def kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes; those that have ended are left."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


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
                kill(left)
                break
            time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie, ended but not yet reaped by its parent, does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
