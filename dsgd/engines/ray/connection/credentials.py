"""What a private cluster keeps in files, for its user alone: its token, with which one can run code as the
user who started it, and the folder of its session. Ray lets all read the one and write to the other.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

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
    outer = Path("/tmp", f"dsgd-{os.getuid()}")  # a short path: the names of sockets have 107 bytes
    outer.mkdir(mode=0o700, exist_ok=True)
    found = outer.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise OSError(
            f"{outer} is not a folder of this user alone; remove it, or set RAY_TMPDIR to one that is"
        )
    forget_ended(outer / "ray")
    return str(outer / "ray")


def forget_ended(folder: Path) -> None:
    """Remove what Ray's sessions have left there that began over an hour ago and do not answer any more."""
    for session in folder.glob("session_*_*"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            is_old = time.time() - session.stat().st_mtime > _KEPT_S
            if is_old and link.connect_ex(str(session / "sockets/raylet")):
                shutil.rmtree(session, ignore_errors=True)


def guard_token() -> None:
    """Have a token, where the environment names none, that only this user can read."""
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}.isdisjoint(os.environ):
        return
    token = Path.home() / ".ray/auth_token"
    token.parent.mkdir(exist_ok=True)
    if not token.exists():
        descriptor, new = tempfile.mkstemp(dir=token.parent)  # which is this user's
        try:
            with open(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            with suppress(FileExistsError):  # another process was faster
                os.link(new, token)  # whole, or not there
        finally:
            os.unlink(new)
    if token.stat().st_mode & 0o077:
        token.chmod(0o600)
