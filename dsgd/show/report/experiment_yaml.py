"""experiment.yaml: what the runner writes of an experiment, and its report reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field

from dsgd.process.checked_yaml import rule
from dsgd.show.report.layout import PARTS
from dsgd.show.report.premises import Premise

Figure = Literal[
    "sweep", "tuning", "loss", "time_to_target", "staleness", "timeline", "throughput", "drift",
    "scaling", "experts",
]  # fmt: skip
"""What `show:` of an experiment may name."""

FIGURES: tuple[Figure, ...] = get_args(Figure)

OF_UPDATES = ("staleness", "timeline", "drift")
"""Those of them that look into updates, and so need the records' files."""


class Tried(Struct, frozen=True, kw_only=True):
    """Values that were tried for a variant before the comparison."""

    options: Mapping[str, Any]
    median_loss: float | None = field(name="loss")
    by_seed: Mapping[int, float | None] = field(name="losses", default_factory=dict)

    @property
    def loss(self) -> float:
        """At the end, the median over the tuning's seeds; infinite if that diverged."""
        return math.inf if self.median_loss is None else self.median_loss

    @property
    def losses(self) -> dict[int, float]:
        """By seed; empty in old records."""
        return {seed: math.inf if loss is None else loss for seed, loss in self.by_seed.items()}


class Tuned(Struct, frozen=True, kw_only=True):
    """What was chosen for a variant before the comparison, and from what."""

    variant: str
    chosen: Mapping[str, Any]
    at_the_edge: Sequence[str]
    """The chosen options that are the smallest or largest value tried: a better one may lie beyond."""
    tried: Sequence[Tried]


class ComparedVariant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A variant, and where its records are."""

    name: str
    folder: Annotated[str, Meta(pattern=r"^[^/]+$"), rule("must be the name of a folder beside this file")]
    """Of its records, without the seed."""
    variants: str = ""
    grid: str = ""
    options: Mapping[str, Any] = {}
    measured_s: float | None = None
    """How long a mini-batch took, where that was measured."""

    @property
    def parts(self) -> dict[str, str]:
        """The names that it has in the file, by PARTS."""
        return {part: name for part in PARTS if (name := getattr(self, part))}


class AsTuned(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was chosen before the comparison, and on which seeds."""

    seeds: Sequence[int] = ()
    choices: Sequence[Tuned] = ()


class AsRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole file."""

    title: str | None = None
    question: str | None = None
    base: Mapping[str, Any] = {}
    variants: Annotated[Sequence[ComparedVariant], Meta(min_length=1)]
    seeds: Annotated[Sequence[int], Meta(min_length=1)] | int
    target_loss: float | None = None
    compare: str | None = None
    per: Sequence[str] = ()
    baseline: str | None = None
    measure: str | Sequence[str] = ()
    premise: Sequence[Premise] = ()
    show: Sequence[Figure] | None = None
    tuning: AsTuned | None = None
