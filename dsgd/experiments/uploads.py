"""An experiment's records in S3: finished ones go there, and those that another machine has made come here.

A lease on the experiment's folder there keeps other machines out while this one runs it. Of a run that takes
checkpoints on the disk, the newest goes to S3 with the record so far: another machine goes on from there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsgd.checkpoints.disk_store import DiskStore
from dsgd.records.s3 import CHECKPOINTS, Destination
from dsgd.records.upload import restore_record

_EACH_S = 1.0  # how often new checkpoints are looked for


class Uploads:
    """Uploads the records of an experiment's folder as they are finished, while others still run.

    A context manager: it waits for the uploads at its end. After a failure it tries no more; `finish` raises.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """Wait for the lease of a process that was killed; raises TakenError if it is alive, and otherwise as
        `Destination.claim` does.
        """
        self.url = f"{url.rstrip('/')}/{folder.name}"
        self._folder = folder
        self._destination = Destination(url)
        self._lease = self._destination.lease(folder.name)
        self._lease.take(wait=True)
        self._thread = ThreadPoolExecutor(1)
        self._error: Exception | None = None
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
        """Upload the checkpoints of these records, which are yet to be made, until they are added."""
        self._under_way |= {record: [] for record in records}

    def add(self, record: Path) -> None:
        """Have a finished record uploaded, unless it already is."""
        self._under_way.pop(record, None)
        self._submit(self._destination.add, record)

    def finish(self) -> None:
        """Wait for the records, and upload what else is in the folder: tables and the report.

        Raises OSError for what could not be uploaded.
        """
        self._under_way.clear()
        last = self._thread.submit(self._try, self._destination.add_beside, self._folder, self._folder.name)
        last.result()
        if self._error:
            raise OSError(
                f"{self._error}; all is in {self._folder}, and the same command uploads what is missing"
            ) from self._error

    def _look(self) -> None:
        """Have the new checkpoints of the records under way uploaded."""
        while not self._ended.wait(_EACH_S):
            for record, before in list(self._under_way.items()):
                if (names := DiskStore(record / CHECKPOINTS).names()) != before:
                    self._under_way[record] = names
                    self._submit(self._add_unfinished, record)

    def _add_unfinished(self, record: Path, name: str) -> None:
        if record in self._under_way:  # else it has been added meanwhile
            self._destination.add_unfinished(record, name)

    def _submit(self, upload: Callable[[Path, str], None], record: Path) -> None:
        name = f"{self._folder.name}/{self._within(record)}"
        self._thread.submit(self._try, upload, record, name)

    def _try(self, upload: Callable[[Path, str], None], folder: Path, name: str) -> None:
        if not self._error:
            try:
                self._lease.require()
                upload(folder, name)
            except (ValueError, OSError) as error:
                self._error = error

    def _within(self, record: Path) -> str:
        return record.relative_to(self._folder).as_posix()
