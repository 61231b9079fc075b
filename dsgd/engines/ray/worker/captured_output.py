"""What the process of a worker prints and logs, kept until its driver fetches it.

It is bounded in rate and in size: the driver gets so many lines a second, of so many characters, and learns
how many were left out. All of it stays in the process's own log, which Ray keeps on its node.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

MOST_CHARACTERS = 2000
"""Of a line; the rest of it is cut off."""

MOST_LINES = 200
"""That the driver takes a second, of all processes together; at least two of each."""

EVERY_S = 1.0
"""Least seconds between two fetches that have lines."""

_PAGE_BYTES = 4096
_RAYS_MARK = ":actor_name:"  # a line by which Ray knows whose log it reads


class OutputLine(NamedTuple):
    """A line that a process has printed or logged."""

    epoch_s: float
    level: int
    """As in `logging`; what is printed to standard output is INFO, to standard error WARNING."""
    worker: int | None
    """Whose task was computing; None before the first."""
    text: str
    rank: int = 0
    """Of the process in its group."""


class OutputNews(NamedTuple):
    """What a process has for its driver."""

    lines: list[OutputLine]
    left_out: int
    """Lines since the last news that are not among these."""
    memory_bytes: int
    """That the process has in memory, or its group on its machine, shared pages included."""


class CapturedOutput:
    """Keeps lines from any thread; `install` has it get all that Python prints and logs in this process.

    level: the least that is logged. most_lines: between two fetches.
    """

    def __init__(self, level: int, most_lines: int) -> None:
        self.worker: int | None = None
        """Whose task is computing."""
        self.followers: Sequence[int] = ()
        """Other processes on this machine that compute with this one, whose memory counts too."""
        self._level, self._most_lines = level, most_lines
        self._lines: list[OutputLine] = []
        self._left_out = 0
        self._changed = threading.Condition()
        self._fetched_s = -EVERY_S

    def install(self) -> None:
        """Get what is printed and logged from now on; it still goes to where it went."""
        own_log = sys.stderr
        sys.stdout = _Copied(sys.stdout, self, logging.INFO)
        sys.stderr = _Copied(own_log, self, logging.WARNING)
        root = logging.getLogger()
        root.addHandler(_Logged(own_log, self))
        root.setLevel(self._level)

    def add(self, level: int, text: str) -> None:
        """Keep a line, unless there are too many already."""
        if level < self._level:
            return
        with self._changed:
            if len(self._lines) >= self._most_lines:
                self._left_out += 1
                return
            self._lines.append(OutputLine(time.time(), level, self.worker, text[:MOST_CHARACTERS]))  # noqa: TID251 - a label
            self._changed.notify_all()

    def relay(self, news: OutputNews, rank: int) -> None:
        """Keep what a follower, of this rank, has for the driver, unless there are too many lines already."""
        with self._changed:
            room = self._most_lines - len(self._lines)
            self._lines += [line._replace(rank=rank) for line in news.lines[:room]]
            self._left_out += news.left_out + max(0, len(news.lines) - room)
            self._changed.notify_all()

    def news(self, wait_s: float) -> OutputNews:
        """Return the lines that are kept, and forget them; wait up to `wait_s` seconds for the first."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines, wait_s)
            if self._lines and wait_s:
                early_s = self._fetched_s + EVERY_S - time.monotonic()
                if early_s > 0.0:
                    self._changed.wait_for(lambda: False, early_s)
            if self._lines:
                self._fetched_s = time.monotonic()
            lines, left_out = self._lines, self._left_out
            self._lines, self._left_out = [], 0
        total = memory_bytes()
        for pid in self.followers:
            with suppress(FileNotFoundError):  # it has just ended, and this process will
                total += memory_bytes(pid)
        return OutputNews(lines, left_out, total)


class _Copied(io.TextIOBase):
    """A stream whose lines are kept too."""

    def __init__(self, stream: TextIO, output: CapturedOutput, level: int) -> None:
        self._stream, self._output, self._level = stream, output, level
        self._begun = threading.local()  # of each thread: the line that it has not ended

    def write(self, text: str) -> int:
        self._stream.write(text)
        *lines, begun = (getattr(self._begun, "text", "") + text).split("\n")
        self._begun.text = begun[-MOST_CHARACTERS:]  # of one that is drawn over and over, its end
        for line in lines:
            shown = line.rpartition("\r")[2].rstrip()
            if shown and not shown.startswith(_RAYS_MARK):
                self._output.add(self._level, shown)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


class _Logged(logging.Handler):
    """Keeps what is logged, and writes it to the process's own log."""

    def __init__(self, own_log: TextIO, output: CapturedOutput) -> None:
        super().__init__()
        self._own_log, self._output = own_log, output
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # as in logging's own handlers: a record that cannot be formatted ends nothing
            self.handleError(record)
            return
        self._own_log.write(f"{text}\n")
        for line in text.removeprefix(f"{record.levelname} ").splitlines():
            self._output.add(record.levelno, line)


def memory_bytes(pid: int | str = "self") -> int:
    """Return the bytes that a process of this machine has in memory, shared pages included."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * _PAGE_BYTES
