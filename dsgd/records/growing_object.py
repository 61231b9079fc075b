"""A file that only grows, kept in S3 as it grows: what is there already is not sent again.

An object of S3 cannot be appended to, but a new one can be made of an old one and more: the old one is a part
that S3 copies, the new bytes are the next part. So each minute's upload is what that minute has added, and
readers see the object as it was or as it is, never anything between. A part other than the last has at least
5 MiB; a smaller file is sent whole.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dsgd.process.s3_access import on_condition
from dsgd.records.reader import whole_length

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_LEAST_COPIED, _MOST_COPIED = 5 << 20, 5 << 30  # bytes; S3's limits for a part that is a copy
_PART_BYTES = 16 << 20


class GrowingObject:
    """The object of one file; one thread at a time calls it, of the only process that writes there."""

    def __init__(self, client: S3Client, bucket: str, key: str) -> None:
        self._client = client
        self._to: Any = {"Bucket": bucket, "Key": key}
        self._length = -1  # bytes that this process has put there; -1: none
        self._digest = b""  # of them
        self._etag = ""

    def send(self, file: Path, *, whole_lines: bool) -> None:
        """Make the object what the file is now.

        whole_lines: without a last line that is still being written. A file of which bytes were taken back is
        sent again. Raises what boto3 does; the object is then as it was.
        """
        length = whole_length(file) if whole_lines else file.stat().st_size
        with file.open("rb") as content:
            sent = _sha256(content, self._length)
            goes_on = content.tell() == self._length <= length and sent.digest() == self._digest
            if goes_on and length == self._length:
                return
            if goes_on and _LEAST_COPIED <= self._length <= _MOST_COPIED:
                etag = self._put_in_parts(content, length, sent, copied=True)
            else:
                sent = hashlib.sha256()
                content.seek(0)
                if length <= _PART_BYTES:
                    sent.update(body := content.read(length))
                    etag = self._client.put_object(**self._to, Body=body)["ETag"]
                else:
                    etag = self._put_in_parts(content, length, sent, copied=False)
            self._length, self._digest, self._etag = content.tell(), sent.digest(), etag

    def _put_in_parts(self, content: IO[bytes], length: int, sent: Any, *, copied: bool) -> str:
        """Put a file from where it is read up to a length, after a copy of the object, and return the ETag.

        sent: the SHA-256 of what is before, to which what is sent is added.
        """
        upload: Any = self._to | {"UploadId": self._client.create_multipart_upload(**self._to)["UploadId"]}
        parts: list[Any] = []
        try:
            if copied:
                answer: Any = on_condition(
                    self._client.upload_part_copy,
                    {"CopySourceIfMatch": self._etag},
                    **upload, PartNumber=1, CopySource=self._to,
                )  # fmt: skip
                parts.append({"PartNumber": 1, "ETag": answer["CopyPartResult"]["ETag"]})
            while body := content.read(min(_PART_BYTES, length - content.tell())):
                number = len(parts) + 1
                put: Any = self._client.upload_part(**upload, PartNumber=number, Body=body)
                parts.append({"PartNumber": number, "ETag": put["ETag"]})
                sent.update(body)
            return self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})["ETag"]
        except BaseException:
            with suppress(Exception):  # what is left of it is invisible; the first error is the cause
                self._client.abort_multipart_upload(**upload)
            raise


def _sha256(content: IO[bytes], length: int) -> Any:
    """Return the SHA-256, to which more can be added, of the first bytes of a file, as far as there are."""
    sha256 = hashlib.sha256()
    while length > 0 and (piece := content.read(min(length, 1 << 20))):
        sha256.update(piece)
        length -= len(piece)
    return sha256
