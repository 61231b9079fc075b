"""The named sizes of the transformer, as data: known without torch, for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TransformerSize:
    """The shape of a transformer."""

    layers: int
    width: int
    """d, of the residual stream; a multiple of 2 * heads."""
    heads: int
    context: int
    """T, tokens of a training window. The weights do not depend on it: positions are rotations."""
    vocabulary: int
    """Different tokens."""
    expansion: int = 4
    """Units of a layer's perceptron, in multiples of the width."""


_BYTES = 256

SIZES: Mapping[str, TransformerSize] = {
    "100k": TransformerSize(layers=2, width=64, heads=4, context=64, vocabulary=_BYTES, expansion=3),
    "1m": TransformerSize(layers=5, width=128, heads=4, context=256, vocabulary=_BYTES),
    "5m": TransformerSize(layers=6, width=256, heads=8, context=256, vocabulary=_BYTES),
    "11m": TransformerSize(layers=6, width=384, heads=6, context=256, vocabulary=_BYTES),
    "30m": TransformerSize(layers=8, width=512, heads=8, context=512, vocabulary=8192),
    "124m": TransformerSize(layers=12, width=768, heads=12, context=1024, vocabulary=50304),
    "350m": TransformerSize(layers=24, width=1024, heads=16, context=1024, vocabulary=50304),
    "1b": TransformerSize(layers=24, width=1792, heads=14, context=2048, vocabulary=32768),
}
"""A name is the number of weights, with tied embeddings and that vocabulary, to 5 %."""
