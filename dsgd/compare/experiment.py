"""An experiment, expanded: its variants, the runs that it makes, and where their records go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsgd.config import TrainConfig
from dsgd.show.report.experiment_yaml import Figure
from dsgd.show.report.layout import Asked
from dsgd.show.report.premises import Premise


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a variant: its configuration says where its record goes."""

    variant: str
    cfg: TrainConfig

    @property
    def name(self) -> str:
        return str(self.cfg.output.run_name)

    @property
    def path(self) -> Path:
        return Path(self.cfg.output.out) / self.name


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is compared: a name, and the options that make it."""

    name: str
    options: Mapping[str, Any]
    """As the file has them: the base's, the variant's and the grid point's."""
    own: Mapping[str, Any]
    """Those of them that are not the base's."""
    parts: Mapping[str, str]
    """The names that it has under variants: and grid:."""
    cfg: TrainConfig
    measured_s: float | None = None
    """How long a mini-batch takes, where that was measured since nobody gave it."""

    @property
    def folder(self) -> str:
        """The name of its records' folders, without the seed."""
        return re.sub(r"[^\w.=+-]", "-", self.name.replace(" ", "+"))

    def run(self, seed: int, out: Path) -> PlannedRun:
        """Return the variant's run with this seed, whose record goes into the folder `out`."""
        output = replace(self.cfg.output, out=str(out), run_name=f"{self.folder}-s{seed}", quiet=True)
        return PlannedRun(variant=self.name, cfg=replace(self.cfg, seed=seed, output=output))


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What is tried for each variant before it is compared, on separate seeds."""

    values: Mapping[str, Mapping[str, Sequence[Any]]]
    """By the variant's name: the values tried, by option; every combination is."""
    tried: Mapping[str, Sequence[Variant]]
    """By the variant's name: what it becomes with each combination."""
    seeds: Sequence[int]
    auto: bool = False
    """Whether step sizes beyond those may be tried."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment, expanded: every variant is known to be valid."""

    name: str
    title: str
    question: str
    base: Mapping[str, Any]
    variants: Sequence[Variant]
    seeds: Sequence[int]
    tuning: Tuning | None
    target_loss: float | None
    asked: Asked
    premises: Sequence[Premise]
    """What its question takes for granted."""
    show: Sequence[Figure] | None
    folder: Path

    def runs(self) -> list[PlannedRun]:
        """Return the runs, all variants with the first seed first: cut short, it is still a comparison."""
        return [v.run(seed, self.folder) for seed in self.seeds for v in self.variants]

    def tuning_runs(self) -> list[PlannedRun]:
        """Return the runs that choose the tuned options; their records go into the folder `tuning`."""
        if not self.tuning:
            return []
        tried = [v for variants in self.tuning.tried.values() for v in variants]
        return [v.run(seed, self.folder / "tuning") for seed in self.tuning.seeds for v in tried]

    def tuned(self, chosen: Mapping[str, Variant]) -> Experiment:
        """Return the experiment with each variant as `chosen` for its name from those tried."""
        return replace(self, variants=[replace(chosen.get(v.name, v), name=v.name) for v in self.variants])


def described(option: str, value: Any) -> str:
    """Return an option and its value as the names of variants have it."""
    return f"{option}={value_text(value)}"


def value_text(value: Any) -> str:
    """Return a value as YAML has it."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
