"""Writing to a disk that may fail: errors name the file and the remedy, readers see whole files only."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from dsgd.process.outcomes import REMEDIES

_ELSEWHERE = "choose another folder with --out"


class WriteError(OSError):
    """A file cannot be written; the message is one line with the file, the reason and the remedy."""

    def __init__(self, error: OSError, path: Path, elsewhere: str = _ELSEWHERE) -> None:
        """Make it from an error of the system, which does not always say which file it concerns.

        elsewhere: what the user can do instead of repairing what is wrong there.
        """
        super().__init__(error.errno or errno.EIO, error.strerror or str(error), str(path))
        self._remedy = ", or ".join(filter(None, (REMEDIES.get(error.errno or errno.EIO), elsewhere)))

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written ({self.strerror}); {self._remedy}"


def own_folder(parent: str, instead: str) -> Path:
    """Return a folder in one that is for all, like /tmp, that no other user gets into; it is made if need be.

    Raises OSError, with what to do instead, if another user has made a folder of this name.
    """
    folder = Path(parent, f"dsgd-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(f"{folder} is not a folder of this user alone; remove it, or {instead}")
    return folder


@contextmanager
def whole_file(path: Path, elsewhere: str = _ELSEWHERE) -> Iterator[IO[bytes]]:
    """Write a whole file or none: readers never see half of it, even after a crash.

    Raises WriteError if it cannot be written; nothing is left of it then.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
        _rename(partial, path)
    except BaseException as error:
        with suppress(OSError):  # on a disk that has become read-only, say
            partial.unlink()
        if isinstance(error, OSError):
            raise WriteError(error, path, elsewhere) from error
        raise


def _rename(partial: Path, path: Path) -> None:
    try:
        partial.rename(path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        shutil.copyfile(partial, path)  # a file system without renames: readers may see half of it
        partial.unlink()


def synced(file: IO[bytes]) -> None:
    """Wait until what was written is on the disk, where the file system can say so."""
    file.flush()
    sync(file.fileno())


def sync(descriptor: int) -> None:
    """Wait until what was handed to the system is on the disk, as `synced`."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise


class Writing:
    """Turns an OSError of the block into a WriteError: `write`, `flush` and `close` do not say which file.

    A class, because a generator would cost each update a microsecond.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, WriteError):
            raise WriteError(error, self._path) from error


class GrowingFile:
    """A file to which bytes are appended; raises WriteError when they cannot be.

    length: keep so many bytes of what is there already; without it, the file begins empty.
    """

    def __init__(self, path: Path, buffering: int = -1, *, length: int = 0) -> None:
        self._writing = Writing(path)
        with self._writing:
            self._file = path.open("r+b" if length else "wb", buffering=buffering)
        if length:
            self.cut(length)

    @property
    def length(self) -> int:
        """Bytes written so far, those that are still buffered among them."""
        return self._file.tell()

    def write(self, data: bytes) -> None:
        """Append bytes, which need not be on the disk before `flush`."""
        with self._writing:
            self._file.write(data)

    def cut(self, length: int) -> None:
        """Take back all but the first `length` bytes."""
        with self._writing:
            self._file.seek(length)  # writes what is buffered
            self._file.truncate()

    def flush(self) -> None:
        """Write what is buffered."""
        with self._writing:
            self._file.flush()

    def sync(self) -> None:
        """Wait until what was flushed is on the disk; from any thread."""
        with self._writing:
            sync(self._file.fileno())

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        with self._writing:
            self._file.close()
