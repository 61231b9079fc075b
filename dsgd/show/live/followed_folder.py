"""Follows the records of a folder: those that are there, and those that are begun meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dsgd.records.reader import read_yaml
from dsgd.show.live.followed_run import FollowedRun
from dsgd.show.live.record_lines import TakenBack

MOST_RUNS = 200
"""Runs of a folder that are shown: the newest."""

NOT_A_RECORD = (AttributeError, LookupError, TypeError, ValueError)
"""What reading another version's files, or damaged ones, raises."""

_OWN_FOLDERS = ("figures", "tuning")  # of an experiment: not its runs


class FollowedFolder:
    """A record, or a folder of records, that need not be there yet."""

    def __init__(self, folder: Path, most_runs: int = MOST_RUNS) -> None:
        self._folder, self._most_runs = folder, most_runs
        self._followed: dict[tuple[str, int], FollowedRun] = {}
        self.title, self.planned = folder.absolute().name, 0
        """The name of an experiment, and how many runs it has; 0 if that is not known."""
        self.older = 0
        """How many records are left out because there are `most_runs` newer ones."""
        self._unreadable: set[tuple[str, int]] = set()
        self._failed: set[tuple[str, int]] = set()  # to be read this time

    def read(self) -> Iterator[bool]:
        """Look for new records and read on in each; yield whether there is more to be read at once.

        It yields after each record: in between the caller may do other things.
        """
        if not self.planned:
            self._read_experiment()
        found = []
        for path in self._records():
            try:
                status = (path / "config.yaml").stat()
            except OSError:  # not accessible
                continue
            name = path.name if path == self._folder else path.relative_to(self._folder).as_posix()
            found.append((status.st_mtime, name, status.st_ino, path))
        self.older = max(0, len(found) - self._most_runs)
        newest = {(name, inode): path for _, name, inode, path in sorted(found)[-self._most_runs :]}
        self._followed = {
            key: self._followed.get(key) or FollowedRun(path, key[0]) for key, path in newest.items()
        }
        for key, run in reversed(self._followed.items()):  # the newest first: those that run
            try:
                yield key not in self._unreadable and self._read(key, run)
                self._failed.discard(key)
            except NOT_A_RECORD:
                self._unreadable.add(key)
            except OSError:  # removed meanwhile, or not readable now
                self._failed.add(key)

    def _read(self, key: tuple[str, int], run: FollowedRun) -> bool:
        try:
            return run.read()
        except TakenBack:
            again = self._followed[key] = FollowedRun(run.path, run.name, run.revision)
            return again.read()

    @property
    def runs(self) -> dict[tuple[str, int], FollowedRun]:
        """The readable runs by name and inode (a record may be removed and made again), newest last."""
        return {
            key: run
            for key, run in self._followed.items()
            if run.revision and key not in self._unreadable and key not in self._failed
        }

    @property
    def unreadable(self) -> int:
        """How many of the newest records cannot be read."""
        return sum(key in self._unreadable or key in self._failed for key in self._followed)

    def _records(self) -> list[Path]:
        """Return the folder, if it is a record, or those in it and in its folders: its experiments."""
        if _is_record(self._folder):
            return [self._folder]
        inside = _folders(self._folder)
        deeper = [path for path in inside if not _is_record(path) and path.name not in _OWN_FOLDERS]
        return [path for path in [*inside, *(p for d in deeper for p in _folders(d))] if _is_record(path)]

    def _read_experiment(self) -> None:
        try:
            experiment = read_yaml(self._folder / "experiment.yaml")
            self.planned = len(experiment["variants"]) * len(experiment["seeds"])
            self.title = experiment["title"]
        except (OSError, *NOT_A_RECORD):
            return


def _is_record(path: Path) -> bool:
    try:
        return (path / "config.yaml").exists()
    except OSError:  # a loop of links, or not accessible
        return False


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder; none if it is not there yet, or not readable."""
    try:
        # By os.path, for which what cannot be looked at is no folder.
        return [path for path in folder.iterdir() if os.path.isdir(path)]
    except OSError:
        return []
