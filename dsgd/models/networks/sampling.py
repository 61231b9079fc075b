"""Text from a language model: each token is drawn from what the model predicts after those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How a module that gives the logits (B, T, V) of ids (B, T) continues a text: `Problem.sample`.

    encode, decode: from text to ids and back. context: T, the most ids that the module sees at once.
    """

    context: int
    encode: Callable[[str], Sequence[int]]
    decode: Callable[[Sequence[int]], str]

    def __call__(self, module: nn.Module, prompt: str, *, tokens: int, temperature: float, seed: int) -> str:
        """Return what follows the prompt, in so many tokens; the same again for the same seed.

        temperature: the logits are divided by it before a token is drawn; 0 takes the most probable one.
        Raises ValueError for a prompt without tokens, and for predictions that are not finite.
        """
        import torch

        ids = torch.tensor([int(token) for token in self.encode(prompt)])
        if not len(ids):
            raise ValueError("the prompt is empty; begin the text with a letter, or with a line break")
        generator = torch.Generator().manual_seed(seed)
        length = len(ids)
        with torch.no_grad():
            for _ in range(tokens):
                logits = module(ids[-self.context :][None])[0, -1].float()
                ids = torch.cat([ids, drawn(logits, temperature, generator)])
        return self.decode(ids[length:].tolist())


def drawn(logits: Tensor, temperature: float, generator: Generator, top_p: float = 1.0) -> Tensor:
    """Return the id (1,) drawn from the logits (V,).

    top_p: the least probability of the most probable tokens among which it is drawn (nucleus sampling,
    Holtzman et al. 2020, arXiv 1904.09751, section 3.1). Raises ValueError for logits that are not finite.
    """
    import torch

    if not torch.isfinite(logits).all():
        raise ValueError("the model's predictions are not finite; its run has diverged")
    if temperature == 0:
        return logits.argmax(keepdim=True)
    p = (logits / temperature).softmax(0)
    if top_p < 1:
        most, ids = p.sort(descending=True, stable=True)
        p = p.index_fill(0, ids[most.cumsum(0) - most >= top_p], 0.0)
    return torch.multinomial(p, 1, generator=generator)


def bytes_of(text: str) -> Sequence[int]:
    """Return the bytes of a text, as ids."""
    return text.encode()


def text_of(ids: Sequence[int]) -> str:
    """Return bytes as a text; those that are no UTF-8, like half a letter at the end, become a mark."""
    return bytes(ids).decode(errors="replace")
