"""Records in S3: `--out s3://BUCKET/PREFIX` uploads them, `--report s3://BUCKET/PREFIX` fetches them.

Credentials, region and endpoint are looked for where AWS's own tools look. boto3 is imported when S3 is
first used: a run that keeps its record here starts without it.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from dsgd.checkpoints.disk_store import DiskStore
from dsgd.checkpoints.s3_store import S3Store
from dsgd.checkpoints.store import keep_newest, newest_whole
from dsgd.records.lease import Lease
from dsgd.records.s3_access import TakenError, bucket_and_prefix, explained, is_refused_condition, s3_client

_FIRST = "config.yaml"  # claims a record's name
_LAST = "summary.json"  # completes it
CHECKPOINTS = "checkpoints"  # a record's folder of them
_LEASE = "lease"
_KEPT_OF_UNFINISHED = 2
_CLAIMANT = "claimed-by"  # in the metadata of the first
_READ_BY_REPORTS = {".yaml", ".json", ".jsonl", ".parquet"}
_OF_WEIGHTS = {".npy", ".py", ".safetensors"}


def is_s3(place: str) -> bool:
    """Whether a place for records is a URL of S3, not a folder."""
    return place.startswith("s3://")


def local_folder(url: str) -> Path:
    """Return where records that go to a URL are written first, and stay: under runs/s3."""
    bucket, prefix = bucket_and_prefix(url)
    return Path("runs", "s3", bucket, prefix)


class Destination:
    """A bucket and prefix to which records are uploaded, each under its own name."""

    def __init__(self, url: str) -> None:
        """Prepare a client without contacting S3; raises ValueError if AWS's settings cannot be used."""
        self.url = url.rstrip("/")
        self._bucket, self._prefix = bucket_and_prefix(url)
        self._token = uuid.uuid4().hex
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
        with explained(f"--out {self.url}"):
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=config.encode(),
                    IfNoneMatch="*",
                    Metadata={_CLAIMANT: token},
                )
            except self._client.exceptions.ClientError as error:
                if not is_refused_condition(error):
                    raise
                # It may be this very request, sent again because the first answer was lost.
                found = self._client.head_object(Bucket=self._bucket, Key=key)
                if found["Metadata"].get(_CLAIMANT) != token:
                    raise _taken(f"--run-name {name}", f"{self.url}/{name}") from None

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
            if self._is_there(f"{name}/{_LAST}"):
                raise
            self._remove(name)  # of a run under way, or of an upload that was killed
            self.claim(name, config, token)
        if not self._is_there(f"{name}/{_LAST}"):
            self._put(folder, name, folder.rglob("*"), token)
        keep_newest(self.checkpoints(name), 0)

    def add_unfinished(self, folder: Path, name: str) -> None:
        """Upload a record under way as `name`, with its newest checkpoint, if it has one.

        For the records of an experiment, whose lease this process holds. Raises as `claim` does.
        """
        last, content, _ = newest_whole(DiskStore(folder / CHECKPOINTS))
        if last:
            begun = [folder / _FIRST, folder / "meta.json", *folder.glob("*.jsonl")]
            self._put(folder, name, begun, self._token)
            there = self.checkpoints(name)
            there.write(last, [content])
            keep_newest(there, _KEPT_OF_UNFINISHED)

    def add_beside(self, folder: Path, name: str) -> None:
        """Upload `folder`, except its records, under `name`, replacing what an earlier call uploaded.

        Raises as `claim` does.
        """
        records = {path.parent for path in folder.rglob(_FIRST)}
        beside = (path for path in folder.rglob("*") if records.isdisjoint(path.parents))
        self._put(folder, name, beside, self._token)

    def save(self, folder: Path, name: str) -> None:
        """Upload what a run that goes on has recorded so far as `name`: what another machine needs to go on
        from a checkpoint. Streams may be cut in their last line.

        Raises as `claim` does.
        """
        with explained(f"--out {self.url}"):
            # A run that was cut off, and now goes on, has no ending.
            self._client.delete_object(Bucket=self._bucket, Key=self._key(name, _LAST))
        self._put(folder, name, [folder / "meta.json", *folder.glob("*.jsonl")], self._token)

    def files(self, name: str) -> set[str]:
        """Return the files of the record `name`, by their paths in it; raises as `claim` does."""
        with explained(f"--out {self.url}"):
            return {key.removeprefix(self._key(name, "")) for key in self._keys(f"{name}/")}

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
            for key in self._keys(f"{name}/"):
                file = PurePosixPath(key.removeprefix(self._key(name, "")))
                if file.parts[0] in (CHECKPOINTS, _LEASE) or file.is_absolute() or ".." in file.parts:
                    continue
                path = folder / file
                path.parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(self._bucket, key, str(path))

    def _put(self, folder: Path, name: str, paths: Iterable[Path], token: str) -> None:
        own = folder / CHECKPOINTS  # their own store uploads them
        files = [p for p in paths if p.is_file() and p.suffix != ".partial" and own not in p.parents]
        with explained(f"--out {self.url}"):
            for path in sorted(files, key=lambda path: (path.name == _LAST, path)):
                key = self._key(name, path.relative_to(folder).as_posix())
                extra = {"Metadata": {_CLAIMANT: token}} if path.name == _FIRST else {}
                self._client.upload_file(str(path), self._bucket, key, ExtraArgs=extra)

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

    def _is_there(self, prefix: str) -> bool:
        with explained(f"--out {self.url}"):
            found = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}", MaxKeys=1
            )
        return bool(found.get("KeyCount"))

    def _key(self, name: str, file: str) -> str:
        return f"{self._prefix}{name}/{file}"


def fetch(url: str, option: str = "--report", *, weights: bool = False) -> Path:
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
                path = folder / name
                if path.exists() and (
                    path.stat().st_size == entry["Size"]
                    and path.stat().st_mtime >= entry["LastModified"].timestamp()
                ):
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, entry["Key"], str(path))
    if not found:
        raise ValueError(f"{option} {url}: holds no records; give the URL of --out, or of a run in it")
    return folder


def _taken(option: str, place: str) -> TakenError:
    return TakenError(f"{option}: {place} is taken and is never overwritten; choose another name")
