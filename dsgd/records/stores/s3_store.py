"""Checkpoints in S3: one object each, visible once it is whole.

Large ones are uploaded in parts, several at a time, each with its SHA-256, which S3 checks. Neither a part
nor an upload that was killed is visible; what such uploads have left is removed before the next one. Requests
that time out or fail with a 5xx are repeated, with growing pauses (`s3_access.s3_client`).
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from dsgd.process.s3_access import exists, explained, is_refused_condition, on_condition
from dsgd.records.stores.store import Part, in_order

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client

_PART_BYTES = 16 << 20
_MAX_PARTS = 10_000  # S3's limit
_NEW = {"IfNoneMatch": "*"}
_AT_ONCE = 4  # parts on their way; as many are copied into memory


class S3Store:
    """The checkpoints under a prefix of a bucket, which ends with a slash.

    place: names it in messages, like s3://lab/runs/a/checkpoints. Raises OSError where S3 fails or refuses.
    """

    def __init__(self, client: S3Client, bucket: str, prefix: str, place: str) -> None:
        self._client, self._bucket, self._prefix, self._place = client, bucket, prefix, place
        self._is_tidy = False

    def __str__(self) -> str:
        return self._place

    def names(self) -> list[str]:
        with _as_os_errors(self._place):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return in_order([key.removeprefix(self._prefix) for key in keys])

    def write(self, name: str, parts: Sequence[Part]) -> None:
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(view.nbytes for view in views)
        with _as_os_errors(self._place):
            self._abort_what_was_killed()
            try:
                if size <= _PART_BYTES:
                    to = {"Bucket": self._bucket, "Key": self._prefix + name}
                    on_condition(self._client.put_object, _NEW, **to, **_checked(b"".join(views)))
                else:
                    self._write_in_parts(self._prefix + name, views, max(_PART_BYTES, -(-size // _MAX_PARTS)))
            except self._client.exceptions.ClientError as error:
                # Refused because it is there already, perhaps from this very request, sent twice.
                refused = is_refused_condition(error) or _is_gone(error)
                if not refused or not exists(self._client, self._bucket, self._prefix + name):
                    raise

    def read(self, name: str) -> bytes:
        content = io.BytesIO()
        with _as_os_errors(self._place):
            # Unlike get_object, it repeats what breaks off in the middle.
            self._client.download_fileobj(self._bucket, self._prefix + name, content)
        return content.getvalue()

    def remove(self, name: str) -> None:
        with _as_os_errors(self._place):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def _write_in_parts(self, key: str, views: Sequence[memoryview], part_bytes: int) -> None:
        to: Any = {"Bucket": self._bucket, "Key": key}
        to["UploadId"] = self._client.create_multipart_upload(**to, ChecksumAlgorithm="SHA256")["UploadId"]

        def upload(number: int, body: bytes) -> Any:
            sent: Any = self._client.upload_part(**to, PartNumber=number, **_checked(body))
            return {
                "PartNumber": number,
                **{k: sent[k] for k in ("ETag", "ChecksumSHA256") if k in sent},
            }

        try:
            sent: list[Any] = []
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                for group in _in_groups(_pieces(views, part_bytes)):
                    sent += threads.map(upload, range(len(sent) + 1, len(sent) + len(group) + 1), group)
            on_condition(self._client.complete_multipart_upload, _NEW, **to, MultipartUpload={"Parts": sent})
        except BaseException:
            self._is_tidy = False  # if S3 does not even abort it, the next write does
            with suppress(OSError), _as_os_errors(self._place):
                self._client.abort_multipart_upload(**to)
            raise

    def _abort_what_was_killed(self) -> None:
        """Remove the parts of uploads that were killed: there is one writer, and it has just begun."""
        if not self._is_tidy:
            with suppress(self._client.exceptions.ClientError):  # not each storage, and not all may list them
                found = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=self._prefix)
                for left in found.get("Uploads", []):
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=left["Key"], UploadId=left["UploadId"]
                    )
            self._is_tidy = True


@contextmanager
def _as_os_errors(place: str) -> Iterator[None]:
    """Raise OSError for what the user could fix too: while a run goes on, it is the store that fails."""
    try:
        with explained(f"--out {place}"):
            yield
    except ValueError as error:
        raise OSError(str(error)) from error


def _checked(body: bytes) -> dict[str, Any]:
    """Return a content and its SHA-256, which S3 checks, as a request has them in its head."""
    return {"Body": body, "ChecksumSHA256": base64.b64encode(hashlib.sha256(body).digest()).decode()}


def _is_gone(error: ClientError) -> bool:
    return error.response["Error"]["Code"] == "NoSuchUpload"


def _pieces(views: Sequence[memoryview], size: int) -> Iterator[bytes]:
    """Yield the content in pieces of `size` bytes; the last is smaller."""
    piece = bytearray()
    for view in views:
        at = 0
        while at < view.nbytes:
            more = view[at : at + size - len(piece)]
            piece += more
            at += more.nbytes
            if len(piece) == size:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _in_groups(pieces: Iterator[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    for piece in pieces:
        group.append(piece)
        if len(group) == _AT_ONCE:
            yield group
            group = []
    if group:
        yield group
