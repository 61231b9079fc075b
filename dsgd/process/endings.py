"""What a user's code may do to the process that runs it: end it, copy it, leave something running, go to
another folder. None of it may look like a result.
"""

from __future__ import annotations

import os
import posix
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from dsgd.process.outcomes import EXIT_FAILED, program

_PATIENCE_S = 5.0
END = os._exit
"""Ends the process at once, whatever a user's code has made of os._exit."""
_first: int | None = None
"""The process that runs; None where a copy of it is none of our business."""


class EndedFromWithin(RuntimeError):
    """Code called what would have ended its process, as if all were well, before the work was done."""


def refuse_early_ends() -> None:
    """Replace the calls that end this process with exit code 0, or put another program in its place, by ones
    that raise EndedFromWithin. In a process that is forked from this one they do what they always do.
    """
    here = os.getpid()

    def refusing(name: str, end: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            ends_well = name != "_exit" or not (named or arguments[0])
            if os.getpid() == here and ends_well:
                raise EndedFromWithin(f"os.{name}() would end the process without a result; raise an error")
            return end(*arguments, **named)

        return called

    for name in ("_exit", "execv", "execve"):
        refused = refusing(name, getattr(os, name))
        for module in (os, posix):
            setattr(module, name, refused)


def begin_here() -> None:
    """Note that this process runs, and no copy of it may."""
    global _first
    _first = os.getpid()


def end_if_copy(error: BaseException | None = None) -> None:
    """End this process if it is a copy, made by os.fork(), of the one that runs: it would write, too.

    error: what its code raised. A copy that calls sys.exit() ends as it asks.
    """
    if _first in (None, os.getpid()):
        return
    if isinstance(error, SystemExit):
        END(error.code if isinstance(error.code, int) else int(error.code is not None))
    with suppress(OSError):
        said = "a copy of this process, made by os.fork(), went on with the run and was ended"
        os.write(2, f"{program()}: {said}; have it end itself, by os._exit()\n".encode())
    END(EXIT_FAILED)


def leave(code: int) -> NoReturn:
    """End the process with this exit code, also where threads and processes that code has started go on."""
    threading.Thread(target=_leave_late, args=(code,), daemon=True).start()
    sys.exit(code)


def _leave_late(code: int) -> None:
    while True:
        time.sleep(_PATIENCE_S)
        threads = [thread.name for thread in threading.enumerate() if not thread.daemon]
        threads = [name for name in threads if name != threading.main_thread().name]
        known = sys.modules.get("multiprocessing")
        processes = known.active_children() if known else []
        for process in processes:
            process.kill()
        if left := [*threads, *(process.name for process in processes)]:
            with suppress(OSError, ValueError):
                said = f"{', '.join(left[:4])} did not end with the run, and was ended"
                print(f"{program()}: {said}; have your code end what it starts", file=sys.stderr, flush=True)
                sys.stdout.flush()
            END(code)


class WorkingFolder:
    """The working folder of this process, to which relative paths like --out belong."""

    def __init__(self) -> None:
        self._path: str | None = None
        with suppress(OSError):  # it may be gone
            self._path = os.getcwd()

    def restore(self) -> None:
        """Go back to it, wherever a user's code has gone."""
        if self._path is not None:
            with suppress(OSError):
                os.chdir(self._path)
