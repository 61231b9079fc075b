"""What a folder of runs holds, at a glance: a few kilobytes of each record are read, however large it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from dsgd.process.outcomes import is_result
from dsgd.records.reader import is_record, read_brief_summary, read_options, read_yaml
from dsgd.records.schema import BriefSummary, RecordError, decode
from dsgd.records.variants import NOT_COMPARED, printable
from dsgd.strategies import defaults

_HEAD_BYTES = 1 << 16  # of summary.json: what comes before the numbers of each worker
_LARGEST = 1 << 22  # bytes of a config.yaml or meta.json that is read


class _Begun(Struct, frozen=True, kw_only=True):
    """What a listing needs of meta.json."""

    started_epoch_s: float
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run as a list shows it."""

    path: Path
    config: Mapping[str, Any]
    """From option to value, as config.yaml has it."""
    started_epoch_s: float
    device: str
    result: BriefSummary | None
    """None while the run goes on, and if it was killed."""

    @property
    def mode(self) -> str:
        return str(self.config["mode"])

    @property
    def engine(self) -> str:
        return str(self.config["engine"])

    @property
    def num_workers(self) -> int:
        return int(self.config["num_workers"])

    @property
    def is_result(self) -> bool:
        """Whether it ended by itself: a crash or ctrl-C says nothing about its options."""
        return self.result is not None and is_result(self.result.stopped_by)

    def given(self, without: Sequence[str] = ()) -> dict[str, Any]:
        """Return the options that differ from the mode's defaults, as far as they define a variant."""
        known = defaults(self.config)
        hidden = {*NOT_COMPARED, "mode", "engine", "num_workers", "strategy_file", *without}
        return {
            name: value
            for name, value in self.config.items()
            if name not in hidden and (name not in known or known[name] != value)
        }


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a folder holds."""

    kind: str
    """What the folder is, in words, if it is an experiment's or a run's on both engines; else empty."""
    runs: Sequence[ListedRun]
    """The newest first."""
    unreadable: Sequence[tuple[str, str]]
    """Records that cannot be read, by name, with the reason."""
    folders: Sequence[tuple[Path, str, int]]
    """Folders of runs in it: path, kind, number of runs."""


def list_folder(folder: Path) -> Listing:
    """Look into a folder of runs, or at one run; raises RecordError, in one line, if it is not there."""
    if not folder.is_dir():
        raise RecordError(f"{folder}: there is no such folder")
    runs, unreadable, folders = [], [], []
    for path in [folder] if is_record(folder) else _folders(folder):
        if not is_record(path):
            kind, count = _kind(path), _number_of_runs(path)
            if kind or count:
                folders.append((path, kind, count))
            continue
        try:
            runs.append(_listed(path))
        except RecordError as error:
            unreadable.append((path.name, str(error).removeprefix(str(path)).lstrip(":/ ")))
    runs.sort(key=lambda run: (-run.started_epoch_s, run.path.name))
    return Listing(kind=_kind(folder), runs=runs, unreadable=unreadable, folders=folders)


def _folders(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    return (folder / name for name in names)


def _kind(folder: Path) -> str:
    if (folder / "comparison.json").is_file():
        return "a run on both engines"
    file = folder / "experiment.yaml"
    if not file.is_file():
        return ""
    try:
        title = str(read_yaml(_require_small(file)).get("title") or folder.name)
    except RecordError:
        return "an experiment"
    return f"experiment “{printable(title)}”"


def _number_of_runs(folder: Path) -> int:
    return sum(is_record(path) for path in _folders(folder))


def _listed(path: Path) -> ListedRun:
    _require_small(path / "config.yaml")
    begun = decode(_require_small(path / "meta.json").read_bytes(), _Begun, path / "meta.json")
    config, has_ended = read_options(path), (path / "summary.json").exists()
    return ListedRun(
        path=path,
        config=config,
        started_epoch_s=begun.started_epoch_s,
        device=begun.device,
        result=read_brief_summary(path, _HEAD_BYTES) if has_ended else None,
    )


def _require_small(file: Path) -> Path:
    """Return the file; raises RecordError if it is not there, no file, or too large for what it should be."""
    try:
        found = file.stat()
    except OSError as error:
        raise RecordError(f"{file}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(found.st_mode):  # a folder, or a pipe that nobody writes
        raise RecordError(f"{file}: is not a file")
    if found.st_size > _LARGEST:
        raise RecordError(f"{file}: is larger than {_LARGEST >> 20} MB, so not read")
    return file
