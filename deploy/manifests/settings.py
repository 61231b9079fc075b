"""The settings in which users' manifests differ, and how a file records them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from deploy.project import BUCKET_VARIABLE, UNNAMED_BUCKET, version

Device = Literal["cuda", "cpu"]
Capacity = Literal["any", "spot", "on-demand"]
Tls = Literal["off", "cert-manager", "secret"]

_WITHOUT_DATA = {"mnist"}  # shipped workloads whose data come with an extra package, which the image lacks

# The two lines of a file that its reader may edit; the rest is rendered.
IMAGE_LINE = re.compile(r"^( +image: &image )(\S+)( +#.*)?$", re.MULTILINE)
BUCKET_LINE = re.compile(rf"^( +- name: {BUCKET_VARIABLE}\n +value: )(\S+)( +#.*)?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in which users' files differ. Raises ValueError in one line for one that cannot work."""

    image: str
    """With its tag, which a cluster must be able to pull."""
    bucket: str = UNNAMED_BUCKET
    """Of S3, where results go."""
    device: Device = "cuda"
    workload: str | None = None
    """What the jobs train, a NAME of --workload. None: digits, and on GPUs what they are for."""
    workers: int | None = None
    """Worker pods of each job, and workers of a job that is one run. None: the table's."""
    gpus_per_worker: float | None = None
    """GPUs of each worker, below 1 a share. None: such that the workers of each job fit on its pods' GPUs."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels of the nodes that workers go to, besides their architecture."""
    capacity: Capacity = "any"
    """How the workers' nodes are paid for. The head of a job with spot workers goes to a node on demand."""
    tls: Tls = "off"
    """Who makes the certificates with which Ray's processes encrypt their calls: deploy/manifests/tls.py."""
    efa: int = 0
    """Elastic Fabric Adapters of each worker pod: AWS's fast links between nodes, for NCCL."""
    keep_workers: bool = False
    """Whether workers, too, may not be moved to other nodes to save some, as heads never are."""
    tolerations: tuple[str, ...] = ()
    """Taints of nodes that workers tolerate, each KEY or KEY=VALUE, besides that of GPUs."""
    priority_class: str | None = None
    """Of head and workers: which pods make room for them, and for which they make room."""
    pull_secret: str | None = None
    """The secret in the jobs' namespace with which the image is pulled from its registry."""
    queue: str | None = None
    """Kueue's LocalQueue in which the jobs wait until there is room for all their pods."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.:/-]+:[\w][\w.-]*(@sha256:[0-9a-f]{64})?", self.image):
            raise ValueError(f"--image {self.image}: must be a name with a tag, like dsgd-lab:0.1.0")
        if not re.fullmatch(rf"{UNNAMED_BUCKET}|[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9]", self.bucket):
            raise ValueError(
                f"--bucket {self.bucket}: must be the name of an S3 bucket alone, without s3:// or a folder"
            )
        if self.device not in get_args(Device):
            raise ValueError(f"--device {self.device}: must be cuda or cpu")
        if self.workload is not None and not re.fullmatch(r"[a-z]\w*", self.workload):
            raise ValueError(f"--workload {self.workload}: must be a name that the image has, like fashion")
        if self.workload in _WITHOUT_DATA:
            raise ValueError(
                f"--workload {self.workload}: the image has no data for it, as they are an extra package; "
                "use fashion"
            )
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"--workers {self.workers}: must be at least 1")
        if self.gpus_per_worker is not None:
            share = self.gpus_per_worker
            if self.device == "cpu":
                raise ValueError(f"--gpus-per-worker {share:g}: only with --device cuda")
            if not share > 0 or (share > 1 and share != int(share)):
                raise ValueError(f"--gpus-per-worker {share:g}: must be in (0, 1], or a whole number")
        if self.efa < 0:
            raise ValueError(f"--efa {self.efa}: must be at least 0")
        if self.efa and self.device == "cpu":
            raise ValueError(f"--efa {self.efa}: is for NCCL, between GPUs; only with --device cuda")
        for key, value in self.node_selector:
            if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", key) or not re.fullmatch(r"[\w.-]*", value):
                raise ValueError(f"--node-selector {key}={value}: must be LABEL=VALUE")
        for taint in self.tolerations:
            if not re.fullmatch(r"([\w.-]+/)?[\w.-]+(=[\w.-]*)?", taint):
                raise ValueError(f"--toleration {taint}: must be KEY or KEY=VALUE, like a taint's")
        for option in ("priority_class", "pull_secret", "queue"):
            name = getattr(self, option)
            if name is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
                raise ValueError(f"--{option.replace('_', '-')} {name}: must be the name of an object")
        if self.capacity not in get_args(Capacity):
            raise ValueError(f"--capacity {self.capacity}: must be any, spot or on-demand")
        if self.tls not in get_args(Tls):
            raise ValueError(f"--tls {self.tls}: must be off, cert-manager or secret")

    @property
    def line(self) -> str:
        """The first line of a rendered file: all that its reader may not edit in it."""
        words = ["--device", self.device]
        for name in ("workload", "workers", "gpus_per_worker", "priority_class", "pull_secret", "queue"):
            if (value := getattr(self, name)) is not None:
                words += [
                    f"--{name.replace('_', '-')}",
                    f"{value:g}" if isinstance(value, float) else str(value),
                ]
        for key, value in self.node_selector:
            words += ["--node-selector", f"{key}={value}"]
        for taint in self.tolerations:
            words += ["--toleration", taint]
        if self.capacity != "any":
            words += ["--capacity", self.capacity]
        if self.efa:
            words += ["--efa", str(self.efa)]
        if self.keep_workers:
            words.append("--keep-workers")
        if self.tls != "off":
            words += ["--tls", self.tls]
        return f"{_BEGINNING}{shlex.join(words)}"


_BEGINNING = "# Rendered: python -m deploy.manifests "


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting; one that is not given is None."""
    parser.add_argument("--image", help="image with its tag, which the cluster can pull")
    parser.add_argument("--bucket", help="S3 bucket for results, its name alone")
    parser.add_argument("--device", choices=get_args(Device), help="what the workers compute on")
    parser.add_argument("--workload", help="what the jobs train: fashion (on GPUs, unless said), gpt, …")
    parser.add_argument("--workers", type=int, help="worker pods of each job (4)")
    parser.add_argument("--gpus-per-worker", type=float, help="GPUs of each worker, below 1 a share of one")
    parser.add_argument(
        "--node-selector",
        action="append",
        metavar="LABEL=VALUE",
        help="nodes of the workers; may be repeated",
    )
    parser.add_argument(
        "--capacity", choices=get_args(Capacity), help="how the workers' nodes are paid for (any)"
    )
    parser.add_argument("--tls", choices=get_args(Tls), help="who makes certificates for Ray's calls (off)")
    parser.add_argument("--efa", type=int, metavar="N", help="Elastic Fabric Adapters of each worker pod (0)")
    parser.add_argument(
        "--keep-workers",
        action=argparse.BooleanOptionalAction,
        help="whether workers may not be moved to save nodes, as heads never are",
    )
    parser.add_argument(
        "--toleration",
        action="append",
        dest="tolerations",
        metavar="KEY[=VALUE]",
        help="a taint that workers tolerate; may be repeated",
    )
    parser.add_argument("--priority-class", metavar="NAME", help="PriorityClass of head and workers")
    parser.add_argument("--pull-secret", metavar="NAME", help="secret with which the image is pulled")
    parser.add_argument("--queue", metavar="NAME", help="Kueue's LocalQueue in which the jobs wait")


def with_given(settings: Settings, given: Mapping[str, Any]) -> Settings:
    """Return the settings with the options that were given. Raises ValueError in one line."""
    names = {one.name for one in fields(Settings)}
    changed = {name: value for name, value in given.items() if name in names and value is not None}
    if pairs := changed.get("node_selector"):
        if wrong := [pair for pair in pairs if "=" not in pair]:
            raise ValueError(f"--node-selector {wrong[0]}: must be LABEL=VALUE")
        changed["node_selector"] = tuple(tuple(pair.split("=", 1)) for pair in pairs)
    if taints := changed.get("tolerations"):
        changed["tolerations"] = tuple(taints)
    return replace(settings, **changed)


class _Line(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _given_in(words: Sequence[str]) -> Mapping[str, Any]:
    parser = _Line(add_help=False, allow_abbrev=False)
    add_options(parser)
    return vars(parser.parse_args(words))


def settings_of(path: Path) -> Settings:
    """Return the settings that the file was rendered with: its first line, its image and its bucket.

    If there is no such file, they are the project's own. Raises ValueError in one line if it does not say.
    """
    own = Settings(image=f"dsgd-lab:{version()}")
    if not path.exists():
        return own
    text = path.read_text()
    first = text.partition("\n")[0]
    image, bucket = IMAGE_LINE.search(text), BUCKET_LINE.search(text)
    if not first.startswith(_BEGINNING) or not image or not bucket:
        raise ValueError(f"{path.name}, line 1: does not say how it was rendered; run `make manifests`")
    try:
        own = with_given(own, _given_in(shlex.split(first.removeprefix(_BEGINNING))))
        return replace(own, image=image[2], bucket=bucket[2])
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
