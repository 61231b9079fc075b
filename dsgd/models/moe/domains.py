"""A small classifier of samples that come from several domains, with mixtures of experts for its layers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, rms_norm

from dsgd.models.moe.mixture import Mixture, penalty
from dsgd.models.moe.mixture_options import MixtureOptions


class DomainClassifier(nn.Module):
    """One mixture a layer, each added to the residual stream; each sample is a token.

    features: F, of a sample. width: d, of the residual stream, and units of an expert.
    """

    def __init__(
        self, features: int, classes: int, *, layers: int, width: int, mixture: MixtureOptions
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.layers = nn.ModuleList(Mixture(width, width, mixture) for _ in range(layers))
        self.head = nn.Linear(width, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) of x (B, F)."""
        stream = self.embed(x)  # (B, d)
        for layer in self.layers:
            stream = stream + layer(rms_norm(stream, stream.shape[-1:]))
        return cast(Tensor, self.head(rms_norm(stream, stream.shape[-1:])))


def domain_loss(module: nn.Module, x: Tensor, domain: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of a mini-batch, with what its mixtures add; the domain is not shown."""
    return cross_entropy(module(x), y) + penalty(module)


def domain_accuracy(module: nn.Module, x: Tensor, domain: Tensor, y: Tensor) -> Tensor:
    """Return the share of samples that are classified correctly."""
    guess: Tensor = module(x).argmax(1)
    return (guess == y).float().mean()


def domain_samples(
    count: int, *, domains: int, features: int, classes: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return samples x (N, F), their domains (N,) and their classes (N,).

    A sample is its domain's centre, of length 4 or so in each direction, and a normal draw u; its class is
    the largest of the domain's own linear functions of u. So what to do with a sample depends on where it
    comes from.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(domains, features, generator=generator)
    rules = torch.randn(domains, features, classes, generator=generator)
    domain = torch.randint(domains, (count,), generator=generator)
    u = torch.randn(count, features, generator=generator)
    y = torch.einsum("nf,nfc->nc", u, rules[domain]).argmax(1)
    return 2 * centres[domain] + u, domain, y
