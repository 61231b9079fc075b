"""How a run ends: its state in the summary, and the exit code (docs/record.md)."""

from __future__ import annotations

import errno
from typing import Literal

StoppedBy = Literal["budget", "seconds", "target-loss", "diverged", "interrupted", "failed"]

EXIT_CODES: dict[StoppedBy, int] = {
    "budget": 0,
    "seconds": 0,
    "target-loss": 0,
    "failed": 1,
    "diverged": 3,
    "interrupted": 130,
}
REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "free some of your quota there",
    errno.EFBIG: "raise the limit on a file's size (ulimit -f)",
    errno.EROFS: "make it writable",
    errno.EACCES: "correct its permissions",
    errno.EPERM: "correct its permissions",
    errno.EIO: "check that disk",
    errno.ENAMETOOLONG: "shorten it",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files (ulimit -n)",
}
"""What a user can do about an error of the operating system, by its number."""

EXIT_FAILED, EXIT_USAGE, EXIT_DIVERGED, EXIT_INTERRUPTED = 1, 2, 3, 130


def is_result(stopped_by: str) -> bool:
    """Whether such an end is a result of the run's options: divergence is, being cut off is not."""
    return stopped_by not in ("failed", "interrupted")


def one_line(error: object) -> str:
    """Return an error's message on one line."""
    if isinstance(error, OSError) and str(error).startswith(
        "[Errno "
    ):  # as Python prints them, is no sentence
        where = f"{error.filename}: " if error.filename else ""
        remedy = REMEDIES.get(error.errno or 0)
        return f"{where}{error.strerror}" + (f"; {remedy}" if remedy else "")
    text = " ".join(str(error).split())
    return text or type(error).__name__
