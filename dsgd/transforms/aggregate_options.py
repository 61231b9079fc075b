"""How a server makes one direction of several results, and which it does not apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from dsgd.core.aggregators import parse_aggregator, parse_mixing
from dsgd.core.option_rules import Checked, OnlyWith, Parsed, require
from dsgd.transforms.filters import parse_filter


@dataclass(frozen=True, kw_only=True)
class AggregateConfig(Checked):
    """How a server makes one direction of several results (docs/robustness.md)."""

    aggregate: str = "mean"
    """How results are made one: mean, or what withstands F liars: median | trimmed:F | krum:F |
    multikrum:F,M | geometric | clip:RADIUS | bulyan:F."""
    aggregator = Parsed("aggregate", parse_aggregator)

    mix: str = "none"
    """What is done to the results before: none | nnm:F (each becomes the mean of its nearest) |
    bucketing:SIZE (means of so many, drawn anew each time)."""
    mixing = Parsed("mix", parse_mixing)

    weights: Annotated[Literal["equal", "samples"], OnlyWith(dataset=("xor", "digits"))] = "equal"
    """What each worker's results count in a mean. samples: as many as the worker has samples."""

    filter: str = "none"
    """Where each result is applied as it comes, which ones are not, as they may be lies: none | kardam:F
    (those that have changed too fast, or are one worker's too often) | zeno:RHO,EPSILON (those that worker
    0, which is trusted, finds not to lead down)."""
    filtered = Parsed("filter", parse_filter)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "a lie moves a mean as far as it wants, also after mixing; give an --aggregate that limits it"
        require(self.aggregator is not None or self.mixing is None, "mix", self.mix, rule)
        rule = f"weights a mean, and --aggregate {self.aggregate} is none: a liar could claim any number"
        require(self.aggregator is None or self.weights == "equal", "weights", self.weights, rule)

    @property
    def least(self) -> int:
        """How many results an update needs."""
        rows = self.aggregator.least if self.aggregator else 1
        return self.mixing.least(rows) if self.mixing else rows

    def require_enough(self, mode: str, results: int, num_workers: int) -> None:
        """Raise ValueError if an update of so many results is too small for these options."""
        for option, default in (("aggregate", "mean"), ("weights", "equal"), ("filter", "none")):
            rule = f"is a server's, and --mode {mode} has none; leave it out"
            require(results > 0 or getattr(self, option) == default, option, getattr(self, option), rule)
        if not results:
            return
        for option, default in (("aggregate", "mean"), ("weights", "equal")):
            value, averages = getattr(self, option), results > 1 or num_workers == 1
            rule = (
                f"--mode {mode} applies one result at a time; use one that averages, like kasync, or --filter"
            )
            require(averages or value == default, option, value, rule)
        filtered = self.filtered
        rule = f"--mode {mode} averages results; give --aggregate, like trimmed:1"
        require(filtered is None or results == 1, "filter", self.filter, rule)
        least = filtered.least if filtered else 1
        rule = f"needs {least} workers or more; add workers{', or lower F' * (least > 2)}"
        require(num_workers >= least, "filter", self.filter, rule)
        mixed = f" with --mix {self.mix}" if self.mixing else ""
        rule = f"needs {self.least} results an update{mixed}, and gets {results}; add workers, or lower F"
        require(self.least <= results, "aggregate", self.aggregate, rule)
