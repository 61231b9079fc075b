"""The options of workloads whose models have mixtures of experts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from dsgd.config import DataConfig
from dsgd.core.option_forms import Form, number, parsed
from dsgd.core.option_rules import FINITE, GIVEN, OnlyWith, Parsed, require
from dsgd.models.moe.mixture_options import Balance, MixtureOptions


def balanced(text: str) -> tuple[Balance, float]:
    """Return what evens the loads out, and what a loss that does it counts.

    >>> balanced("loss:0.02")
    ('loss', 0.02)
    """
    weight = number("WEIGHT", "above 0", lambda x: 0 < x < math.inf, optional=True)
    forms: dict[str, Form[tuple[Balance, float]]] = {
        "bias": Form(lambda: ("bias", 0.01)),
        "loss": Form(lambda weight=0.01: ("loss", weight), (weight,), "loss:0.02"),
    }
    return parsed(text, forms, "none") or ("none", 0.01)


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

    balance: Annotated[str, OnlyWith(experts=GIVEN)] = "bias"
    """What evens the experts' loads out: bias (on the scores, Wang et al. 2024) | loss:WEIGHT (Switch's,
    beside the model's own; 0.01 if left out) | none."""
    balanced = Parsed("balance", balanced)

    balance_rate: Annotated[float, FINITE, Gt(0), OnlyWith(balance="bias", experts=GIVEN)] = 1.0
    """The step size of that bias, in multiples of the learning rate."""

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
            balance=self.balanced[0],
            balance_rate=self.balance_rate,
            balance_weight=self.balanced[1],
            router_z=self.router_z,
        )
