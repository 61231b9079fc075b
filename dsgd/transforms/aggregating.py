"""`--aggregate`, `--mix`, `--weights` and `--filter`: how any engine makes one direction of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsgd.config import TrainConfig
from dsgd.core.aggregators import Aggregation, Bucketing
from dsgd.core.protocol import ClusterError, Done, Engine
from dsgd.core.rules import Chain, Rule
from dsgd.core.weights import Weights
from dsgd.data import Workload
from dsgd.transforms.around import Around
from dsgd.transforms.filters import Filter, Kardam


def aggregation_of(cfg: TrainConfig, workload: Workload) -> Aggregation | None:
    """Return how the results of a run are aggregated; None: by their mean."""
    asked = cfg.aggregation
    mix = asked.mixing
    if isinstance(mix, Bucketing):
        mix = replace(mix, seed=cfg.seed)
    shards: Sequence[Any] = workload.shards
    samples = tuple(map(len, shards)) if asked.weights == "samples" else None
    found = Aggregation(asked.aggregator, mix, samples)
    return None if found == Aggregation() else found


def filter_of(cfg: TrainConfig) -> Filter | None:
    """Return what looks at each result before it is applied, if anything does."""
    asked = cfg.aggregation.filtered
    return replace(asked, workers=cfg.num_workers) if isinstance(asked, Kardam) else asked


class Aggregating(Around):
    """Has every rule of a strategy aggregate, and filter, as the options say.

    text: the option, for messages.
    """

    def __init__(
        self, inner: Engine, aggregation: Aggregation | None, filtering: Filter | None, text: str
    ) -> None:
        super().__init__(inner)
        self._aggregation, self._filter, self._text = aggregation, filtering, text
        self._rule: Rule | None = None

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        """Aggregate; raises ClusterError for too few results, and for a rule that is no chain of parts."""
        needed = self._aggregation.least if self._aggregation else 1
        if len(dones) < needed:
            raise ClusterError(
                f"--{self._text}: needs {needed} results an update, and update {w.version + 1} has "
                f"{len(dones)}, as members are missing; keep more (--on-loss, --min-workers), or lower F"
            )
        if rule is not self._rule:
            if not isinstance(rule, Chain):
                raise ClusterError(
                    f"--{self._text}: the strategy's rule, a {type(rule).__name__}, is no chain of "
                    "parts; make it with dsgd.core.rules.chain"
                )
            if self._filter and rule.of_weights:
                raise ClusterError(
                    f"--{self._text}: looks at gradients, and this strategy's rule is of weights"
                )
            self._rule = self._changed = rule
            if self._aggregation:
                self._changed = self._changed.aggregated(self._aggregation)
            if self._filter:
                self._changed = self._changed.preceded_by(self._filter)
        return self.inner.combine(self._changed, w, dones)
