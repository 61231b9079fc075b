"""A module with a hook on what flows back through it, of the kind that `--hook` names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from dsgd import DataConfig, Problem

HOOKS = Literal["rows", "clamp", "method", "halved", "replaced", "dropped", "module", "inputs", "function"]


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    hook: HOOKS = "rows"


def halve(parameter: Any) -> None:
    parameter.grad *= 0.5


class Rounded(torch.autograd.Function):
    """Rounds to tenths, with the gradient of what was rounded (straight-through)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rounded: Tensor = (10 * x).round() / 10
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return gradient


class Words(nn.Module):
    def __init__(self, hook: str) -> None:
        super().__init__()
        self.words, self.out, self.rounds = nn.Embedding(8, 4), nn.Linear(4, 1), hook == "function"
        self.register_buffer("keep", (torch.arange(8) % 2).float()[:, None])
        weight: Any
        out: Any
        weight, out = self.words.weight, self.out
        match hook:
            case "rows":
                weight.register_hook(lambda g: g * cast(Tensor, self.keep))
            case "clamp":
                for parameter in self.parameters():
                    cast(Any, parameter).register_hook(lambda g: g.clamp(-0.01, 0.01))
            case "method":
                weight.register_hook(self.kept)
            case "halved":
                weight.register_post_accumulate_grad_hook(halve)
            case "replaced":
                weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.sign()))
            case "dropped":
                weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
            case "module":
                out.register_full_backward_hook(lambda part, inputs, _: (inputs[0] / 2,))
            case "inputs":
                out.register_full_backward_pre_hook(lambda part, outputs: (outputs[0] / 3,))

    def kept(self, g: Tensor) -> Tensor:
        kept: Tensor = g * cast(Tensor, self.keep)
        return kept

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.words(x))[:, 0]
        rounded: Any = Rounded
        return cast(Tensor, rounded.apply(found)) if self.rounds else found


def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = (module(x) - y).square().mean()
    return found


def make(cfg: Config) -> Problem:
    data = torch.arange(64) % 8, torch.randn(64)
    return Problem(Words(cfg.hook), loss, data, data)
