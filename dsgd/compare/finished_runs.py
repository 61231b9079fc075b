"""What an experiment already has: its folder, locked while it is written, and the runs in it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from dsgd.compare.experiment import PlannedRun
from dsgd.compare.experiment_file import NOT_HERE
from dsgd.core.option_rules import option_fields, options
from dsgd.process.bounded_yaml import load_yaml
from dsgd.process.locks import FolderLock, HeldError
from dsgd.process.outcomes import UsageError, is_result
from dsgd.records.reader import read_brief_summary, read_options
from dsgd.records.s3 import CHECKPOINTS
from dsgd.records.schema import RecordError
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.workload_copy import CARRIED

_FILES = (
    "config.yaml", "meta.json", "updates.jsonl", "evals.jsonl", "faults.jsonl", "weights.npy", CARRIED,
    "trace.json", "tensorboard", "checkpoints", "workload.py",
)  # fmt: skip


@contextmanager
def locked(folder: Path, patience_s: float = 3.0) -> Iterator[int]:
    """Make the experiment's folder and keep other processes out of it; yield the lock's file descriptor.

    The lock ends with the last process that has the descriptor, however that ends; those of an experiment
    that was killed have `patience_s` to end. Raises UsageError where the folder cannot be made or another
    process has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock_of(folder, patience_s)
    except HeldError as error:
        raise UsageError(
            f"{folder}: another process is running this experiment; wait for it, or choose another "
            f"--out{error.remedy}"
        ) from None
    except OSError as error:
        raise UsageError(
            f"--out {folder.parent}: {folder} cannot be made or read ({error.strerror}); "
            "choose another folder"
        ) from None
    try:
        yield lock.descriptor
    finally:
        lock.close()
        with suppress(OSError):  # it stays unless it is empty: nothing came of it
            folder.rmdir()


def _lock_of(folder: Path, patience_s: float) -> FolderLock:
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return FolderLock(folder)
        except HeldError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)


def is_kept(run: PlannedRun) -> bool:
    """Whether the run is there and need not be run again: its record is finished, and neither failed nor
    interrupted.

    Raises UsageError if something else is in its place, which would be overwritten, and RecordError for a
    record that is damaged.
    """
    path = run.path
    if not os.path.lexists(path):
        return False
    remedy = f"choose another --out, or delete {path.parent}"
    files = {file.name for file in path.iterdir()} if path.is_dir() and not path.is_symlink() else {""}
    files = {file for file in files if not file.startswith(".")}  # of a lock
    if "summary.json" not in files and not all(f.removesuffix(".partial") in _FILES for f in files):
        raise UsageError(f"{path}: is not the record of a run; move it away, or choose another --out")
    if "meta.json" not in files:  # killed before it began
        return False
    was = read_options(path)
    for option, (wanted, default) in _wanted(run).items():
        had = was.get(option, default)
        if had != wanted:
            raise UsageError(
                f"{path}: was run with {option} {had}, and this asks for {option} {wanted}; {remedy}"
            )
    return "summary.json" in files and is_result(read_brief_summary(path).stopped_by)


def kept_and_damaged(runs: Iterable[PlannedRun]) -> tuple[set[Path], dict[PlannedRun, str]]:
    """Return which runs need not be run again, and which cannot be since their records are damaged, and why.

    Raises UsageError as `is_kept` does.
    """
    kept, damaged = set[Path](), dict[PlannedRun, str]()
    for run in runs:
        try:
            kept |= {run.path} if is_kept(run) else set()
        except RecordError as error:
            damaged[run] = f"{error}; put it back as it was, or delete {run.path}"
    return kept, damaged


def goes_on(run: PlannedRun) -> bool:
    """Whether a run that `is_kept` found unfinished has a checkpoint, from which it goes on."""
    return bool(DiskStore(run.path / CHECKPOINTS).names())


def clear(run: PlannedRun) -> None:
    """Remove what `is_kept` found not worth keeping; safe to kill at any point."""
    if not run.path.exists() or goes_on(run):
        return
    removed = run.path.with_name(f".{run.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    run.path.rename(removed)
    shutil.rmtree(removed)


def _wanted(run: PlannedRun) -> dict[str, tuple[Any, Any]]:
    """Return the run's options and their defaults, which stand for what an older record does not have."""
    fields = option_fields(type(run.cfg))
    wanted = load_yaml(yaml.safe_dump(options(run.cfg)))
    return {
        name: (value, fields[name].default)
        for name, value in wanted.items()
        if name == "seed" or name not in NOT_HERE
    }
