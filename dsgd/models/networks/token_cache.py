"""The keys and values of the tokens that a transformer has seen: the next token costs the work of one.

Sequences of different lengths go through the model together, each at its own positions (Pope et al. 2022,
arXiv 2211.05102, section 2.1). A sequence must not grow beyond the cache: what would then be dropped has
gone into the keys of all later tokens, so that a window that slides is computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dsgd.models.networks.transformer import Transformer, rotary


class TokenCache:
    """Room for S sequences of at most T tokens each.

    The memory is 8 L S T d bytes, in pages that the system gives when they are first written to.
    """

    def __init__(self, module: Transformer, sequences: int, tokens: int) -> None:
        size, like = module.size, module.embed.weight
        shape = (size.layers, 2, sequences, size.heads, tokens, size.width // size.heads)
        # Zeros, not what lies there: a probability of 0 times NaN is NaN.
        self.kept = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.rotation = rotary(tokens, size.width // size.heads, like.device)
        self._module = module

    def logits(self, tokens: Tensor, places: Sequence[int], before: Sequence[int]) -> Tensor:
        """Return the logits (B, V) of the token that follows each sequence, once tokens (B, n) are added.

        places: where each sequence is in the cache, a number below S. before: how many tokens it has there.
        """
        return cast(Tensor, self._module(tokens, _Added(self, tokens.shape[1], places, before))[:, -1])


class _Added:
    """The n tokens that each of B sequences gets in a forward pass."""

    def __init__(self, cache: TokenCache, n: int, places: Sequence[int], before: Sequence[int]) -> None:
        device = cache.kept.device
        self._kept, self._length = cache.kept, max(before) + n
        self._places = torch.tensor(places, device=device)
        self._positions = torch.tensor(before, device=device)[:, None] + torch.arange(n, device=device)
        seen = torch.arange(self._length, device=device) <= self._positions[..., None]
        self._seen = seen[:, None]  # (B, 1, n, length)
        cos, sin = (part[self._positions][:, None] for part in cache.rotation)  # (B, 1, n, d/2h)
        self.rotation = cos, sin

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep the keys and values (B, h, n, d/h), and return what the queries find among all."""
        found = list[Tensor]()
        for kept, new in zip(self._kept[layer], (k, v), strict=True):  # (S, h, T, d/h)
            kept[self._places[:, None], :, self._positions] = new.transpose(1, 2)
            found.append(kept[:, :, : self._length].index_select(0, self._places))
        return scaled_dot_product_attention(q, found[0], found[1], attn_mask=self._seen)
