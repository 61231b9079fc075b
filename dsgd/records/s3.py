"""Records in S3: `--out s3://BUCKET/PREFIX` uploads them, `report s3://BUCKET/PREFIX` fetches them.

Credentials, region and endpoint are looked for where AWS's own tools look. boto3 is imported when S3 is
first used: a run that keeps its record here starts without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from dsgd.process.s3_access import (
    bucket_and_prefix,
    exists,
    explained,
    fetch_object,
    is_refused_condition,
    metadata,
    on_condition,
    s3_client,
)
from dsgd.records.growing_object import GrowingObject
from dsgd.records.lease import Lease, TakenError
from dsgd.records.stores.disk_store import DiskStore
from dsgd.records.stores.s3_store import S3Store
from dsgd.records.stores.store import forget_after, keep_newest, newest_whole
from dsgd.records.workload_copy import CODE, COPY

_FIRST = "config.yaml"  # claims a record's name
_LAST = "summary.json"  # completes it
_OF_UNFINISHED = (_FIRST, "meta.json", "updates.jsonl", "evals.jsonl", "faults.jsonl", COPY)
"""Files of a record that has begun; a list of the bucket may not have them yet."""
CHECKPOINTS = "checkpoints"  # a record's folder of them
_LEASE = "lease"
_KEPT_OF_UNFINISHED = 2
_CLAIMANT = "claimed-by"  # in the metadata of the first
_READ_BY_REPORTS = {".yaml", ".json", ".jsonl", ".parquet"}
_OF_WEIGHTS = {".npy", ".py", ".safetensors"}


class Destination:
    """A bucket and prefix to which records are uploaded, each under its own name."""

    def __init__(self, url: str) -> None:
        """Prepare a client without contacting S3; raises ValueError if AWS's settings cannot be used."""
        self.url = url.rstrip("/")
        self._bucket, self._prefix = bucket_and_prefix(url)
        self._token = uuid.uuid4().hex
        self._growing: dict[str, GrowingObject] = {}
        self._newest: dict[str, str] = {}  # checkpoint that `save` has sent, by record
        with explained(f"--out {self.url}"):
            self._client = s3_client()

    def lease(self, name: str) -> Lease:
        """Return the lease on `name`, not yet taken."""
        return Lease(self._client, self._bucket, self._key(name, _LEASE), f"{self.url}/{name}")

    def checkpoints(self, name: str) -> S3Store:
        """Return the store of the checkpoints of the record `name`."""
        prefix = self._key(name, f"{CHECKPOINTS}/")
        return S3Store(self._client, self._bucket, prefix, f"{self.url}/{name}/{CHECKPOINTS}")

    def claim(self, name: str, config: str, token: str | None = None) -> None:
        """Begin the record `name` there with its config.yaml: from now on no other process can.

        token: identifies the claimant, if not this object alone.
        Raises TakenError if there is one, ValueError for what the user can fix (the bucket, credentials,
        permissions), OSError if S3 fails.
        """
        key, token = self._key(name, _FIRST), token or self._token
        own = {_CLAIMANT: token}
        put = {"Bucket": self._bucket, "Key": key, "Body": config.encode(), "Metadata": own}
        with explained(f"--out {self.url}"):
            try:
                if not exists(self._client, self._bucket, key):  # a storage may ignore the condition
                    on_condition(self._client.put_object, {"IfNoneMatch": "*"}, **put)
                    return
            except self._client.exceptions.ClientError as error:
                if not is_refused_condition(error):
                    raise
            # It may be this very request, sent again because the first answer was lost.
            if metadata(self._client.head_object(Bucket=self._bucket, Key=key)).get(_CLAIMANT) != token:
                raise _taken(f"--run-name {name}", f"{self.url}/{name}")

    def release(self, name: str) -> None:
        """Give back a claimed name that got no record; one that S3 keeps nevertheless stays taken."""
        with suppress(ValueError, OSError), explained(f"--out {self.url}"):
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name, _FIRST))

    def upload(self, folder: Path, name: str) -> None:
        """Upload the files in `folder` as `name`, which is claimed; summary.json last.

        Raises OSError, which says where the record is.
        """
        try:
            self._put(folder, name, folder.rglob("*"), self._token)
        except (ValueError, OSError) as error:
            raise OSError(
                f"{error}; the record is in {folder} and not, or not all, in the bucket: "
                f"aws s3 sync {folder} {self.url}/{name} completes it"
            ) from error

    def add(self, folder: Path, name: str) -> None:
        """Upload a finished record as `name`; what an earlier call of any process left undone is done.

        What is there of an unfinished one is replaced: the caller has the lease. Its checkpoints are removed:
        nobody will go on from them. Raises as `claim` does.
        """
        token = hashlib.sha256((folder / "meta.json").read_bytes()).hexdigest()  # no two runs' are the same
        config = (folder / _FIRST).read_text()
        try:
            self.claim(name, config, token)
        except TakenError:
            if self.has(name, _LAST):
                raise
            self._remove(name)  # of a run under way, or of an upload that was killed
            self.claim(name, config, token)
        if not self.has(name, _LAST):
            self._put(folder, name, folder.rglob("*"), token)
        keep_newest(self.checkpoints(name), 0)

    def add_beside(self, folder: Path, name: str) -> None:
        """Upload `folder`, except its records, under `name`, replacing what an earlier call uploaded.

        Raises as `claim` does.
        """
        records = {path.parent for path in folder.rglob(_FIRST)}
        beside = (path for path in folder.rglob("*") if records.isdisjoint(path.parents))
        self._put(folder, name, beside, self._token)

    def save(self, folder: Path, name: str, *, checkpoint: bool = True) -> None:
        """Upload what a run that goes on has recorded so far as `name`, all that another machine needs to go
        on: whole lines of what grows and, after it, the newest checkpoint on the disk.

        checkpoint: without it, those in the bucket are another's task. The caller has the lease. Raises as
        `claim` does.
        """
        disk, there = DiskStore(folder / CHECKPOINTS), self.checkpoints(name)
        newest = (disk.names() or [""])[-1]
        is_new = checkpoint and newest != self._newest.get(name, "")
        last, content, _ = newest_whole(disk) if is_new else (None, b"", ())  # before what it goes on from
        with explained(f"--out {self.url}"):
            # A run that was cut off, and now goes on, has no ending.
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name, _LAST))
        begun = [folder / _FIRST, folder / "meta.json", folder / COPY, *folder.glob("*.jsonl")]
        begun += [*folder.glob("logs/*.txt"), *folder.glob("tensorboard/*"), *(folder / CODE).rglob("*.py")]
        self._put(folder, name, begun, self._token, goes_on=True)
        if is_new:
            if last:
                there.write(last, [content])
            if last or not newest:
                forget_after(there, last)  # after a rollback the run did not lead there
            keep_newest(there, _KEPT_OF_UNFINISHED)
            self._newest[name] = newest

    def send_log(self, name: str, *, goes_on: bool) -> None:
        """Upload what this process has printed as logs/driver-HOST.log of `name`, if a job of Ray's keeps it.

        goes_on: its last line may still be written. Raises as `claim` does.
        """
        if log := driver_log():
            key = self._key(name, f"logs/driver-{socket.gethostname()}.log")
            with explained(f"--out {self.url}"):
                self._send_growing(log, key, whole_lines=goes_on)

    def files(self, name: str) -> set[str]:
        """Return the files of the record `name`, by their paths in it; raises as `claim` does."""
        with explained(f"--out {self.url}"):
            return {key.removeprefix(self._key(name, "")) for key in self._keys(f"{name}/")}

    def has(self, name: str, file: str) -> bool:
        """Return whether the record `name` has a file; raises as `claim` does."""
        with explained(f"--out {self.url}"):
            return exists(self._client, self._bucket, self._key(name, file))

    def ending(self, name: str) -> str:
        """Return the `stopped_by` of the record `name`; `interrupted` while it has no ending.

        Raises as `claim` does.
        """
        with explained(f"--out {self.url}"):
            try:
                found = self._client.get_object(Bucket=self._bucket, Key=self._key(name, _LAST))
                summary = json.load(found["Body"])
            except self._client.exceptions.NoSuchKey:
                return "interrupted"
        return str(summary["stopped_by"])

    def restore(self, name: str, folder: Path) -> None:
        """Download the record `name`, except its checkpoints, into `folder`.

        Raises as `claim` does.
        """
        with explained(f"--out {self.url}"):
            listed = self._keys(f"{name}/")
            always = [self._key(name, file) for file in _OF_UNFINISHED]
            late = [key for key in always if key not in listed and exists(self._client, self._bucket, key)]
            for key in (*listed, *late):
                file = PurePosixPath(key.removeprefix(self._key(name, "")))
                if file.parts[0] in (CHECKPOINTS, _LEASE) or file.is_absolute() or ".." in file.parts:
                    continue
                path = folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(self._bucket, key, str(path))

    def _put(
        self, folder: Path, name: str, paths: Iterable[Path], token: str, *, goes_on: bool = False
    ) -> None:
        """Upload files of a folder as `name`; goes_on: some of them are still being written."""
        own = folder / CHECKPOINTS  # their own store uploads them
        files = [p for p in paths if p.is_file() and p.suffix != ".partial" and own not in p.parents]
        files = [p for p in files if not p.name.startswith(".")]  # of a lock
        with explained(f"--out {self.url}"):
            for path in sorted(files, key=lambda path: (path.name == _LAST, path)):
                key = self._key(name, path.relative_to(folder).as_posix())
                if path.suffix == ".jsonl":
                    self._send_growing(path, key, whole_lines=goes_on)
                    continue
                extra = {"Metadata": {_CLAIMANT: token}} if path.name == _FIRST else {}
                self._client.upload_file(str(path), self._bucket, key, ExtraArgs=extra)

    def _send_growing(self, path: Path, key: str, *, whole_lines: bool) -> None:
        if key not in self._growing:
            self._growing[key] = GrowingObject(self._client, self._bucket, key)
        self._growing[key].send(path, whole_lines=whole_lines)

    def _keys(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}"
        )
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def _remove(self, name: str) -> None:
        """Remove a record that has no ending, except its checkpoints."""
        with explained(f"--out {self.url}"):
            for key in self._keys(f"{name}/"):
                if not key.startswith(self._key(name, f"{CHECKPOINTS}/")):
                    self._client.delete_object(Bucket=self._bucket, Key=key)
                    self._growing.pop(key, None)

    def _key(self, name: str, file: str) -> str:
        return f"{self._prefix}{name}/{file}"


def driver_log() -> Path | None:
    """Return the file that Ray has what a job's driver prints written to; None: this process is none."""
    try:
        file = Path(os.readlink("/proc/self/fd/1"))
    except OSError:
        return None
    return file if re.fullmatch(r"job-driver-.*\.log", file.name) and file.is_file() else None


def fetch(url: str, option: str = "report", *, weights: bool = False) -> Path:
    """Download what reports are made of from a URL to runs/from-s3, and return the folder there.

    option: what asked for it, as messages name it. weights: fetch those too, with the workload's file and
    the checkpoints of a run that has not ended.
    What an earlier call has fetched is not fetched again, unless it was written since.
    Raises ValueError for what the user can fix (an empty prefix too), OSError if S3 or the disk fails.
    """
    try:
        bucket, prefix = bucket_and_prefix(url)
    except ValueError as error:
        raise ValueError(f"{option} {url}: {error}") from None
    folder, found = Path("runs", "from-s3", bucket, prefix), False
    wanted = _READ_BY_REPORTS | (_OF_WEIGHTS if weights else set())
    with explained(f"{option} {url}"):
        client = s3_client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                name = PurePosixPath(entry["Key"].removeprefix(prefix))
                if name.suffix not in wanted or name.name == "trace.json":
                    continue
                if name.is_absolute() or ".." in name.parts:  # would be written somewhere else
                    continue
                found = True
                fetch_object(client, bucket, entry, folder / name)
    if not found:
        raise ValueError(f"{option} {url}: holds no records; give the URL of --out, or of a run in it")
    return folder


def _taken(option: str, place: str) -> TakenError:
    return TakenError(f"{option}: {place} is taken and is never overwritten; choose another name")
