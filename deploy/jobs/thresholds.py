"""How long each step may take, and how fast a mode must be: thresholds.yaml, or what --thresholds names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from deploy.jobs.kubectl_errors import SetupError
from dsgd.process.checked_yaml import convert, read
from dsgd.process.outcomes import UsageError

DEFAULT = Path(__file__).with_name("thresholds.yaml")
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]


class TimeLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each step of a job may take, in seconds."""

    taken_up_s: _Seconds
    """From applying the job until an operator gives it a status."""
    pods_running_s: _Seconds
    """From applying the job until head and workers run."""
    first_update_s: _Seconds
    """From then until the first update."""
    job_over_s: _Seconds
    """From then until the job is over."""
    runs_s: _Seconds
    """For the runs of a test, all together."""
    gone_s: _Seconds
    """For a deleted job to be gone."""
    silence_s: _Seconds
    """Of the cluster, in the middle of a test."""


class Threshold(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a mode must reach in perf-test; None: that is not asked."""

    samples_per_s_min: Annotated[float, Meta(ge=0)] | None = None
    idle_share_max: Annotated[float, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        if self.samples_per_s_min is None and self.idle_share_max is None:
            raise ValueError("needs samples_per_s_min, idle_share_max or both")


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    limits: TimeLimits
    performance: Mapping[str, Mapping[str, Threshold]]
    """By job and mode."""


def read_thresholds(path: Path) -> Thresholds:
    """Read limits and thresholds. Raises SetupError in one line for anything wrong with them."""
    where = f"--thresholds {path}"
    try:
        return convert(read(path, where, "docs/runbook.md describes the file"), Thresholds, where)
    except UsageError as error:
        raise SetupError(str(error)) from None
