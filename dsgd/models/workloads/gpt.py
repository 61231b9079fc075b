"""A language model: a causal transformer of a named size that predicts the next byte or token of a text."""

from __future__ import annotations

import gzip
import lzma
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from dsgd.core.option_rules import HIDDEN, Must
from dsgd.models.networks.transformer_sizes import SIZES
from dsgd.models.workloads import PYTHON
from dsgd.models.workloads._mixture import MixtureConfig

if TYPE_CHECKING:
    from dsgd.core.problem import Problem


def is_tokenizer(text: str) -> bool:
    """Whether a text is `bytes`, or `bpe:V` with a vocabulary above that of bytes."""
    name, _, size = text.partition(":")
    return text == "bytes" or (name == "bpe" and size.isdecimal() and int(size) > _BYTES)


_BYTES = 256
_COMPRESSED = 1 << 20  # bytes: a second's work for xz


@dataclass(frozen=True, kw_only=True)
class Config(MixtureConfig):
    """The language model and its text."""

    data: str | None = None
    """The text: python (the sources of torch), a .txt file, of which each byte is a token, a .bin file of
    token ids, or a folder with such files to train on and to test. The last tenth of one file is held out.
    None: Shakespeare's works, 5 MB."""

    size: Literal["100k", "1m", "5m", "11m", "30m", "124m", "350m", "1b"] = "100k"
    """The model, named by its number of weights."""

    context: Annotated[int | None, Ge(1)] = None
    """Tokens of a sample: the model sees those before each. None: what suits the size, 64 to 2048."""

    tied: Annotated[bool, HIDDEN] = True
    """One matrix embeds the tokens and predicts them."""

    tokenizer: Annotated[str, Must("must be bytes or bpe:V with a vocabulary V above 256", is_tokenizer)] = (
        "bytes"
    )
    """Tokens of a .txt file: bytes, or bpe:V, byte pairs learned from the training text."""

    eval_samples: Annotated[int, Ge(1)] = 65_536
    """Tokens of the held-out text that an evaluation reads, in windows that are spread over it."""


def make(cfg: Config) -> Problem:
    """Return the problem: a text, its last tenth held out."""
    from dsgd.core.problem import Problem
    from dsgd.models.datasets import DataError, Tokens, Windows, python_sources, shakespeare, texts
    from dsgd.models.datasets.byte_pairs import BytePairs
    from dsgd.models.moe.mixture import active_weights
    from dsgd.models.networks.sampling import Sampler, bytes_of, text_of
    from dsgd.models.networks.transformer import (
        Transformer,
        flops_per_token,
        loss_with_routing,
        next_token_loss,
    )

    if cfg.data is None:
        train, test = shakespeare()
    else:
        train, test = python_sources() if cfg.data == PYTHON else texts(cfg.data)
    size = SIZES[cfg.size]
    context = cfg.context or size.context
    is_text = train.are_bytes
    about = compressed(test.ids[:_COMPRESSED].tobytes()) if is_text else {}
    sampler = Sampler(context=context, encode=bytes_of, decode=text_of) if is_text else None
    pairs = None
    if cfg.tokenizer != "bytes":
        if not is_text:
            raise DataError(f"--tokenizer {cfg.tokenizer}: is for text, and {cfg.data} has token ids already")
        pairs = BytePairs(train.ids.tobytes(), int(cfg.tokenizer.removeprefix("bpe:")))
        sampler = Sampler(context=context, encode=pairs.ids_of, decode=pairs.text_of)
        train, test = (
            Tokens(ids=pairs.encode(part.ids.tobytes()), vocabulary=len(pairs.lengths))
            for part in (train, test)
        )
    whole = Windows(test.ids, context)
    windows = max(1, min(cfg.eval_samples // context, len(whole)))
    held_out = Windows(test.ids, context, np.linspace(0, len(whole) - 1, windows).astype(np.int64))
    if cfg.edition == 1:
        held_out = Windows(test.ids[: windows * context + 1], context)
    bytes_per_token = test.bytes_per_token
    if pairs is not None:
        bytes_per_token = float(pairs.lengths[held_out.mini_batch(range(windows))[1]].mean())
    module = Transformer(replace(size, vocabulary=train.vocabulary), tied=cfg.tied, mixture=cfg.mixture)
    flops = flops_per_token(module, context)
    about |= {"flops_per_token": flops, "flops_per_sample": flops * context}
    if cfg.mixture:
        about["active_weights"] = active_weights(module)
    return Problem(
        module,
        loss_with_routing if cfg.mixture else next_token_loss,
        Windows(train.ids, context),
        held_out,
        bytes_per_token=bytes_per_token,
        about=about,
        sample=sampler,
    )


def compressed(text: bytes) -> dict[str, Any]:
    """Return the bits a byte to which gzip and xz bring a text: what a language model should stay below."""
    return {
        f"{name}_bits_per_byte": round(8 * len(packed) / len(text), 4)
        for name, packed in (("gzip", gzip.compress(text, mtime=0)), ("xz", lzma.compress(text, preset=9)))
    }
