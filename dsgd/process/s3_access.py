"""How S3 is reached: the client, whether a condition of a request did not hold, and errors in one line."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ObjectTypeDef

_ATTEMPTS = 5  # with growing pauses; AWS_MAX_ATTEMPTS overrides it
_CONNECT_S, _READ_S = 5, 30
_UNKNOWN = ("NotImplemented", "InvalidArgument", "InvalidRequest")  # said of conditions, too
_WANTS_HOSTS = ("SecondLevelDomainForbidden", "PathStyleDomainForbidden", "VirtualHostDomainRequired")
_SLOWER = ("SlowDown", "TooManyRequests", "Throttling", "ThrottlingException", "RequestLimitExceeded", "429")


def is_s3(place: str) -> bool:
    """Whether a place for records is a URL of S3, not a folder."""
    return place.startswith("s3://")


def local_folder(url: str) -> Path:
    """Return where records that go to a URL are written first, and stay: under runs/s3."""
    bucket, prefix = bucket_and_prefix(url)
    return Path("runs", "s3", bucket, prefix)


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


def s3_client() -> S3Client:
    """Return a client, without contacting S3; it repeats what times out or fails with a 5xx.

    Older storages that speak S3 refuse checksums that come after the content, boto3's default; those that a
    request must have, and ours of checkpoints, are in its head.
    """
    import boto3
    from botocore.config import Config

    config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S)
    if "AWS_MAX_ATTEMPTS" not in os.environ:
        config = config.merge(Config(retries={"total_max_attempts": _ATTEMPTS}))
    if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
        config = config.merge(Config(request_checksum_calculation="when_required"))
    if "AWS_RESPONSE_CHECKSUM_VALIDATION" not in os.environ:
        config = config.merge(Config(response_checksum_validation="when_required"))
    return boto3.client("s3", config=config)


def on_condition(ask: Callable[..., Any], condition: Mapping[str, str], **request: Any) -> Any:
    """Make a request on a condition or, where the storage knows none, without: what is there was looked at
    before, but two processes that look at once find each other late.

    Raises what boto3 does.
    """
    from botocore.exceptions import ClientError

    try:
        return ask(**request, **condition)
    except ClientError as error:
        if _status(error) not in (405, 501) and error.response["Error"]["Code"] not in _UNKNOWN:
            raise
        answer = ask(**request)
        _say_unconditional(f"s3://{request['Bucket']}")
        return answer


@cache  # once a process
def _say_unconditional(bucket: str) -> None:
    logging.getLogger("dsgd").warning(
        "%s: knows no conditional writes: a second process that writes there is found after seconds", bucket
    )


def exists(client: S3Client, bucket: str, key: str) -> bool:
    """Whether there is an object; a list may not have it yet."""
    try:
        client.head_object(Bucket=bucket, Key=key)
    except client.exceptions.ClientError as error:
        if error.response["Error"]["Code"] in ("404", "NoSuchKey"):
            return False
        found = client.list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1)
        return any(entry["Key"] == key for entry in found.get("Contents", []))
    return True


def metadata(found: Any) -> dict[str, str]:
    """Return an object's own metadata; some storages write names in capitals."""
    return {name.lower(): value for name, value in found["Metadata"].items()}


def fetch_object(client: S3Client, bucket: str, entry: ObjectTypeDef, path: Path) -> None:
    """Download what a list of objects names, unless it is there: with its size, and its time, which is set
    here, since this machine's clock may be another.
    """
    written_s = entry["LastModified"].timestamp()
    if path.is_file():
        here = path.stat()
        if (here.st_size, int(here.st_mtime)) == (entry["Size"], int(written_s)):  # some disks keep seconds
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    client.download_file(bucket, entry["Key"], str(path))
    with suppress(OSError):  # a disk that keeps no times: fetched again next time
        os.utime(path, (written_s, written_s))


def is_refused_condition(error: ClientError) -> bool:
    """Whether IfMatch or IfNoneMatch did not hold: another process was there first."""
    return error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict")


def _status(error: ClientError) -> int:
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn an error of S3 into one line: a ValueError if the user can fix it, else an OSError."""
    from boto3.exceptions import Boto3Error
    from botocore import exceptions as aws

    try:
        yield
    except (aws.NoCredentialsError, aws.PartialCredentialsError, aws.ProfileNotFound) as error:
        raise ValueError(f"{where}: {error}; set AWS_PROFILE, or keys, as for AWS's own tools") from error
    except aws.ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "NoSuchBucket":
            raise ValueError(f"{where}: there is no such bucket; create it, or name another") from error
        if code in _WANTS_HOSTS:
            remedy = "set addressing_style = virtual below s3 = in AWS_CONFIG_FILE"
            raise ValueError(f"{where}: the storage wants the bucket in its host's name; {remedy}") from error
        if 300 <= _status(error) < 500 and code not in _SLOWER:
            remedy = "check the bucket's name, its region and what AWS_PROFILE may do there"
            raise ValueError(f"{where}: S3 refuses ({error}); {remedy}") from error
        raise OSError(f"{where}: S3 fails ({error})") from error
    except (aws.BotoCoreError, Boto3Error) as error:
        raise OSError(f"{where}: S3 fails ({error})") from error
