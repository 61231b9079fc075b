"""What a private Ray cluster keeps in files, for its user alone: Ray's token, and the folder of its session.

Whoever has the token can run code as the user who started the cluster, and Ray writes it for all to read. It
also lets everybody write to its folder, where its sockets and logs are.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def session_folder() -> str:
    """Return a folder for Ray that no other user gets into, or the one that the environment names.

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
    return str(outer / "ray")


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
