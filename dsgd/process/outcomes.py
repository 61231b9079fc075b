"""How a run ends: its state in the summary, and the exit code (docs/record.md)."""

from __future__ import annotations

import errno
import os
import re
import sys
from pathlib import Path
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


class UsageError(Exception):
    """What the user asked for cannot be done; the message is one line."""


class Failure(Exception):
    """What the user asked for can be done, but was not; the message is one line."""


def is_result(stopped_by: str) -> bool:
    """Whether such an end is a result of the run's options: divergence is, being cut off is not."""
    return stopped_by not in ("failed", "interrupted")


def one_line(error: object) -> str:
    """Return an error's message on one line."""
    if isinstance(error, OSError) and text_of(error).startswith("[Errno "):  # which is no sentence
        where = f"{error.filename}: " if error.filename else ""
        remedy = REMEDIES.get(error.errno or 0)
        return echoed(f"{where}{error.strerror}" + (f"; {remedy}" if remedy else ""))
    return echoed(text_of(error)) or type(error).__name__


def text_of(error: object) -> str:
    """Return an error's message; empty if its own code cannot say it."""
    try:
        return str(error)
    except Exception:  # of a user's class
        return ""


def cut(text: str, file: Path | None, most: int = 8_000) -> str:
    """Return a long text without its middle. file: has all of it, if there is one."""
    if len(text) <= most:
        return text
    there = f"; {file} has all" if file else ""
    return f"{text[: most // 2]}\n… ({len(text):,} characters{there})\n{text[-most // 2 :]}"


def echoed(text: str, most: int = 1_000) -> str:
    r"""Return what a user, a file or a library wrote, as one line that is fit for a terminal or a record.

    Control characters are escaped, passwords and keys in URLs and the middle of a long text left out.

    >>> print(echoed("red \x1b[31m, from http://me@host/x?token=12 and s3://b/run@7"))
    red \x1b[31m, from http://…@host/x?… and s3://b/run@7
    """
    text = " ".join(map(_without_secrets, escaped(text).split()))
    return text if len(text) <= most else f"{text[: most * 3 // 5]} … {text[3 - most * 2 // 5 :]}"


def _without_secrets(word: str) -> str:
    """Return a word; of a URL, which may have a password or key there, without user and query."""
    scheme, mark, rest = (*re.split("(:/+)", word, maxsplit=1), "", "")[:3]  # a Path has one slash of two
    user, at, place = rest.rpartition("@")
    if at and ("/" not in user or ":" in user):
        rest = f"…@{place}"
    before, query, _ = rest.partition("?")
    return f"{scheme}{mark}{before}{query and '?…'}"


def escaped(text: str) -> str:
    """Return text with control characters, which could rewrite the terminal, as Python writes them."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def program() -> str:
    """Return the name by which the command line was called: dsgd (console script, module) or main.py."""
    called = Path(sys.argv[0])
    return "dsgd" if called.name == "dsgd" or called.parts[-2:] == ("dsgd", "__main__.py") else "main.py"


def report_error(error: object, exit_code: int) -> int:
    """Print an error, in one line, and return the exit code."""
    print(f"{program()}: {one_line(error)}", file=sys.stderr)
    return exit_code


def print_page(text: str) -> None:
    """Print a text to the end; a reader that has left, as in `--help | head`, is not an error."""
    try:
        print(escaped(text), flush=True)
    except BrokenPipeError:  # Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
