"""A language model: a causal transformer of a named size that predicts the next byte or token of a text."""

from __future__ import annotations

import gzip
import lzma
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from dsgd.config import DataConfig
from dsgd.models.transformer_sizes import SIZES

if TYPE_CHECKING:
    from dsgd.work.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Config(DataConfig):
    """The language model and its text."""

    size: Literal["100k", "1m", "5m", "11m", "30m", "124m", "350m", "1b"] = "100k"
    """The model, named by its number of weights."""

    context: Annotated[int | None, Ge(1)] = None
    """Tokens of a sample: the model sees those before each. None: what suits the size, 64 to 2048."""

    tied: bool = True
    """One matrix embeds the tokens and predicts them."""

    eval_tokens: Annotated[int, Ge(1)] = 65_536
    """Tokens of the held-out text that an evaluation reads, from its beginning."""


def make(cfg: Config) -> Problem:
    """Return the problem: Shakespeare's works, the last tenth held out."""
    from dsgd.datasets import Windows, shakespeare
    from dsgd.models.transformer import Transformer, flops_per_token, next_token_loss
    from dsgd.work.problem import Problem

    train, test = shakespeare()
    size = SIZES[cfg.size]
    context = cfg.context or size.context
    module = Transformer(replace(size, vocabulary=train.vocabulary), tied=cfg.tied)
    held_out = test.ids[: max(cfg.eval_tokens // context, 1) * context + 1]
    flops = flops_per_token(module, context)
    about = {"flops_per_token": flops, "flops_per_sample": flops * context, "tokens_per_sample": context}
    if train.vocabulary == 256:
        about |= compressed(bytes(test.ids))
    return Problem(
        module,
        next_token_loss,
        Windows(train.ids, context),
        Windows(held_out, context),
        bytes_per_token=test.bytes_per_token,
        about=about,
    )


def compressed(text: bytes) -> dict[str, Any]:
    """Return the bits a byte to which gzip and xz bring a text: what a language model should stay below."""
    return {
        f"{name}_bits_per_byte": round(8 * len(packed) / len(text), 4)
        for name, packed in (("gzip", gzip.compress(text, mtime=0)), ("xz", lzma.compress(text, preset=9)))
    }
