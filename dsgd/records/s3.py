"""Records in S3: `--out s3://BUCKET/PREFIX` uploads them, `--report s3://BUCKET/PREFIX` fetches them.

Credentials, region and endpoint are looked for where AWS's own tools look. boto3 is imported when S3 is
first used: a run that keeps its record here starts without it.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_ATTEMPTS = 5  # with growing pauses; AWS_MAX_ATTEMPTS overrides it
_CONNECT_S, _READ_S = 5, 30
_FIRST = "config.yaml"  # claims a record's name
_LAST = "summary.json"  # completes it
_CLAIMANT = "claimed-by"  # in the metadata of the first
_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")  # what S3 calls it
_READ_BY_REPORTS = {".yaml", ".json", ".jsonl", ".parquet"}


class TakenError(ValueError):
    """There is a record of that name already."""


def is_s3(place: str) -> bool:
    """Whether a place for records is a URL of S3, not a folder."""
    return place.startswith("s3://")


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Return the parts of s3://BUCKET/PREFIX; the prefix is empty or ends with a slash.

    Raises ValueError, without the option's name, if the URL has other parts.
    """
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/\w[\w.+=-]*)*)/?", url)
    if not match:
        raise ValueError(
            "must be s3://BUCKET/PREFIX, the bucket of 3 to 63 small letters, digits, dots and hyphens, the "
            "prefix of names like runs/may"
        )
    bucket, prefix = match.groups()
    return bucket, f"{prefix[1:]}/" if prefix else ""


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
        with _explained(f"--out {self.url}"):
            self._client = _client()

    def check(self, name: str, *, ours: bool) -> None:
        """See that the bucket is there, and that nothing is under `name` unless it is `ours`.

        Raises as `claim` does.
        """
        if self._is_there(f"{name}/") and not ours:
            raise _taken(f"--out {self.url}", f"{self.url}/{name}")

    def claim(self, name: str, config: str, token: str | None = None) -> None:
        """Begin the record `name` there with its config.yaml: from now on no other process can.

        token: identifies the claimant, if not this object alone.
        Raises TakenError if there is one, ValueError for what the user can fix (the bucket, credentials,
        permissions), OSError if S3 fails.
        """
        key, token = self._key(name, _FIRST), token or self._token
        with _explained(f"--out {self.url}"):
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=config.encode(),
                    IfNoneMatch="*",
                    Metadata={_CLAIMANT: token},
                )
            except self._client.exceptions.ClientError as error:
                if error.response["Error"]["Code"] not in _TAKEN:
                    raise
                # It may be this very request, sent again because the first answer was lost.
                found = self._client.head_object(Bucket=self._bucket, Key=key)
                if found["Metadata"].get(_CLAIMANT) != token:
                    raise _taken(f"--run-name {name}", f"{self.url}/{name}") from None

    def release(self, name: str) -> None:
        """Give back a claimed name that got no record; one that S3 keeps nevertheless stays taken."""
        with suppress(ValueError, OSError), _explained(f"--out {self.url}"):
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

        Raises as `claim` does.
        """
        token = hashlib.sha256((folder / "meta.json").read_bytes()).hexdigest()  # no two runs' are the same
        self.claim(name, (folder / _FIRST).read_text(), token)
        if not self._is_there(f"{name}/{_LAST}"):
            self._put(folder, name, folder.rglob("*"), token)

    def add_beside(self, folder: Path, name: str) -> None:
        """Upload `folder`, except its records, under `name`, replacing what an earlier call uploaded.

        Raises as `claim` does.
        """
        records = {path.parent for path in folder.rglob(_FIRST)}
        beside = (path for path in folder.rglob("*") if records.isdisjoint(path.parents))
        self._put(folder, name, beside, self._token)

    def _put(self, folder: Path, name: str, paths: Iterable[Path], token: str) -> None:
        files = [path for path in paths if path.is_file() and path.suffix != ".partial"]
        with _explained(f"--out {self.url}"):
            for path in sorted(files, key=lambda path: (path.name == _LAST, path)):
                key = self._key(name, path.relative_to(folder).as_posix())
                extra = {"Metadata": {_CLAIMANT: token}} if path.name == _FIRST else {}
                self._client.upload_file(str(path), self._bucket, key, ExtraArgs=extra)

    def _is_there(self, prefix: str) -> bool:
        with _explained(f"--out {self.url}"):
            found = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}", MaxKeys=1
            )
        return bool(found.get("KeyCount"))

    def _key(self, name: str, file: str) -> str:
        return f"{self._prefix}{name}/{file}"


class Uploads:
    """Uploads the records of an experiment's folder as they are finished, while others still run.

    A context manager: it waits for the uploads at its end. After a failure it tries no more; `finish` raises.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """Raise as `Destination.claim` does; TakenError if the folder is there and was begun elsewhere."""
        self.url = f"{url.rstrip('/')}/{folder.name}"
        self._folder = folder
        self._destination = Destination(url)
        self._destination.check(folder.name, ours=folder.exists())
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[Future[None]] = []
        self._error: Exception | None = None

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def add(self, record: Path) -> None:
        """Have a finished record uploaded, unless it already is."""
        name = f"{self._folder.name}/{record.relative_to(self._folder).as_posix()}"
        self._waiting.append(self._thread.submit(self._try, self._destination.add, record, name))

    def finish(self) -> None:
        """Wait for the records, and upload what else is in the folder: tables and the report.

        Raises OSError for what could not be uploaded.
        """
        for upload in self._waiting:
            upload.result()
        self._try(self._destination.add_beside, self._folder, self._folder.name)
        if self._error:
            raise OSError(
                f"{self._error}; all is in {self._folder}, and the same command uploads what is missing"
            ) from self._error

    def _try(self, upload: Callable[[Path, str], None], folder: Path, name: str) -> None:
        if not self._error:
            try:
                upload(folder, name)
            except (ValueError, OSError) as error:
                self._error = error


def fetch(url: str, option: str = "--report") -> Path:
    """Download what reports are made of from a URL to runs/from-s3, and return the folder there.

    option: what asked for it, as messages name it.
    What an earlier call has fetched is not fetched again, unless it was written since.
    Raises ValueError for what the user can fix (an empty prefix too), OSError if S3 or the disk fails.
    """
    try:
        bucket, prefix = bucket_and_prefix(url)
    except ValueError as error:
        raise ValueError(f"{option} {url}: {error}") from None
    folder, found = Path("runs", "from-s3", bucket, prefix), False
    with _explained(f"{option} {url}"):
        client = _client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                name = PurePosixPath(entry["Key"].removeprefix(prefix))
                if name.suffix not in _READ_BY_REPORTS or name.name == "trace.json":
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


def _client() -> S3Client:
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S)
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        config = config.merge(Config(retries={"total_max_attempts": _ATTEMPTS}))
    return boto3.client("s3", config=config)


def _taken(option: str, place: str) -> TakenError:
    return TakenError(f"{option}: {place} is taken and is never overwritten; choose another name")


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Turn an error of S3 into one line: a ValueError if the user can fix it, else an OSError."""
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as aws

    try:
        yield
    except (aws.NoCredentialsError, aws.PartialCredentialsError, aws.ProfileNotFound) as error:
        raise ValueError(f"{where}: {error}; set AWS_PROFILE, or keys, as for AWS's own tools") from error
    except aws.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if error.response["Error"]["Code"] == "NoSuchBucket":
            raise ValueError(f"{where}: there is no such bucket; create it, or name another") from error
        if 300 <= status < 500:
            remedy = "check the bucket's name, its region and what AWS_PROFILE may do there"
            raise ValueError(f"{where}: S3 refuses ({error}); {remedy}") from error
        raise OSError(f"{where}: S3 fails ({error})") from error
    except (aws.BotoCoreError, Boto3Error) as error:
        raise OSError(f"{where}: S3 fails ({error})") from error
