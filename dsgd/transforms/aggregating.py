"""`--aggregate`, `--mix`, `--weights` and `--filter`: how any engine makes one direction of results."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.core.aggregators import Aggregation
from dsgd.core.protocol import ClusterError, Done, Engine
from dsgd.core.rules import Chain, Rule
from dsgd.core.weights import Weights
from dsgd.transforms.filters import Filter
from dsgd.transforms.wrapped_engine import WrappedEngine


class Aggregating(WrappedEngine):
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
