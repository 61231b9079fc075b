"""What a mixture of experts is, as data: known without torch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Balance = Literal["bias", "loss", "none"]


@dataclass(frozen=True, kw_only=True)
class MixtureOptions:
    """How many experts there are, who chooses among them, and what keeps their loads alike."""

    experts: int
    """E."""
    top_k: int
    """K, the experts of a token; at most E."""
    capacity: float | None = None
    """Most tokens of an expert in a training pass, in multiples of the mean, T K / E; None: any number."""
    balance: Balance = "bias"
    """What evens the loads out: a bias on the scores, a loss, or nothing."""
    balance_rate: float = 1.0
    """The bias' step size, in multiples of the learning rate."""
    balance_weight: float = 0.01
    """That of the balancing loss."""
    router_z: float = 0.0
    """That of the router's z-loss."""
