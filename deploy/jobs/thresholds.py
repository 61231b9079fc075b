"""How long each step may take, and how fast a mode must be: thresholds.yaml, or what --thresholds names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.jobs.kubectl_errors import SetupError
from dsgd.process.bounded_yaml import read_yaml

DEFAULT = Path(__file__).with_name("thresholds.yaml")


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long each step of a job may take, in seconds."""

    taken_up_s: float
    """From applying the job until an operator gives it a status."""
    pods_running_s: float
    """From applying the job until head and workers run."""
    first_update_s: float
    """From then until the first update."""
    job_over_s: float
    """From then until the job is over."""
    runs_s: float
    """For the runs of a test, all together."""
    gone_s: float
    """For a deleted job to be gone."""
    silence_s: float
    """Of the cluster, in the middle of a test."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name}: must be a number of seconds above 0, it is {value!r}")


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """What a mode must reach in perf-test; None: that is not asked."""

    samples_per_s_min: float | None = None
    idle_share_max: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name}: must be a number of at least 0, it is {value!r}")
        if not any(value is not None for value in vars(self).values()):
            raise ValueError("a mode's thresholds need samples_per_s_min, idle_share_max or both")


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """The whole file."""

    limits: TimeLimits
    performance: Mapping[str, Mapping[str, Threshold]]
    """By job and mode."""


def read_thresholds(path: Path) -> Thresholds:
    """Read limits and thresholds. Raises SetupError in one line for anything wrong with them."""
    try:
        content = read_yaml(path)
        return Thresholds(
            limits=TimeLimits(**content["limits"]),
            performance={
                job: {mode: Threshold(**values) for mode, values in modes.items()}
                for job, modes in content["performance"].items()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise SetupError(f"--thresholds {path}: {reason}; docs/cluster.md describes the file") from None
