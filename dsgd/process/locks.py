"""One writer at a time in a folder, also where the file system has no locks.

On a machine's own disk the folder itself is locked. NFS locks only what is opened for writing: a file `.lock`
in it. Where there are no locks at all, as on some Lustre, a file `.writer-N` says who writes. A number can be
claimed once; the next one can be when the process that has it is gone, which is known on its machine only.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
_CLAIM, _FREE = ".writer-", "free"


class HeldError(BlockingIOError):
    """Another process writes to the folder; `remedy` says what to do if that has ended without a word."""

    remedy = ""


class FolderLock:
    """Keeps other processes from writing to a folder; it ends with this one, however that ends.

    wait: for the process that has it; without locks nobody is waited for, and nobody kept out. Without
    `wait` it raises HeldError if another process has it.
    """

    def __init__(self, folder: Path, *, wait: bool = False) -> None:
        self._own: Path | None = None
        self.descriptor = os.open(folder, os.O_RDONLY)
        """Processes that inherit it have the lock, too."""
        try:
            if not self._is_locked(wait=wait) and not self._is_locked_by_file(folder / ".lock", wait=wait):
                self.descriptor = os.open(folder, os.O_RDONLY)
                if not wait:
                    self._own = _claimed(folder)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock; a second call has no effect."""
        if self._own:
            with suppress(OSError):
                if self._own.name.startswith(_CLAIM):
                    self._own.write_text(_FREE, encoding="utf-8")
                else:
                    self._own.unlink()
            self._own = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _is_locked(self, *, wait: bool) -> bool:
        """Lock what is open; return whether that can be locked."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeldError(*error.args) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        return True

    def _is_locked_by_file(self, file: Path, *, wait: bool) -> bool:
        while True:
            os.close(self.descriptor)
            self.descriptor = -1
            self.descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
            if not self._is_locked(wait=wait):
                self.close()
                file.unlink(missing_ok=True)
                return False
            with suppress(FileNotFoundError):  # its holder has removed it meanwhile: others lock another file
                if os.stat(file).st_ino == os.fstat(self.descriptor).st_ino:
                    self._own = file
                    return True


def _claimed(folder: Path) -> Path:
    """Return the claim that this process has made; raise HeldError if another process has one.

    The highest number always stays, so that who has looked long ago, and claims a lower one, finds that out.
    """
    while True:
        newest = _newest(folder)
        if newest:
            _require_free(folder / f"{_CLAIM}{newest}")
        claim = folder / f"{_CLAIM}{newest + 1}"
        try:
            with claim.open("x", encoding="utf-8") as file:
                file.write(f"{_here()} {os.getpid()} {_began(os.getpid())}\n")
        except FileExistsError:
            continue
        if _newest(folder) > newest + 1:
            claim.unlink(missing_ok=True)
            continue
        for number in _numbers(folder):
            if number <= newest:
                (folder / f"{_CLAIM}{number}").unlink(missing_ok=True)
        logging.getLogger("dsgd").warning(
            "%s: its file system has no locks; %s keeps other processes out", folder, claim.name
        )
        return claim


def _numbers(folder: Path) -> list[int]:
    numbers = [path.name.removeprefix(_CLAIM) for path in folder.glob(f"{_CLAIM}*")]
    return [int(number) for number in numbers if number.isdecimal()]


def _newest(folder: Path) -> int:
    return max(_numbers(folder), default=0)


def _require_free(claim: Path) -> None:
    """Raise HeldError if the process that has made the claim may still write."""
    try:
        words = claim.read_text(encoding="utf-8").split()
    except FileNotFoundError:  # there is a newer one
        return
    host, pid, began = (*words, "", "", "")[:3]
    if words != [_FREE] and (host != _here() or not pid.isdecimal() or _began(int(pid)) == began):
        error = HeldError(errno.EAGAIN, "another process writes there")
        error.remedy = f"; if it has ended, remove {claim}{f' of process {pid} on {host}' if pid else ''}"
        raise error


def _here() -> str:
    """Return where numbers of processes mean what they mean here: containers may share a host's name."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _began(pid: int) -> str:
    """Return when a process began, as its system counts it: numbers of processes are used again; empty if it
    is gone.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]
