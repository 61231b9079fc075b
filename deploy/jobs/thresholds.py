"""How long each step may take, and how fast a mode must be: thresholds.yaml, or what --thresholds names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

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
    sampled_every_s: _Seconds
    """From one look at what the nodes use to the next."""

    def lasting(self, runs_s: float) -> TimeLimits:
        """Return limits for a test whose runs take this long."""
        return replace(self, runs_s=runs_s, job_over_s=self.job_over_s + max(0.0, runs_s - self.runs_s))


_Share = Annotated[float, Meta(ge=0, le=1)]


class Criteria(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job's nodes are held to; None: the value is shown, and nothing is asked for."""

    group_formed_s: _Seconds | None = None
    gpu_share_min: _Share | None = None
    head_cpu_share_max: _Share | None = None
    memory_share_max: _Share | None = None
    network_bytes_per_s_max: Annotated[float, Meta(gt=0)] | None = None


class Threshold(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a mode must reach in perf-test; None: that is not asked."""

    samples_per_s_min: Annotated[float, Meta(ge=0)] | None = None
    samples_per_s_per_gpu_min: Annotated[float, Meta(ge=0)] | None = None
    tokens_per_s_per_gpu_min: Annotated[float, Meta(ge=0)] | None = None
    idle_share_max: Annotated[float, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        if all(getattr(self, name) is None for name in self.__struct_fields__):
            raise ValueError(f"needs one of {', '.join(self.__struct_fields__)}")


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    limits: TimeLimits
    performance: Mapping[str, Mapping[str, Threshold]]
    """By job and mode."""
    criteria: Mapping[str, Mapping[str, float | None]] = {}
    """By job, each with fields of Criteria; those of `all` hold where a job's own say nothing."""

    def criteria_of(self, job: str) -> Criteria:
        """Return what a job's nodes are held to."""
        return msgspec.convert(self._given(job), Criteria)

    def _given(self, job: str) -> Mapping[str, float | None]:
        return {**self.criteria.get("all", {}), **self.criteria.get(job, {})}

    def require_criteria(self, where: str) -> None:
        """Raise UsageError in one line for criteria that are none."""
        for job in self.criteria:
            convert(self._given(job), Criteria, f"{where}: criteria: {job}")


def read_thresholds(path: Path) -> Thresholds:
    """Read limits and thresholds. Raises SetupError in one line for anything wrong with them."""
    where = f"--thresholds {path}"
    try:
        found = convert(read(path, where, "docs/runbook.md describes the file"), Thresholds, where)
        found.require_criteria(where)
    except UsageError as error:
        raise SetupError(str(error)) from None
    return found
