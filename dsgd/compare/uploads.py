"""An experiment's records in S3: finished ones go there, and those that another machine has made come here.

A lease on the experiment's folder there keeps other machines out while this one runs it. The record of a run
under way goes to S3 each minute (`--upload-every`) and with each checkpoint that the run takes on the disk,
from which another machine goes on.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsgd.process.outcomes import echoed
from dsgd.records.s3 import CHECKPOINTS, Destination
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.upload import restore_record

_EACH_S = 1.0  # how often new checkpoints are looked for


class Uploads:
    """Uploads the records of an experiment's folder as they are finished, while others still run.

    A context manager: at its end it waits for the uploads, also of runs that were cut off. What fails is said
    once, and tried again until `finish`, which raises.
    """

    def __init__(self, url: str, folder: Path, every_s: float = 60.0) -> None:
        """Wait for the lease of a process that was killed; raises TakenError if it is alive, and otherwise as
        `Destination.claim` does.

        every_s: between two uploads of a record under way.
        """
        self.url = f"{url.rstrip('/')}/{folder.name}"
        self._folder, self._every_s = folder, every_s
        self._destination = Destination(url)
        self._lease = self._destination.lease(folder.name)
        self._lease.take(wait=True)
        self._thread = ThreadPoolExecutor(1)
        self._has_failed = False
        self._left: dict[Path, Exception] = {}
        """The finished records that are not there yet, and why."""
        self._under_way: dict[Path, list[str]] = {}
        """The checkpoints of each record under way, as last seen."""
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._looking.join()
        for record in self._under_way:  # cut off: their machine may be about to go
            self._thread.submit(self._save, record)
        self._thread.submit(self._try, self._send_log, self._folder, self._folder.name)
        self._thread.shutdown()
        self._lease.release()

    def fetch(self, records: Sequence[Path]) -> None:
        """Download the records that are further on in the bucket than here.

        Raises ValueError for what the user can fix, OSError if S3 or the disk fails.
        """
        there = self._destination.files(self._folder.name)
        of_use = {name.split("/checkpoints/")[0].removesuffix("/summary.json") for name in there}
        for record in records:
            if self._within(record) in of_use:
                restore_record(f"{self.url}/{self._within(record)}", record)

    def begin(self, records: Sequence[Path]) -> None:
        """Upload these records, which are yet to be made, as they grow, until they are added."""
        self._under_way |= {record: [] for record in records}

    def add(self, record: Path) -> None:
        """Have a finished record uploaded, unless it already is."""
        self._under_way.pop(record, None)
        self._thread.submit(self._add, record)

    def finish(self) -> None:
        """Wait for the records, and upload what else is in the folder: tables and the report.

        Raises OSError for what could not be uploaded.
        """
        self._under_way.clear()
        self._thread.submit(self._add_what_is_left).result()
        error = next(iter(self._left.values()), None) or self._try(
            self._destination.add_beside, self._folder, self._folder.name
        )
        if error:
            raise OSError(
                f"{error}; all is in {self._folder}, and the same command uploads what is missing"
            ) from error

    def _look(self) -> None:
        """Have records under way uploaded when they have a new checkpoint, and when it is time."""
        due_s = time.monotonic() + self._every_s
        while not self._ended.wait(_EACH_S):
            is_due = time.monotonic() >= due_s
            for record, before in list(self._under_way.items()):
                if (names := DiskStore(record / CHECKPOINTS).names()) != before or is_due:
                    self._under_way[record] = names
                    self._thread.submit(self._save, record)
            if is_due:
                self._thread.submit(self._try, self._send_log, self._folder, self._folder.name)
                self._thread.submit(self._add_what_is_left)
                due_s = time.monotonic() + self._every_s

    def _save(self, record: Path) -> None:
        if record in self._under_way and (record / "meta.json").exists():  # not added meanwhile, and begun
            self._try(self._destination.save, record, self._name(record))

    def _add(self, record: Path) -> None:
        self._left.pop(record, None)
        if error := self._try(self._destination.add, record, self._name(record)):
            self._left[record] = error

    def _add_what_is_left(self) -> None:
        for record in list(self._left):
            self._add(record)

    def _try(self, upload: Callable[[Path, str], None], folder: Path, name: str) -> Exception | None:
        """Return why something could not be uploaded; the first time, say it."""
        try:
            self._lease.require()
            upload(folder, name)
        except (ValueError, OSError) as error:
            if not self._has_failed:
                said = f"{error}; the experiment goes on, and the upload is repeated"
                print(f"note: {echoed(said)}", file=sys.stderr)
            self._has_failed = True
            return error
        return None

    def _send_log(self, folder: Path, name: str) -> None:
        self._destination.send_log(name, goes_on=not self._ended.is_set())

    def _name(self, record: Path) -> str:
        return f"{self._folder.name}/{self._within(record)}"

    def _within(self, record: Path) -> str:
        return record.relative_to(self._folder).as_posix()
