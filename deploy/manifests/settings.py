"""The settings in which users' manifests differ, and the file that keeps them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta, Struct

from deploy.project import UNNAMED_BUCKET, version
from dsgd.process.bounded_yaml import read_yaml

Capacity = Literal["any", "spot", "on-demand"]
Device = Literal["cuda", "cpu"]
Tls = Literal["off", "cert-manager", "secret"]

FILE = "deploy/settings.yaml"
_HEAD = "# With this `make manifests` renders ray-*.yaml; options that it is given are kept here.\n"
_WITHOUT_DATA = {"mnist"}  # shipped workloads whose data come with an extra package, which the image lacks


def _about(text: str, rule: str) -> Meta:
    return Meta(description=text, extra={"rule": rule})


_Image = Annotated[str, Meta(pattern=r"^[\w.:/-]+:[\w][\w.-]*(@sha256:[0-9a-f]{64})?$")]
_Bucket = Annotated[str, Meta(pattern=rf"^({UNNAMED_BUCKET}|[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9])$")]
_Workload = Annotated[str, Meta(pattern=r"^[a-z]\w*$")]
_Label = Annotated[str, Meta(pattern=r"^([\w.-]+/)?[\w.-]+=[\w.-]*$")]
_Taint = Annotated[str, Meta(pattern=r"^([\w.-]+/)?[\w.-]+(=[\w.-]*)?$")]
_Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
_Run = Annotated[str, Meta(pattern=r"^(s3://[a-z0-9A-Z][\w./-]*/)?\w[\w.-]*(@\d+)?$")]
_Count = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(gt=0, le=1000)]
_AN_OBJECT = "must be the name of an object"


# fmt: off
class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The settings in which users' files differ; `checked` makes them of values that a user gives."""

    image: Annotated[_Image, _about("image with its tag, which the cluster can pull",
        "must be a name with a tag, like dsgd-lab:0.1.0")]
    bucket: Annotated[_Bucket, _about("S3 bucket for results, its name alone",
        "must be the name of an S3 bucket alone, without s3:// or a folder")]
    device: Annotated[Device, _about("what the workers compute on: cuda or cpu",
        "must be cuda or cpu")] = "cuda"
    workload: Annotated[_Workload | None, _about("what the jobs train, like gpt; on GPUs fashion by default",
        "must be a name that the image has, like fashion")] = None
    workers: Annotated[_Count | None, _about("worker pods of each job, and workers of those that are one run",
        "must be at least 1")] = None
    gpus_per_worker: Annotated[_Share | None, _about("GPUs of each worker, below 1 a share of one; such that "
        "all fit unless given", "must be in (0, 1], or a whole number")] = None
    node_selector: Annotated[tuple[_Label, ...], _about("LABEL=VALUE of the workers' nodes, besides their "
        "architecture; may be repeated", "must be LABEL=VALUE")] = ()
    capacity: Annotated[Capacity, _about("how the workers' nodes are paid for: any, spot or on-demand; with "
        "spot the head is on demand", "must be any, spot or on-demand")] = "any"
    tls: Annotated[Tls, _about("who makes certificates for Ray's calls: off, cert-manager or secret",
        "must be off, cert-manager or secret")] = "off"
    efa: Annotated[int, Meta(ge=0), _about("Elastic Fabric Adapters of each worker pod: AWS's fast links",
        "must be at least 0")] = 0
    keep_workers: Annotated[bool, _about("whether workers may not be moved to save nodes, as heads never are",
        "must be true or false")] = False
    toleration: Annotated[tuple[_Taint, ...], _about("KEY or KEY=VALUE of a taint that workers tolerate, "
        "besides that of GPUs; may be repeated", "must be KEY or KEY=VALUE, like a taint's")] = ()
    priority_class: Annotated[_Name | None, _about("PriorityClass of head and workers", _AN_OBJECT)] = None
    pull_secret: Annotated[_Name | None, _about("secret with which the image is pulled", _AN_OBJECT)] = None
    queue: Annotated[_Name | None, _about("Kueue's LocalQueue in which the jobs wait until there is room",
        _AN_OBJECT)] = None
    serves: Annotated[tuple[_Run, ...], _about("what ray-service.yaml answers with: a run in "
        "the bucket by its name, or a run's address, with @VERSION or without; may be repeated",
        "must be the name of a run, like ssp-TAG or ssp-TAG@2000, or its address in S3")] = ()

    def __post_init__(self) -> None:
        share = self.gpus_per_worker
        if self.workload in _WITHOUT_DATA:
            raise ValueError(f"--workload {self.workload}: the image has no data for it, as they are an "
                "extra package; use fashion")
        if share and self.device == "cpu":
            raise ValueError(f"--gpus-per-worker {share:g}: only with --device cuda")
        if share and share > 1 and share != int(share):
            raise ValueError(f"--gpus-per-worker {share:g}: must be in (0, 1], or a whole number")
        if self.efa and self.device == "cpu":
            raise ValueError(f"--efa {self.efa}: is for NCCL, between GPUs; only with --device cuda")
# fmt: on


_HINTS = get_type_hints(Settings, include_extras=True)
_ABOUT: Mapping[str, Any] = {name: hint.__metadata__[-1] for name, hint in _HINTS.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each setting; one that is not given is None."""
    for name, hint in _HINTS.items():
        kind = get_args(hint)[0]
        more: dict[str, Any] = {}
        if kind is bool:
            more = {"action": argparse.BooleanOptionalAction}
        elif get_origin(kind) is tuple:
            more = {"action": "append"}
        elif name == "gpus_per_worker":  # .5 is no number to msgspec
            more = {"type": float}
        parser.add_argument(_option(name), help=_ABOUT[name].description, **more)


def checked(settings: Settings | None, given: Mapping[str, Any]) -> Settings:
    """Return the settings with the values that were given, texts among them; None is not given.

    Raises ValueError in one line, which names the option, for one that cannot work.
    """
    before = msgspec.structs.asdict(settings) if settings else {}
    values = before | {name: value for name, value in given.items() if value is not None}
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        if not (name := re.search(r"`\$\.(\w+)", str(error))):
            raise ValueError(str(error)) from None
        value = values[name[1]]
        shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
        raise ValueError(f"{_option(name[1])} {shown}: {_ABOUT[name[1]].extra['rule']}") from None


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_settings(root: Path) -> Settings:
    """Return what the project's file has; without it, the project's own. Raises ValueError in one line."""
    file = root / FILE
    if not file.exists():
        return Settings(image=f"dsgd-lab:{version()}", bucket=UNNAMED_BUCKET)
    try:
        content = read_yaml(file)
        if not isinstance(content, dict):
            raise ValueError("must have settings by name, like `image: dsgd-lab:0.1.0`")
        return checked(None, content)
    except ValueError as error:
        raise ValueError(f"{FILE}: {error}") from None


def settings_text(settings: Settings) -> str:
    """Return the file that keeps the settings: those that are not the default."""
    return _HEAD + yaml.safe_dump(msgspec.to_builtins(settings), sort_keys=False)
