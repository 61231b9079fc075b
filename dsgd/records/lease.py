"""One writer at a time for a name in S3: a lease, which ends when its holder does.

The lease is an object beside the record. Its holder writes it again every few seconds; if nobody has for
`LASTS_S`, the holder is taken for dead, and the next process may take the lease over. Only one can: each
write is conditional on the version that the writer saw last. The age of a lease is read off S3's clock alone.

A holder that stood still for longer finds at its next write that the lease is another's, and stops writing.
As with every lease, what it had already sent then may still arrive: a checkpoint is harmless, because none is
ever overwritten, and streams are sent again with the next one.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from dsgd.process.s3_access import exists, explained, is_refused_condition, metadata, on_condition

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LASTS_S = 30.0
_ABSENT = {"IfNoneMatch": "*"}
_HOLDER, _HOST = "held-by", "host"  # in its metadata


class TakenError(ValueError):
    """There is a record of that name already, or another process writes it."""


class LostError(OSError):
    """Another process has taken the name over; this one must write no more."""


class Lease:
    """The right to write under one name, once `take` has returned and until `release`.

    key: of the object. place: names it in messages, like s3://lab/runs/a.
    """

    def __init__(self, client: S3Client, bucket: str, key: str, place: str) -> None:
        self._client, self._bucket, self._key, self._place = client, bucket, key, place
        self._token, self._count = uuid.uuid4().hex, 0
        self._etag = ""  # of what this process wrote last; empty: it does not hold the lease
        self._renewed_s = 0.0
        self._lost = False
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def take(self, *, wait: bool = False) -> None:
        """Take the lease and keep it.

        wait: for one that nobody renews, until it has ended; so the process that follows a killed one goes on
        after at most `LASTS_S` seconds. Raises TakenError for one that another process holds, ValueError and
        OSError as `explained` does.
        """
        with explained(f"--out {self._place}"):
            # Looked at first: a storage may ignore the condition.
            is_there = exists(self._client, self._bucket, self._key)
            condition = self._when_free(wait=wait) if is_there else _ABSENT
            while not self._put(condition):
                condition = self._when_free(wait=wait)
        self._thread.start()

    def require(self) -> None:
        """Raise LostError if another process has taken the name over; call it before each write."""
        if time.monotonic() - self._renewed_s > LASTS_S / 2:
            with explained(f"--out {self._place}"):
                self._renew()
        if self._lost:
            raise LostError(
                f"--out {self._place}: another process has taken this over while this one stood still; "
                "what this one does from now on is kept on this machine only"
            )

    def release(self) -> None:
        """Give the lease back; if S3 fails, it ends by itself."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock, suppress(ValueError, OSError), explained(f"--out {self._place}"):
            if self._etag and not self._lost:
                where = {"Bucket": self._bucket, "Key": self._key}
                on_condition(self._client.delete_object, {"IfMatch": self._etag}, **where)
            self._etag = ""

    def _keep(self) -> None:
        while not self._end.wait(LASTS_S / 4):
            with suppress(ValueError, OSError), explained(f"--out {self._place}"):  # the next one may succeed
                self._renew()

    def _renew(self) -> None:
        with self._lock:
            if self._etag and not self._lost:  # looked at first here, too
                self._lost = not self._is_own(self._head()) or not self._put({"IfMatch": self._etag})

    def _is_own(self, found: Any) -> bool:
        return found is not None and metadata(found).get(_HOLDER) == self._token

    def _put(self, condition: Mapping[str, str]) -> bool:
        """Write the lease if the condition holds; return whether it is now this process's."""
        self._count += 1  # else the ETag, a digest, would stay the same
        asked_s = time.monotonic()
        try:
            answer: Any = on_condition(
                self._client.put_object,
                condition,
                Bucket=self._bucket,
                Key=self._key,
                Body=json.dumps({"held_by": self._token, "pid": os.getpid(), "n": self._count}).encode(),
                Metadata={_HOLDER: self._token, _HOST: socket.gethostname()},
            )
        except self._client.exceptions.ClientError as error:
            code = error.response["Error"]["Code"]
            if not is_refused_condition(error) and code not in ("NoSuchKey", "404"):
                raise
            # It may be this very request, sent again because the first answer was lost.
            answer = self._head()
            if not self._is_own(answer):
                return False
        self._etag, self._renewed_s = answer["ETag"], asked_s
        return True

    def _when_free(self, *, wait: bool) -> Mapping[str, str]:
        """Return on what condition the lease can be written, once nobody renews it any more."""
        seen = ""
        while found := self._look():
            etag, age_s, host = found
            if age_s >= LASTS_S:
                return {"IfMatch": etag}
            if not wait or (seen and etag != seen):  # its holder is alive
                raise self._taken(host)
            seen = etag
            time.sleep(min(1.0, LASTS_S / 5))
        return _ABSENT

    def _look(self) -> tuple[str, float, str] | None:
        """Return the ETag, the seconds since it was written, and the holder's host; None if it is gone."""
        found = self._head()
        if found is None:
            return None
        date = found["ResponseMetadata"]["HTTPHeaders"].get("date")
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        return found["ETag"], (now - found["LastModified"]).total_seconds(), metadata(found).get(_HOST, "?")

    def _head(self) -> Any:
        try:
            return self._client.head_object(Bucket=self._bucket, Key=self._key)
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
                return None
            raise

    def _taken(self, host: str) -> TakenError:
        return TakenError(
            f"--out {self._place}: a process on {host} writes there; wait until it has ended, or, if it was "
            f"killed, {LASTS_S:g} s more"
        )
