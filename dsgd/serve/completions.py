"""Texts in the form of OpenAI's API: /v1/models and /v1/completions.

Its reference: https://platform.openai.com/docs/api-reference/completions. A field that asks for what is not
there is refused by its name.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from dsgd.models.networks.writing import Piece, TextRequest
from dsgd.process.batching import BusyError
from dsgd.serve.versions import Catalog, Meters, RefusedError, Version

_Prompt = Annotated[str, Field(min_length=1)]


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class CompletionRequest(BaseModel):
    """A text to go on with."""

    model_config = ConfigDict(extra="forbid")

    model: str
    prompt: _Prompt | Annotated[list[_Prompt], Field(min_length=1, max_length=64)] = "\n"
    max_tokens: Annotated[int, Field(ge=1, le=4096)] = 16
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    n: Annotated[int, Field(ge=1, le=16)] = 1
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**62)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: dict[str, Literal[0]] | None = None
    suffix: Literal[""] | None = None

    def texts(self) -> list[TextRequest]:
        """Return the texts that are asked for, with seeds that differ."""
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        seed = secrets.randbits(61) if self.seed is None else self.seed
        how = self.max_tokens, self.temperature, self.top_p
        ends = [text for text in stop if text], self.logprobs
        each = enumerate(prompt for prompt in prompts for _ in range(self.n))
        return [TextRequest(prompt, *how, seed + i, *ends) for i, prompt in each]


class _Completion:
    """The texts of one request, while they are written."""

    def __init__(self, asked: CompletionRequest, version: Version, meters: Meters) -> None:
        self._asked, self._version, self._meters = asked, version, meters
        self._texts, self._began_s = asked.texts(), time.monotonic()
        self._read = [0] * len(self._texts)
        self._written = 0
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),  # noqa: TID251 - a label
            "model": version.name,
        }

    async def pieces(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Yield the pieces of all texts as they come, each with the number of its text."""
        came, labels = asyncio.Queue[Any](), (self._version.model, self._version.name)

        async def write(i: int, text: TextRequest) -> None:
            try:
                async for piece in self._version.pieces(text):
                    came.put_nowait((i, piece))
                came.put_nowait((i, None))
            except Exception as error:  # raised where it can be answered
                came.put_nowait((i, error))

        tasks = [asyncio.create_task(write(i, text)) for i, text in enumerate(self._texts)]
        try:
            left = len(tasks)
            while left:
                i, piece = await came.get()
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    left -= 1
                    continue
                if not self._written:
                    self._meters.first.labels(*labels).observe(time.monotonic() - self._began_s)
                self._read[i], self._written = piece.read, self._written + 1
                self._meters.tokens.labels(*labels).inc()
                yield i, piece
        finally:
            for task in tasks:
                task.cancel()

    def usage(self) -> dict[str, int]:
        read, written = sum(self._read), self._written
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

    async def whole(self) -> dict[str, Any]:
        """Return the answer once all is written."""
        choices = [_choice(i, Piece("", 0)) for i in range(len(self._texts))]
        async with aclosing(self.pieces()) as pieces:
            async for i, piece in pieces:
                choice = choices[i]
                choice["text"] += piece.text
                choice["finish_reason"] = piece.reason
                for name, values in (piece.logprobs or {}).items():
                    choice["logprobs"] = choice["logprobs"] or {}
                    choice["logprobs"].setdefault(name, []).extend(values)
        return self.head | {"choices": choices, "usage": self.usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as it is written."""
        try:
            async with aclosing(self.pieces()) as pieces:
                async for i, piece in pieces:
                    if piece.text or piece.reason or piece.logprobs:
                        yield _event(self.head | {"choices": [_choice(i, piece)]})
            if self._asked.stream_options and self._asked.stream_options.include_usage:
                yield _event(self.head | {"choices": [], "usage": self.usage()})
            yield b"data: [DONE]\n\n"
        except (ValueError, BusyError) as error:
            yield _event({"error": {"message": str(error), "type": "server_error"}})


def _choice(i: int, piece: Piece) -> dict[str, Any]:
    return {"index": i, "text": piece.text, "logprobs": piece.logprobs, "finish_reason": piece.reason}


def _event(data: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


def routes(catalog: Catalog, meters: Meters) -> APIRouter:
    """Return the paths of the API."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    def writers() -> dict[str, Version]:
        """Return the versions that write, by what they can be asked for as: their model, or their name."""
        found = {version.name: version for version in catalog if version.writes}
        return {version.model: catalog.choose(version.model) for version in found.values()} | found

    def chosen(model: str) -> Version:
        if model not in (found := writers()):
            raise RefusedError(f"model: must be one of {', '.join(found) or 'none'}, not {model}", 404)
        return found[model]

    def about(model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": 0, "owned_by": "dsgd-lab"}

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [about(name) for name in writers()]}

    @router.get("/models/{model}")
    async def one_model(model: str) -> dict[str, Any]:
        chosen(model)
        return about(model)

    @router.post("/completions", response_model=None)
    async def completions(asked: CompletionRequest, request: Request) -> StreamingResponse | dict[str, Any]:
        version = request.state.version = chosen(asked.model)
        completion = _Completion(asked, version, meters)
        if asked.stream:
            return StreamingResponse(completion.events(), media_type="text/event-stream")
        return await completion.whole()

    return router
