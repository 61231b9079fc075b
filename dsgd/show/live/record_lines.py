"""The lines of files that grow, read in bounded memory, however long a line is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, Literal, TypeAlias, TypeVar

from dsgd.records.schema import RecordedTask, RecordedUpdate, decode, update_type

T = TypeVar("T")

_MOST_BYTES = 1 << 18  # of a file at once, so that a browser does not wait for long
_TASKS = re.compile(rb'"gradients"\s*:\s*\[')
_IGNORED = re.compile(rb'"ignored"\s*:\s*\[')
_SEEN_BYTES = 256  # of what was read last, by which it is known again
_NAME_BYTES = 64  # within which one of these names lies, so that it is never cut in two

Part: TypeAlias = tuple[Sequence[RecordedTask], RecordedUpdate | None]


class TakenBack(Exception):
    """What was read of a file is no longer there: its run has gone back to an earlier update."""


class _File:
    """A file that grows, as far as it was read."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.lines = path, 0, 0
        self._seen = b""
        self.rest = True
        """Whether there was more than is read at once."""

    def block(self) -> bytes:
        """Return what follows, at most as much as is read at once; raises TakenBack."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset - len(self._seen))
                if file.read(len(self._seen)) != self._seen:
                    raise TakenBack
                block = file.read(_MOST_BYTES)
        except FileNotFoundError:
            block = b""
        self.rest = len(block) == _MOST_BYTES
        return block

    def take(self, piece: bytes) -> None:
        """Go on after a piece that has been read."""
        self.offset += len(piece)
        self._seen = (self._seen + piece)[-_SEEN_BYTES:]

    def whole_lines(self, block: bytes) -> Iterator[tuple[bytes, str]]:
        """Yield the lines that are whole in a block, each with its place; the last, torn one is left."""
        end = block.rfind(b"\n") + 1
        self.take(block[:end])
        for line in block[:end].splitlines():
            self.lines += 1
            yield line, f"{self.path}, line {self.lines}"


class Lines(Generic[T]):
    """The lines of a file, all of one kind and none longer than is read at once."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._file, self._kind = _File(path), kind

    @property
    def rest(self) -> bool:
        return self._file.rest

    def read(self) -> Iterator[T]:
        """Yield the new lines; `rest` then says whether there was more than is read at once."""
        for line, where in self._file.whole_lines(self._file.block()):
            yield decode(line, self._kind, where)


class UpdateLines:
    """The lines of updates.jsonl. Of one that is longer than is read at once, an update of thousands of
    workers, the tasks come in parts and then the update without them.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._kind = _File(path), update_type()
        self._inside: Literal["", "head", "tasks", "ignored", "tail"] = ""
        self._line = b""  # of a long line: what is not a task

    @property
    def rest(self) -> bool:
        return self._file.rest

    @property
    def read_bytes(self) -> int:
        """How much has been read."""
        return self._file.offset

    @property
    def size_bytes(self) -> int:
        """How long the file is now; 0 without it."""
        try:
            return self._file.path.stat().st_size
        except OSError:
            return 0

    def read(self) -> Iterator[Part]:
        """Yield new tasks with the update that they made; of a long line, tasks alone and the update alone.

        `rest` then says whether there was more than is read at once.
        """
        block = self._file.block()
        if not self._inside and self._file.rest and b"\n" not in block:
            self._inside = "head"
        if self._inside:
            before = self._file.offset, self._inside
            part = self._part(block)
            self._file.rest = (self._file.offset, self._inside) != before
            if part:
                yield part
            return
        for line, where in self._file.whole_lines(block):
            update = decode(line, self._kind, where)
            yield update.gradients, update

    def _part(self, block: bytes) -> Part | None:
        """Take a part of a long line: its beginning, some tasks, some that were ignored, or its end.

        A task holds no other object and no list, so a brace ends a task, and a bracket the list of them.
        """
        where = f"{self._file.path}, line {self._file.lines + 1}"
        if self._inside == "head":
            begin = _TASKS.search(block)
            if not begin:
                raise ValueError(f"{where}: is not an update")
            self._take(block[: begin.end()], "tasks")
            return None
        if self._inside in ("tasks", "ignored"):
            end, over = block.find(b"]"), True
            if end < 0:
                end, over = block.rfind(b"}") + 1, False
            tasks: Sequence[RecordedTask] = ()
            if self._inside == "tasks":
                tasks = decode(b"[" + block[:end].strip(b", \t") + b"]", tuple[RecordedTask, ...], where)
            self._file.take(block[:end])
            if over:
                self._inside = "tail"
            elif not end and len(block) == _MOST_BYTES:
                raise ValueError(f"{where}: is not an update")
            return tasks, None
        end, ignored = block.find(b"\n"), _IGNORED.search(block)
        if ignored and not 0 <= end < ignored.start():
            self._take(block[: ignored.end()], "ignored")
        elif end < 0:
            self._take(block[:-_NAME_BYTES], "tail")
        else:
            self._take(block[: end + 1], "")
            update = decode(self._line, self._kind, where)
            self._line, self._file.lines = b"", self._file.lines + 1
            return (), update
        return None

    def _take(self, piece: bytes, inside: Literal["", "tasks", "ignored", "tail"]) -> None:
        self._line += piece.strip()  # no text is in it, so no blank means anything
        if len(self._line) > _MOST_BYTES:
            raise ValueError(f"{self._file.path}, line {self._file.lines + 1}: is not an update")
        self._file.take(piece)
        self._inside = inside
