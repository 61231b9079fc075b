"""The options of workloads whose models have mixtures of experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from dsgd.config import DataConfig
from dsgd.core.option_rules import FINITE, GIVEN, OnlyWith, require
from dsgd.models.moe.mixture_options import MixtureOptions


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(DataConfig):
    """Mixtures of experts."""

    experts: Annotated[int | None, Ge(1)] = None
    """E, experts of each layer, in place of its perceptron. None: the perceptron."""

    top_k: Annotated[int, Ge(1), OnlyWith(experts=GIVEN)] = 2
    """K, the experts that each token is given to, at most E."""

    capacity: Annotated[float, Gt(0), OnlyWith(experts=GIVEN)] = math.inf
    """Most tokens of an expert in a training pass, in multiples of the mean T K / E; the rest is dropped,
    second choices first. inf: none is."""

    balance: Annotated[Literal["bias", "loss", "none"], OnlyWith(experts=GIVEN)] = "bias"
    """What evens the experts' loads out: a bias on the scores (Wang et al. 2024), Switch's loss, or
    nothing."""

    balance_rate: Annotated[float, FINITE, Gt(0), OnlyWith(balance="bias", experts=GIVEN)] = 1.0
    """The step size of that bias, in multiples of the learning rate."""

    balance_weight: Annotated[float, FINITE, Gt(0), OnlyWith(balance="loss", experts=GIVEN)] = 0.01
    """What Switch's loss counts beside the model's own."""

    router_z: Annotated[float, FINITE, Ge(0), OnlyWith(experts=GIVEN)] = 0.0
    """What the router's z-loss counts (ST-MoE: 0.001)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts is not None:
            rule = f"must be at most --experts {self.experts}, which is all there are; lower it"
            require(self.top_k <= self.experts, "top_k", self.top_k, rule)

    @property
    def mixture(self) -> MixtureOptions | None:
        """The mixture that a layer has; None: a perceptron."""
        if self.experts is None:
            return None
        return MixtureOptions(
            experts=self.experts,
            top_k=self.top_k,
            capacity=None if math.isinf(self.capacity) else self.capacity,
            balance=self.balance,
            balance_rate=self.balance_rate,
            balance_weight=self.balance_weight,
            router_z=self.router_z,
        )
