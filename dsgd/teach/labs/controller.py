"""What theory says of a run of the workload `router`, from its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsgd.config import TrainConfig
from dsgd.core.time_laws import Constant
from dsgd.theory import balancing


@dataclass(frozen=True)
class Controller:
    """The balancing biases of a router whose scores are uniform."""

    experts: int
    top_k: int
    step: float
    """lr balance_rate"""
    delay: int
    """Updates between the loads that are measured and the biases that answer to them."""
    tokens: int
    """Of an update."""
    begins_even: bool

    @property
    def largest_stable_step(self) -> float:
        return balancing.largest_stable_rate(1.0, self._curvature, delay=self.delay)

    @property
    def settles(self) -> bool:
        return self.step < self.largest_stable_step

    def max_violation(self, tokens: int) -> float:
        """Return the mean MaxVio of a version at rest, as so many tokens show it."""
        ours = (self.experts, self.top_k)
        at_rest = balancing.bias_variance(self.step, self._curvature, *ours, self.tokens, delay=self.delay)
        variance = self._curvature**2 * at_rest + balancing.share_noise(*ours, tokens)
        return balancing.max_violation(self.experts, variance)

    @property
    def _curvature(self) -> float:
        return balancing.curvature(self.experts, self.top_k)


def controller(cfg: TrainConfig) -> Controller | None:
    """Return a run's controller; None where theory does not know its delay.

    It does of SSGD, and of ASGD with constant and equal times, if the messages are whole.
    """
    data: Any = cfg.data
    timing, law = cfg.timing, cfg.timing.compute_law
    if data.workload != "router" or cfg.compression.results is not None or getattr(cfg, "momentum", 0.0):
        return None
    delays = {"ssgd": 0}
    if isinstance(law, Constant) and not timing.slowdowns:
        delays["asgd"] = cfg.num_workers - 1
    if cfg.mode not in delays:
        return None
    tokens = cfg.batch_size * (cfg.num_workers if cfg.mode == "ssgd" else 1)
    step = cfg.lr * data.balance_rate
    return Controller(data.experts, data.top_k, step, delays[cfg.mode], tokens, not data.unbalanced)
