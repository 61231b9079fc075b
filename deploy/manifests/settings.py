"""The settings in which users' manifests differ, and how a file records them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from deploy.project import version

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in which users' files differ."""

    image: str
    """With its tag, which a cluster must be able to pull."""
    bucket: str = "BUCKET"
    """Of S3, where results go. No bucket's name has capitals, so this one cannot exist."""
    device: Device = "cuda"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.:/-]+:[\w][\w.-]*(@sha256:[0-9a-f]{64})?", self.image):
            raise ValueError(f"--image {self.image}: must be a name with a tag, like dsgd-lab:0.1.0")
        if not re.fullmatch(r"BUCKET|[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", self.bucket):
            raise ValueError(
                f"--bucket {self.bucket}: must be the name of an S3 bucket alone, without s3:// or a folder"
            )
        if self.device not in get_args(Device):
            raise ValueError(f"--device {self.device}: must be cuda or cpu")

    @property
    def line(self) -> str:
        """The first line of a rendered file."""
        return (
            "# Rendered: python -m deploy.manifests "
            f"--image {self.image} --bucket {self.bucket} --device {self.device}"
        )


_LINE = re.compile(r"# Rendered: python -m deploy.manifests --image (\S+) --bucket (\S+) --device (\S+)")


def settings_of(path: Path) -> Settings:
    """Return the settings that the file was rendered with, as its first line says.

    If there is no such file, they are the project's own. Raises ValueError in one line if it does not say.
    """
    if not path.exists():
        return Settings(image=f"dsgd-lab:{version()}")
    found = _LINE.fullmatch(path.read_text().partition("\n")[0])
    if not found:
        raise ValueError(f"{path.name}, line 1: does not say how it was rendered; run `make manifests`")
    image, bucket, device = found.groups()
    return Settings(image=image, bucket=bucket, device=cast(Device, device))  # which it checks
