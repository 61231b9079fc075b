"""Where checkpoints lie: what every store can do, their names, and how the newest whole one is found.

A checkpoint's name holds its version and the digest of its content, so a store needs no index: a name says
which is newer, and whether what is read is what was written. Two checkpoints of one name have one content.

    name = name_of(version, parts)
    store.write(name, parts)
    keep_newest(store, 3)
    found = newest_whole(store)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

_NAME = re.compile(r"(\d{8,})-([0-9a-f]{16})\.safetensors")

Part = bytes | memoryview
"""A piece of a checkpoint's content; arrays are given as views, which nobody changes meanwhile."""


class Store(Protocol):
    """A place for the checkpoints of one run, in which one process writes at a time.

    Every method raises OSError, in one line, where the place fails.
    """

    def names(self) -> list[str]:
        """Return the names of the checkpoints that are there, oldest first."""

    def write(self, name: str, parts: Sequence[Part]) -> None:
        """Keep a checkpoint: when this returns it is there whole; if it raises, or is killed, it is not
        there at all. A checkpoint of that name that is there already has the same content.
        """

    def read(self, name: str) -> bytes:
        """Return a checkpoint's content, which may be damaged."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint; one that is not there is no error."""


class MemoryStore:
    """A place in this process, gone with it; `kept` has the checkpoints' contents by their names."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def __str__(self) -> str:
        return "memory"

    def names(self) -> list[str]:
        return in_order([*self.kept])

    def write(self, name: str, parts: Sequence[Part]) -> None:
        self.kept[name] = b"".join(parts)

    def read(self, name: str) -> bytes:
        return self.kept[name]

    def remove(self, name: str) -> None:
        self.kept.pop(name, None)


class Newest(NamedTuple):
    """What `newest_whole` found in a store."""

    name: str | None
    """None: there is no checkpoint that is whole."""
    content: bytes
    skipped: list[tuple[str, str]]
    """The newer ones that cannot be used, each with the reason, in one line."""


def name_of(version: int, parts: Sequence[Part]) -> str:
    """Return the name of a checkpoint of a version of the weights.

    >>> name_of(1200, [b"weights"])
    '00001200-9a129038d9a00aed.safetensors'
    """
    return f"{version:08d}-{_digest(parts)}.safetensors"


def version_of(name: str) -> int | None:
    """Return the version in a checkpoint's name; None for what is not such a name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def in_order(names: Sequence[str]) -> list[str]:
    """Return those that name checkpoints, oldest first."""
    versions = {name: version_of(name) for name in names}
    return [name for _, name in sorted((v, name) for name, v in versions.items() if v is not None)]


def newest_whole(store: Store, usable: Callable[[bytes], object] = len) -> Newest:
    """Return the newest checkpoint whose content is what its name says, and which newer ones are not.

    usable: raises ValueError, with the reason, for a content that is whole but not to be used, like
    another run's.
    """
    skipped = []
    for name in reversed(store.names()):
        try:
            content = store.read(name)
            require_whole(name, content)
            usable(content)
        except (ValueError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            why = f"it cannot be read ({reason})" if reason else " ".join(str(error).split())
            skipped.append((name, why))
        else:
            return Newest(name, content, skipped)
    return Newest(None, b"", skipped)


def require_whole(name: str, content: Part) -> None:
    """Raise ValueError, with the reason, if a content is not the one that its name says."""
    if not len(content):
        raise ValueError("it is empty")
    found = _NAME.fullmatch(name)
    if not found or _digest([content]) != found[2]:
        raise ValueError(
            f"its {len(content):,} bytes do not have the digest in its name: damaged or cut short"
        )


def keep_newest(store: Store, count: int) -> None:
    """Remove all but the newest `count` checkpoints."""
    names = store.names()
    for name in names[: max(0, len(names) - count)]:
        store.remove(name)


def forget_after(store: Store, name: str | None) -> None:
    """Remove what a run that goes on from checkpoint `name` did not lead to: newer ones, and others of its
    version. None: the run begins again, and all are removed.
    """
    kept = -1 if name is None else version_of(name)
    assert kept is not None
    for other in store.names():
        if other != name and (version_of(other) or 0) >= kept:
            store.remove(other)


def _digest(parts: Sequence[Part]) -> str:
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part)
    return sha256.hexdigest()[:16]
