"""What a private cluster keeps in files, for its user alone: its token, with which one can run code as the
user who started it, and the folder of its session. Ray lets all read the one and write to the other.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dsgd.process.files import own_folder

_KEPT_S = 3600.0  # a session's folder: why it did not start is in its logs


def uses_tls() -> bool:
    """Whether Ray's calls are encrypted in this process, by what it was started with."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def session_folder() -> str:
    """Return a folder for Ray, cleared, that no other user gets into, or the one that the environment names.

    Raises OSError if another user has made a folder of this name.
    """
    if named := os.environ.get("RAY_TMPDIR"):
        return named
    # A short path: the names of sockets have 107 bytes.
    folder = own_folder("/tmp", "set RAY_TMPDIR to one that is") / "ray"  # noqa: S108 - no other user gets in
    forget_ended(folder)
    return str(folder)


def forget_ended(folder: Path) -> None:
    """Remove what Ray's sessions have left there that began over an hour ago and do not answer any more."""
    for session in folder.glob("session_*_*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            is_old = time.time() - session.stat().st_mtime > _KEPT_S  # noqa: TID251 - of a file
            if is_old and link.connect_ex(str(session / "sockets/raylet")):
                shutil.rmtree(session, ignore_errors=True)


def guard_token() -> None:
    """Make a token, where the environment names none, that only this user can read.

    It is kept in the user's home, for processes started later; without a home that can be written to, and on
    a disk without rights or hard links, in the environment, which Ray's processes inherit.
    """
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}.isdisjoint(os.environ):
        return
    try:
        token = Path.home() / ".ray/auth_token"
        token.parent.mkdir(exist_ok=True)
        if not token.exists():
            _write(token)
        if token.stat().st_mode & 0o077:
            token.chmod(0o600)
            if token.stat().st_mode & 0o077:
                raise PermissionError(errno.EPERM, "the disk keeps no rights")
    except (OSError, RuntimeError):  # RuntimeError: nobody knows where the home is
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _write(token: Path) -> None:
    descriptor, new = tempfile.mkstemp(dir=token.parent)  # which is this user's
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32))
        with suppress(FileExistsError):  # another process was faster
            os.link(new, token)  # whole, or not there
    finally:
        os.unlink(new)
