"""The processes of a private Ray cluster: when it is closed, none of them is left.

`ray.shutdown` returns once it has asked them to end; on a busy machine, workers outlive it. Import
`dsgd.engines.ray.connection.connect` first: it sets what Ray reads when it is imported.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import ray

# isort: split
import psutil  # Ray brings it, and makes it importable

T = TypeVar("T")

_END_S = 10.0
_RAY = os.path.dirname(ray.__file__)


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
def begun(program: str = _RAY) -> Iterator[None]:
    """If the block raises, kill the processes of a program's folder that this process started during it."""
    before = set(own_processes(program))
    try:
        yield
    except BaseException:
        kill([process for process in own_processes(program) if process not in before])
        raise


def kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes; those that have ended are left."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def own_processes(program: str = _RAY) -> list[psutil.Process]:
    """Return the processes of a program's folder, like Ray's, that this process has started, and theirs."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any(program in part for part in child.cmdline()):
                found += [child, *child.children(recursive=True)]
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
