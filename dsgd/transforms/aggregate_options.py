"""How a server combines results, and which it rejects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsgd.core.aggregators import Aggregator, PreAggregation, parse_aggregator, parse_mixing
from dsgd.core.option_rules import Checked, Parsed, require
from dsgd.transforms.filters import parse_filter


def _parse(text: str) -> tuple[Aggregator | None, PreAggregation | None, str]:
    """Return what the text of --aggregate means: what makes results one, what is done before, and by what
    they are weighted.

    >>> _parse("nnm:2+krum:2"), _parse("mean,samples")
    ((Krum(f=2, m=1), NearestNeighbours(f=2), ''), (None, None, 'samples'))
    """
    name, comma, by = text.rpartition(",")
    if not comma or by not in ("samples", "speed"):
        if name == "mean":
            raise ValueError("must be mean, mean,samples or mean,speed")
        name, by = text, ""
    *before, last = name.split("+", 1)
    try:
        mixing = parse_mixing(before[0]) if before else None
    except ValueError as error:
        raise ValueError(f"before +: {error}") from None
    return parse_aggregator(last), mixing, by


@dataclass(frozen=True, kw_only=True)
class AggregateConfig(Checked):
    """How a server combines results, and which it rejects (docs/faults.md)."""

    aggregate: str = "mean"
    """How results are combined: mean; mean,samples (a worker's results count as many as it has samples) or
    mean,speed (as the mini-batches a second that it computed them at); or
    an aggregator that withstands F liars: median | trimmed:F | krum:F | multikrum:F,M | geometric |
    clip:RADIUS | bulyan:F. Before that, nnm:F+krum:F makes each result the mean of its nearest, and
    bucketing:SIZE+median takes means of so many, drawn anew each time."""
    parsed_aggregate = Parsed("aggregate", _parse)

    filter: str = "none"
    """Which results are rejected as possible lies, where each is applied as it comes: none | kardam:F (those
    that change too fast, or come from one worker too often) | zeno:RHO,EPSILON (those that do not lead down
    by the gradient of worker 0, which is trusted)."""
    filtered = Parsed("filter", parse_filter)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = (
            "a lie moves a mean as far as it wants, also after mixing; give an aggregator, like nnm:2+krum:2"
        )
        require(self.aggregator is not None or self.mixing is None, "aggregate", self.aggregate, rule)
        rule = "samples and speed can weight only a mean, as a liar could claim any of them; leave them out"
        require(self.aggregator is None or not self.parsed_aggregate[2], "aggregate", self.aggregate, rule)

    @property
    def aggregator(self) -> Aggregator | None:
        """What makes results one; None: the mean."""
        return self.parsed_aggregate[0]

    @property
    def mixing(self) -> PreAggregation | None:
        """What is done to the results before."""
        return self.parsed_aggregate[1]

    @property
    def by_samples(self) -> bool:
        """Whether a worker's results count as many as it has samples."""
        return self.parsed_aggregate[2] == "samples"

    @property
    def by_speed(self) -> bool:
        """Whether they count as the speed at which it computed them."""
        return self.parsed_aggregate[2] == "speed"

    @property
    def least(self) -> int:
        """How many results an update needs."""
        rows = self.aggregator.least if self.aggregator else 1
        return self.mixing.least(rows) if self.mixing else rows

    def require_possible(self, run: Any) -> None:
        """Raise ValueError if an update of the run has too few results for these options, or no samples."""
        rule = f"--workload {run.data.name} has no samples to count; use --aggregate mean alone"
        counted = not self.by_samples or run.data.name not in ("quadratic", "none")
        require(counted, "aggregate", self.aggregate, rule)
        mode, results, num_workers = run.mode, run.results_per_update, run.num_workers
        for option, default in (("aggregate", "mean"), ("filter", "none")):
            rule = f"needs a server, and --mode {mode} has none; leave it out"
            require(results > 0 or getattr(self, option) == default, option, getattr(self, option), rule)
        if not results:
            return
        averages = results > 1 or num_workers == 1
        rule = f"--mode {mode} applies one result at a time; use one that averages, like kasync, or --filter"
        require(averages or self.aggregate == "mean", "aggregate", self.aggregate, rule)
        filtered = self.filtered
        rule = f"--mode {mode} averages results; give --aggregate, like trimmed:1"
        require(filtered is None or results == 1, "filter", self.filter, rule)
        least = filtered.least if filtered else 1
        rule = f"needs {least} workers or more; add workers{', or lower F' * (least > 2)}"
        require(num_workers >= least, "filter", self.filter, rule)
        rule = f"needs {self.least} results an update, and gets {results}; add workers, or lower F"
        require(self.least <= results, "aggregate", self.aggregate, rule)
