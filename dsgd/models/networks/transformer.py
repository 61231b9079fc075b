"""A causal transformer in its plain present form, for tokens or bytes.

Normalization before each part (RMSNorm, Zhang & Sennrich 2019, arXiv 1910.07467), rotary positions (Su et al.
2021, arXiv 2104.09864), normalized queries and keys (Henry et al. 2020, arXiv 2010.04245), squared rectified
linear units (So et al. 2021, arXiv 2109.08668), no biases. The norms have no gains: all weights are matrices,
so one weight decay suits them all.

Shapes: B sequences, T tokens, d width, h heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, rms_norm, scaled_dot_product_attention

from dsgd.models.moe.mixture import Mixture, active_weights, penalty
from dsgd.models.moe.mixture_options import MixtureOptions
from dsgd.models.networks.transformer_sizes import TransformerSize

_ROTARY_BASE = 10_000.0
_EMBEDDING_STD = 0.02
_LOGIT_WIDTH = 64  # at this width, tied embeddings give the logits as they are


Attention: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From queries, keys and values (B, h, T, d/h) to the outputs (B, h, T, d/h)."""


class Past(Protocol):
    """What a batch of sequences had before the tokens of a forward pass."""

    rotation: tuple[Tensor, Tensor]
    """What `rotary` returns, for the positions of these tokens."""

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Add the keys and values (B, h, T, d/h) of these tokens to those before, and attend to all."""
        ...


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True)


class Transformer(nn.Module):
    """Predicts each next token of a sequence.

    tied: whether one matrix embeds the tokens and gives the logits, which are then scaled by 64/d, so that
    they start small at any width (Yang et al. 2022, arXiv 2203.03466, table 8). mixture: each layer has a
    mixture of perceptrons in place of one.
    """

    def __init__(
        self, size: TransformerSize, *, tied: bool = True, mixture: MixtureOptions | None = None
    ) -> None:
        super().__init__()
        self.size, self.tied = size, tied
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(TransformerBlock(size, mixture) for _ in range(size.layers))
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        nn.init.normal_(self.embed.weight, std=_EMBEDDING_STD)
        if tied:
            self.head.weight = self.embed.weight
        else:
            nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor, past: Past | None = None) -> Tensor:
        """Return the logits (B, T, V) of the token that follows each of tokens (B, T); T may be any.

        past: what the same sequences had before these tokens (dsgd/models/networks/token_cache.py).
        """
        x = _norm(self.embed(tokens))  # (B, T, d)
        if past is None:
            rotation = rotary(tokens.shape[-1], self.size.width // self.size.heads, tokens.device)
            for block in self.blocks:
                x = block(x, rotation)
        else:
            for number, block in enumerate(self.blocks):
                x = block(x, past.rotation, partial(past.attention, number))
        scale = _LOGIT_WIDTH / self.size.width if self.tied else 1.0
        return cast(Tensor, self.head(_norm(x) * scale))


class TransformerBlock(nn.Module):
    """Attention, then a perceptron with one hidden layer, or a mixture of them; each adds to the residual
    stream.
    """

    def __init__(self, size: TransformerSize, mixture: MixtureOptions | None = None) -> None:
        super().__init__()
        d, hidden = size.width, size.expansion * size.width
        self.heads = size.heads
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.mixture = Mixture(d, hidden, mixture) if mixture else None
        perceptron = []
        if self.mixture is None:
            self.up = nn.Linear(d, hidden, bias=False)
            self.down = nn.Linear(hidden, d, bias=False)
            perceptron = [self.up, self.down]
        for layer in (self.qkv, self.out, *perceptron):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        last = self.mixture.down if self.mixture else self.down.weight
        with torch.no_grad():  # 2 L terms add up in the residual stream (Radford et al. 2019, section 2.3)
            for matrix in (self.out.weight, last):
                matrix.div_(math.sqrt(2 * size.layers))

    def forward(
        self, x: Tensor, rotation: tuple[Tensor, Tensor], attention: Attention = _causal_attention
    ) -> Tensor:
        """Return the residual stream (B, T, d) after this block."""
        b, t, d = x.shape
        q, k, v = self.qkv(_norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # (B, h, T, d/h)
        q, k = rotated(_norm(q), rotation), rotated(_norm(k), rotation)
        y = attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        if self.mixture is not None:
            return cast(Tensor, x + self.mixture(_norm(x)))
        return cast(Tensor, x + self.down(relu(self.up(_norm(x))).square()))


def _norm(x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:])


def rotary(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines (T, width/2) by which positions rotate pairs of features."""
    frequency = _ROTARY_BASE ** -(torch.arange(0, width, 2, device=device) / width)
    angle = torch.arange(length, device=device)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate the features (…, T, width), number i with number i + width/2, by their positions."""
    cos, sin = (part.to(x.dtype) for part in rotation)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def next_token_loss(module: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy, in nats a token, of the ids (B, T) that follow the tokens (B, T)."""
    return cross_entropy(module(tokens).flatten(0, 1), following.flatten())


def loss_with_routing(module: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    """Return the same, with what the module's mixtures of experts add in training."""
    return next_token_loss(module, tokens, following) + penalty(module)


def flops_per_token(module: Transformer, context: int) -> int:
    """Return the floating point operations of a token's gradient: 6 N + 12 L d T.

    N: the weights that multiply: looking up an embedding costs nothing, and neither do the experts that do
    not get the token. Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, appendix B); causal attention needs half
    of its term, which by convention counts in full.
    """
    weights = active_weights(module)
    looked_up = 0 if module.tied else module.embed.weight.numel()
    return 6 * (weights - looked_up) + 12 * module.size.layers * module.size.width * context
