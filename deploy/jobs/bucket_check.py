"""Whether a bucket can be written to, read and cleaned: with the local profile, or inside a pod of the job.

In a pod it is the text of this file that runs, so it needs no other module of the project.
"""

from __future__ import annotations

import sys
import uuid


def write_read_delete(bucket: str) -> str:
    """Put a small object into the bucket, read it back and delete it; return its URL.

    Raises what boto3 raises, and RuntimeError if something else comes back.
    """
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=5,
        read_timeout=10,
        retries={"max_attempts": 2},
        request_checksum_calculation="when_required",  # older storages refuse others
    )
    s3 = boto3.client("s3", config=config)
    key, content = f"validate-setup/{uuid.uuid4()}", b"written by validate-setup"
    s3.put_object(Bucket=bucket, Key=key, Body=content)
    read = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    s3.delete_object(Bucket=bucket, Key=key)
    if read != content:
        raise RuntimeError(f"s3://{bucket}/{key} was written, and came back different")
    return f"s3://{bucket}/{key}"


if __name__ == "__main__":
    print("written, read and deleted:", write_read_delete(sys.argv[1]))
