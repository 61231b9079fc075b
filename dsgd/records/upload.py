"""The record of one run on its way to S3, and back to a machine on which the run goes on.

The name is claimed before the run, and a lease keeps other processes out of it while the run goes on. What
the run has recorded follows each minute (`--upload-every`) and before each checkpoint in S3, so that another
machine can go on; the rest at the end. How a run is resumed, `auto` included:

    upload = Upload(cfg, resume=True)     # waits for the lease of a process that was killed
    restored = restore_record(f"{cfg.output.out}/{name}", cfg.output.folder / name)
    ...                                   # None: nothing is there, and the run begins
    tiers["s3"] = upload.checkpoints      # a Store; each write sends the record first
    upload.finish()                       # however the run ends

After `restore_record` the folder is what it would be if the run had been killed on this machine: its record,
with streams that may go on after the checkpoint, and the newest whole checkpoint in its folder `checkpoints`.
Flush the streams before `upload.checkpoints.write`: they must reach as far as the checkpoint says.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dsgd.config import TrainConfig
from dsgd.core.option_rules import options
from dsgd.process.outcomes import echoed, is_result
from dsgd.records.lease import TakenError
from dsgd.records.reader import read_brief_summary
from dsgd.records.s3 import CHECKPOINTS, Destination
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.store import Part, Store, newest_whole, version_of
from dsgd.records.writer import config_text, default_name, free_path


class Upload:
    """Claims a name in the bucket that `--out` names, and fills it when the run is over.

    resume: goes on with the record of cfg's run name, if there is one.
    cfg: with the name as its run_name. Raises ValueError, naming the option, for a bucket that cannot be
    written to, and for a name that is taken or, with `resume`, written by another process.
    """

    def __init__(self, cfg: TrainConfig, *, resume: bool = False) -> None:
        self._destination = Destination(cfg.output.out)
        self._is_new = True
        first = cfg.output.run_name if resume else free_path(cfg.output, default_name(cfg)).name
        assert first, "--resume needs a run name"
        for n in itertools.count(1):
            name = first if n == 1 else f"{first}-{n}"
            self.cfg = replace(cfg, output=replace(cfg.output, run_name=name))
            try:
                self._destination.claim(self._record_name, config_text(options(self.cfg)))
                break
            except TakenError:
                if resume:
                    self._is_new = False
                    break
                if cfg.output.run_name:
                    raise
        self._lease = self._destination.lease(name)
        self._lease.take(wait=resume)
        self._own_tier = "s3" in cfg.checkpoint.checkpoint_tiers  # which keeps as many as it was asked to
        self._sending, self._ended = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep_sending, daemon=True)
        self._thread.start()

    @property
    def checkpoints(self) -> Store:
        """The run's checkpoints in the bucket; with each, what the run has recorded goes there too."""
        return _RecordedStore(self)

    def write(self, checkpoint: str, parts: Sequence[Part], to: Store) -> None:
        """Upload what the run has recorded so far, and then a checkpoint that goes on from there.

        Raises LostError if another process now writes there, OSError if S3 fails.
        """
        with self._sending:
            self._save(checkpoint=False)
            to.write(checkpoint, parts)

    def _save(self, *, checkpoint: bool) -> None:
        self._lease.require()
        self._destination.save(self._record, self._record_name, checkpoint=checkpoint)

    def _keep_sending(self) -> None:
        """Upload what the run has recorded, again and again; what fails is tried again the next time."""
        name, has_failed = str(self.cfg.output.run_name), False
        while not self._ended.wait(min(self.cfg.output.upload_every, threading.TIMEOUT_MAX)):
            if not (self._record / "meta.json").exists():
                continue
            try:
                with self._sending:
                    self._save(checkpoint=not self._own_tier)
                    self._destination.send_log(name, goes_on=True)
            except (ValueError, OSError) as error:
                if not has_failed:
                    said = f"{error}; the run goes on, and the upload is repeated"
                    print(f"note: {echoed(said)}", file=sys.stderr)
                has_failed = True

    def finish(self) -> str | None:
        """Upload the run's record and return its URL; if there is none, give the name back.

        Raises OSError for an upload that fails.
        """
        name = str(self.cfg.output.run_name)
        folder = self.cfg.output.folder / name
        self._ended.set()
        self._thread.join()
        try:
            if not folder.exists():
                if self._is_new:
                    self._destination.release(self._record_name)
                return None
            self._lease.require()
            self._save_the_last_checkpoint()
            self._destination.send_log(name, goes_on=False)
            self._destination.upload(folder, name)
        finally:
            self._lease.release()
        return f"{self._destination.url}/{name}"

    def _save_the_last_checkpoint(self) -> None:
        """Upload the newest checkpoint of a run that was cut off: its machine may be about to go."""
        last = newest_whole(DiskStore(self._record / CHECKPOINTS))
        if last.name and not _is_over(self._record):
            self._destination.checkpoints(self._record_name).write(last.name, [last.content])

    @property
    def _record(self) -> Path:
        return self.cfg.output.folder / self._record_name

    @property
    def _record_name(self) -> str:
        """The name, in the bucket, of the record that the run begins with."""
        name = str(self.cfg.output.run_name)
        return f"{name}/ray" if self.cfg.engine == "both" else name


class _RecordedStore:
    """The checkpoints of a record in S3: its streams reach at least as far as its newest checkpoint."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self._store = upload._destination.checkpoints(upload._record_name)
        self.names, self.read, self.remove = self._store.names, self._store.read, self._store.remove

    def __str__(self) -> str:
        return str(self._store)

    def write(self, name: str, parts: Sequence[Part]) -> None:
        self._upload.write(name, parts, self._store)


class Restored(NamedTuple):
    """What `restore_record` found."""

    checkpoint: str | None
    """The newest whole one; None: there is none, and the run begins again."""
    is_fetched: bool
    """Whether the folder now holds what was in the bucket; False: it held as much already."""
    skipped: list[tuple[str, str]]
    """Newer checkpoints in the bucket that cannot be used, each with the reason."""


def restore_record(url: str, into: Path) -> Restored | None:
    """Bring the record at `url`, s3://BUCKET/PREFIX/NAME, to a folder, with its newest whole checkpoint.

    A folder that is there is replaced, whole, if the bucket has a newer checkpoint or a result that it lacks,
    and left alone otherwise. None: neither the bucket nor the folder has a record. Raises ValueError for what
    the user can fix, OSError if S3 or the disk fails; the folder is then as it was.
    """
    place, _, name = url.rstrip("/").rpartition("/")
    destination = Destination(place)
    is_here = (into / "meta.json").exists()
    here = newest_whole(DiskStore(into / CHECKPOINTS)).name
    if not destination.has(name, "meta.json"):
        return Restored(here, False, []) if is_here else None
    newest, content, skipped = newest_whole(destination.checkpoints(name))
    is_over = is_result(destination.ending(name)) and not _is_over(into)
    if is_here and not is_over and _version(newest) <= _version(here):
        return Restored(here, False, skipped)
    fresh = into.with_name(f".{into.name}.restored")
    shutil.rmtree(fresh, ignore_errors=True)
    destination.restore(name, fresh)
    if newest:
        DiskStore(fresh / CHECKPOINTS).write(newest, [content])
    if into.exists():
        replaced = into.with_name(f".{into.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        into.rename(replaced)
        fresh.rename(into)
        shutil.rmtree(replaced)
    else:
        fresh.rename(into)
    return Restored(newest, True, skipped)


def _is_over(record: Path) -> bool:
    return (record / "summary.json").exists() and is_result(read_brief_summary(record).stopped_by)


def _version(name: str | None) -> int:
    version = version_of(name or "")
    return -1 if version is None else version
