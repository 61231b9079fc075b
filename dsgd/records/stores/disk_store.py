"""Checkpoints in a folder: one file each, there whole or not at all, whenever the writer is killed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dsgd.process.files import Writing, sync, synced, whole_file
from dsgd.records.stores.store import Part, in_order, require_whole


class DiskStore:
    """The checkpoints in a folder, which is made with the first.

    A file is written aside, as NAME.partial, and renamed once it is on the disk; a .partial is the rest of a
    write that was killed, and goes with the next one. Raises WriteError where it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def names(self) -> list[str]:
        try:
            return in_order(os.listdir(self.folder))
        except FileNotFoundError:
            return []

    def write(self, name: str, parts: Sequence[Part]) -> None:
        with Writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for rest in self.folder.glob("*.partial"):
                rest.unlink()
        if self._is_whole(name):
            return
        with whole_file(self.folder / name) as file:
            for part in parts:
                file.write(part)  # large ones are not copied
            synced(file)
        with Writing(self.folder):
            _sync(self.folder)  # else the new name may not outlive a power cut

    def read(self, name: str) -> bytes:
        # Not mapped: what was checked must not change under the reader.
        return (self.folder / name).read_bytes()

    def remove(self, name: str) -> None:
        # A folder of such a name is no checkpoint: somebody else's, it stays.
        with Writing(self.folder / name), suppress(IsADirectoryError):
            (self.folder / name).unlink(missing_ok=True)

    def _is_whole(self, name: str) -> bool:
        """Whether a file is what its name says; one that is damaged may be written again."""
        try:
            require_whole(name, self.read(name))
        except (ValueError, FileNotFoundError):
            return False
        return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
