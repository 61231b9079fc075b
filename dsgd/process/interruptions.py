"""Ctrl-C, SIGTERM and SIGHUP end a run between two updates, never in the middle of recording one."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

from dsgd.process.endings import END, begin_here, end_if_copy, leave, refuse_early_ends
from dsgd.process.outcomes import EXIT_FAILED, EXIT_INTERRUPTED, one_line, program, report_error

T = TypeVar("T")

_SIGNALS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it, and then a run outlives its terminal
    _SIGNALS = (*_SIGNALS, signal.SIGHUP)
NOTHING_WRITTEN = "interrupted before the first update; nothing was written"
_NOT_BEGUN = "interrupted before it began; nothing was written"


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the process at once, with one line, if a signal comes while the block runs: nothing can be lost.

    For imports, where a KeyboardInterrupt could be raised, and caught, anywhere.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{program()}: {_NOT_BEGUN}\n".encode())
        END(EXIT_INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():  # only that one may handle signals
        yield
        return
    before = {which: signal.signal(which, end) for which in _SIGNALS}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def run_as_program(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Call `main` with the command line and end the process with the exit code that it returns.

    After `main` nothing is left to do, so a signal ends the process at once, with that code. Where standard
    output cannot be written to, one line says so; a reader that has left is not an error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # or the next file that is opened has its number, 0 to 2
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a question mark for what its encoding lacks
    atexit.register(_ignore_signals)  # the first to be registered is the last to be called
    refuse_early_ends()
    begin_here()
    try:
        code = main(sys.argv[1:])
    except ValueError:
        if not sys.stdout.closed:
            raise
        code = 0
    end_if_copy()
    if sys.stdout.closed:  # by a file of the user's
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        code = code or report_error("standard output was closed; a workload must leave it open", EXIT_FAILED)
    try:
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            code = report_error(f"standard output: {one_line(error)}", code or EXIT_FAILED)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
    for which in _SIGNALS:
        signal.signal(which, lambda *_: END(code))
    leave(code)


def _ignore_signals() -> None:
    """Let the interpreter end in peace: without its handlers, a signal would replace the exit code."""
    for which in _SIGNALS:
        signal.signal(which, signal.SIG_IGN)


class BetweenItems(KeyboardInterrupt):
    """A signal that came while an item was made or handled, raised between two: nothing is half done."""


class Interruptions:
    """Turns the signals into KeyboardInterrupt, at moments that lose nothing.

    While the program starts or waits for the next item of `between`, a signal raises at once. While an
    item is handled, it is kept until the next one is asked for; after the last, it is ignored, so that a
    second ctrl-C cannot spoil what the first one had saved. `held` and `hold` keep it in between.

    A context manager: it restores the handlers that it found. Where it is not entered, or not in the main
    thread, which alone may handle signals, they do what they did before.
    """

    def __init__(self, signals: Sequence[signal.Signals] = _SIGNALS) -> None:
        self._signals = signals
        self._requested = False
        self._raises = True
        self._patience_s = 0.0
        self._timer: threading.Timer | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.getsignal(s) for s in self._signals}
        self._install()
        return self

    def __exit__(self, *_: object) -> None:
        for which, handler in self._before.items():
            signal.signal(which, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals while the block runs, which must not be interrupted; raise after it if one came."""
        before, self._raises = self._raises, False
        try:
            yield
        finally:
            self._install()  # what starts there (Ray) may have replaced them with its own handlers
            self._raises = before
        if self._requested and self._raises:
            raise KeyboardInterrupt

    @property
    def came(self) -> bool:
        """Whether a signal came; also where they are not handled here, and so it is not known."""
        return self._requested or not self._before

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal came: Python only prints what is raised in a destructor."""
        if self._requested:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Keep signals from now on, until `between` asks for its first item."""
        self._raises = False

    def wait(self, seconds: float) -> None:
        """Wait for that long, or until a signal, also one that came before."""
        self._raises = False
        until_s = time.monotonic() + seconds
        while not self._requested and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(0.1, left_s))

    def between(self, items: Iterator[T], patience_s: float = 0.0) -> Iterator[T]:
        """Yield the items; raise BetweenItems before the next one after a signal.

        patience_s: how long the making of an item may last after the first signal; if it lasts longer, or at
        a second signal, KeyboardInterrupt is raised in the middle of it.
        """
        self._patience_s = patience_s
        try:
            while True:
                self._raises = True
                if self._requested:
                    raise BetweenItems
                try:
                    item = next(items)
                except StopIteration:
                    return
                self._raises = False
                yield item
                del item  # it may be large, and the next one is made now
        finally:
            self._raises, self._patience_s = False, 0.0
            if self._timer:
                self._timer.cancel()

    def _install(self) -> None:
        for which in self._before:
            signal.signal(which, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_first, self._requested = not self._requested, True
        if not self._raises:
            return
        if is_first and self._patience_s:
            main = threading.main_thread().ident
            self._timer = threading.Timer(self._patience_s, signal.pthread_kill, (main, number))
            self._timer.daemon = True
            self._timer.start()
        else:
            raise KeyboardInterrupt
