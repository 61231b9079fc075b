"""A router alone: tokens have drawn scores, and only the biases that balance its experts are trained.

It is a mixture of experts of which all else is frozen, so a run shows what a strategy does to the balance,
and nothing more. Scores are independent and uniform on [0, 1]: dsgd/theory/balancing.py knows the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt

from dsgd.config import DataConfig
from dsgd.core.option_rules import HIDDEN, require

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dsgd.core.problem import Problem

_TRAIN, _TEST = 32_768, 8_192  # tokens; a sample is one


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """The router."""

    experts: Annotated[int, Ge(2)] = 8
    """Experts, E."""

    top_k: Annotated[int, Ge(1)] = 2
    """Experts of a token, K."""

    balance_rate: Annotated[float, Gt(0)] = 1.0
    """Step size of the balancing bias, in multiples of the learning rate."""

    unbalanced: Annotated[float, Ge(0), HIDDEN] = 0.0
    """How far apart the first and the last expert's bias begin. Scores lie between 0 and 1."""

    expected: Annotated[bool, HIDDEN] = False
    """Take the expected loads of a mini-batch for its own: a balance without chance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = f"must be below --experts {self.experts}, or there is nothing to choose; lower it"
        require(self.top_k < self.experts, "top_k", self.top_k, rule)


def nothing(rows: Tensor, load: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return the experts' rows as they are: an expert that computes nothing."""
    return rows


def loss(module: nn.Module, x: Tensor) -> Tensor:
    """Return 0, with the errors of the shares of the load as its gradient, for tokens x (T, E)."""
    from dsgd.models.moe.mixture import penalty

    module(x)
    return x.new_zeros(()) + penalty(module)


def expected_loss(module: nn.Module, x: Tensor) -> Tensor:
    """Return 0, with the errors of the expected shares as its gradient, whatever the tokens."""
    import torch

    from dsgd.models.moe.mixture import Mixture
    from dsgd.theory.balancing import expected_shares

    assert isinstance(module, Mixture)
    bias, options = module.balance.detach(), module.options
    shares = expected_shares(options.balance_rate * bias.double().numpy(), options.top_k)
    return torch.from_numpy(shares - 1 / len(bias)).float() @ (module.balance - bias)


def make(cfg: Config) -> Problem:
    """Return the router and its tokens."""
    import torch

    from dsgd.core.problem import Problem
    from dsgd.models.moe.mixture import Mixture
    from dsgd.models.moe.mixture_options import MixtureOptions

    experts = cfg.experts
    options = MixtureOptions(experts=experts, top_k=cfg.top_k, balance_rate=cfg.balance_rate)
    mixture = Mixture(experts, 1, options).requires_grad_(False)
    mixture.compute = nothing
    mixture.router.copy_(torch.eye(experts))  # a token's features are the logits of its scores
    mixture.balance.copy_(torch.linspace(-0.5, 0.5, experts) * cfg.unbalanced / cfg.balance_rate)
    mixture.balance.requires_grad_(True)
    x = torch.rand(_TRAIN + _TEST, experts).logit(eps=1e-6)
    minimised = expected_loss if cfg.expected else loss
    return Problem(mixture, minimised, train=(x[:_TRAIN],), test=(x[_TRAIN:],))
