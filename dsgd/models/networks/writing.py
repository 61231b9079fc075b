"""Texts that a language model writes token by token, those of many callers in one forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsgd.models.networks.sampling import Sampler, drawn
from dsgd.models.networks.token_cache import TokenCache
from dsgd.models.networks.transformer import Transformer
from dsgd.process.batching import Batcher

_HALF = "\ufffd"  # what decoders make of half a letter


class TextRequest(NamedTuple):
    """A text to go on with."""

    prompt: str
    tokens: int
    temperature: float
    """The logits are divided by it before a token is drawn; 0 takes the most probable one."""
    top_p: float
    """How probable together the most probable tokens must be among which one is drawn."""
    seed: int
    stop: Sequence[str] = ()
    """Texts before which it ends."""
    logprobs: int | None = None
    """How many of the most probable tokens to list beside each, with the logarithms of their probability."""


class Piece(NamedTuple):
    """What a token adds to a text."""

    text: str
    """Empty while a later token may still change or stop it."""
    read: int
    """Tokens of the prompt."""
    reason: str | None = None
    """Why the text ends: `stop` or `length`; None before the last piece."""
    logprobs: dict[str, list[Any]] | None = None
    """Before the temperature, in OpenAI's form."""


class Writer:
    """Continues texts with a module that gives the logits (B, T, V) of ids (B, T), as `Sampler` does alone.

    A transformer of this project keeps the keys and values of what it has read, until a text is longer than
    its context; from there on, and with modules of users, a token costs a window of that length.
    """

    def __init__(self, module: Any, sampler: Sampler, batches: Batcher) -> None:
        self._module, self._sampler, self._batches = module, sampler, batches
        is_ours = isinstance(module, Transformer)
        self._cache = TokenCache(module, batches.most, sampler.context) if is_ours else None
        self._places = asyncio.Queue[int]()  # in the cache; who finds none waits
        for place in range(batches.most):
            self._places.put_nowait(place)

    async def pieces(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        """Yield a piece for each token.

        Raises ValueError for a prompt without tokens, and for predictions that are not finite; BusyError.
        """
        prompt = [int(token) for token in self._sampler.encode(request.prompt)]
        if not prompt:
            raise ValueError("the prompt is empty; begin the text with a letter, or with a line break")
        written, text, sent = list[int](), "", 0
        async with aclosing(self._tokens(prompt, request)) as tokens:
            async for id, logits in tokens:
                written.append(id)
                logprobs = (
                    None if request.logprobs is None else self._logprobs(request.logprobs, id, logits, text)
                )
                text = self._sampler.decode(written)
                found = [at for stop in request.stop if (at := text.find(stop)) >= 0]
                reason = "stop" if found else "length" if len(written) == request.tokens else None
                end = min(found, default=len(text)) if reason else _settled(text, request.stop)
                yield Piece(text[sent:end], len(prompt), reason, logprobs)
                sent = max(sent, end)
                if reason:
                    return

    async def _tokens(self, ids: list[int], request: TextRequest) -> AsyncGenerator[tuple[int, Tensor], None]:
        """Yield each id, and the logits (V,) from which it was drawn."""
        generator = torch.Generator().manual_seed(request.seed)
        ids, kept, place = [*ids], 0, await self._places.get()
        try:
            for _ in range(request.tokens):
                if self._cache and len(ids) <= self._sampler.context:
                    new = ids[kept:]
                    asked = self._batches.ask(self._kept, len(new), (new, place, kept), hurry=kept > 0)
                    kept = len(ids)
                else:
                    window = ids[-self._sampler.context :]
                    asked = self._batches.ask(
                        self._in_window, len(window), window, hurry=len(ids) > len(window)
                    )
                logits = await asked
                ids.append(int(drawn(logits, request.temperature, generator, request.top_p)))
                yield ids[-1], logits
        finally:
            self._places.put_nowait(place)

    @torch.inference_mode()
    def _kept(self, values: Sequence[tuple[list[int], int, int]]) -> Tensor:
        assert self._cache
        tokens, places, kept = zip(*values, strict=True)
        return self._cache.logits(torch.tensor(tokens), places, kept).float()

    @torch.inference_mode()
    def _in_window(self, values: Sequence[list[int]]) -> Tensor:
        logits: Tensor = self._module(torch.tensor(values))
        return logits[:, -1].float()

    def _logprobs(self, count: int, id: int, logits: Tensor, before: str) -> dict[str, list[Any]]:
        def name(id: int) -> str:
            text = self._sampler.decode([id])
            return f"token:{id}" if _HALF in text else text

        logprobs = logits.log_softmax(0)
        most = logprobs.topk(min(count, len(logprobs))).indices.tolist()
        return {
            "tokens": [name(id)],
            "token_logprobs": [float(logprobs[id])],
            "top_logprobs": [{name(other): float(logprobs[other]) for other in most}],
            "text_offset": [len(before)],
        }


def _settled(text: str, stops: Sequence[str]) -> int:
    """Return how much of a text is neither half a letter nor what a stop may begin with."""
    text = text.rstrip(_HALF)
    begun = (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n]))
    return len(text) - max(begun, default=0)
