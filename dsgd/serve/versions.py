"""What is served: models by what they learned, each in versions, and which of them answers."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dsgd.models.networks.writing import Piece, TextRequest
from dsgd.models.objectives.module_call import CallForm

_SECONDS = 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0
ROWS = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024


class RefusedError(Exception):
    """A request cannot be answered; the message is one line that names the field and the rule."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class Meters:
    """What /metrics shows, by model and version."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = ["model", "version"]
        to: Any = {"registry": self.registry}
        times: Any = {**to, "buckets": _SECONDS}
        self.requests = Counter("dsgd_serve_requests", "Answers, by status", [*of, "status"], **to)
        self.seconds = Histogram("dsgd_serve_request_seconds", "From request to whole answer", of, **times)
        self.first = Histogram("dsgd_serve_first_token_seconds", "From request to first token", of, **times)
        self.tokens = Counter("dsgd_serve_tokens", "Tokens written", of, **to)
        self.queue = Gauge("dsgd_serve_queue_length", "Requests that wait for the model", of, **to)
        self.rows = Histogram("dsgd_serve_batch_rows", "Rows computed together", of, buckets=ROWS, **to)


class Version(Protocol):
    """A version of a model: the weights of a run, or of one of its checkpoints, wherever they are."""

    model: str
    name: str
    """RUN@VERSION."""
    form: CallForm
    writes: bool
    """Whether it goes on with texts."""

    async def run(self) -> None:
        """Compute what is asked, until cancelled."""

    async def answer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for inputs that are as `form` says: for each row what it alone would get.

        Raises RefusedError for inputs that the module cannot take, and BusyError.
        """
        ...

    def pieces(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a text, as `Writer` does."""
        ...


class Catalog:
    """The versions that are served, by model, and the shares of what asks for none of them by name.

    A request keeps the version that it got, whatever is promoted or replaced meanwhile.
    """

    def __init__(self, versions: Sequence[Version], shares: Mapping[str, float], patience_s: float) -> None:
        """shares: by name; a model of which none is named has all of its last version. patience_s: how long
        a version that was replaced still computes.

        Raises ValueError for two versions of one name, and for the share of one that is not there.
        """
        self.models: dict[str, dict[str, Version]] = {}
        self.shares: dict[str, dict[str, float]] = {}
        self._before, self._owed = dict[str, dict[str, float]](), defaultdict[str, float](float)
        self._tasks, self._patience_s = dict[str, asyncio.Task[None]](), patience_s
        self.keep: Callable[[dict[str, dict[str, float]]], Awaitable[None]] | None = None
        """Keeps the shares where they outlive this process."""
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """What else goes on while the versions compute."""
        for version in versions:
            if version.name in self.models.setdefault(version.model, {}):
                raise ValueError(f"{version.name}: is there twice, as a version of {version.model}")
            self.models[version.model][version.name] = version
            self.shares[version.model] = {version.name: 100.0}
        for name in shares:
            model = next((version.model for version in self if version.name == name), None)
            if model is None:
                there = ", ".join(version.name for version in self)
                raise ValueError(f"--split {name}: is not served; there are {there}")
            self.shares[model] = {other: shares[other] for other in self.models[model] if other in shares}

    def __iter__(self) -> Iterator[Version]:
        return (version for versions in self.models.values() for version in versions.values())

    def choose(self, model: str, version: str | None = None) -> Version:
        """Return the version that answers a request; raises RefusedError for what is not served.

        Where none is named, of any number of requests in a row each gets its share, to less than one.
        """
        if model not in self.models:
            raise RefusedError(f"model {model}: is not served; there are {', '.join(self.models)}", 404)
        versions, shares = self.models[model], self.shares[model]
        if version is None:
            for name, share in shares.items():
                self._owed[name] += share
            version = max(shares, key=lambda name: self._owed[name])
            self._owed[version] -= sum(shares.values())
        if version not in versions:
            raise RefusedError(f"version {version}: is not served; {model} has {', '.join(versions)}", 404)
        return versions[version]

    async def promote(self, model: str, shares: Mapping[str, float] | None) -> dict[str, float]:
        """Give versions new shares, None: those before, and return what they were; raises RefusedError."""
        was = self.shares[self.choose(model).model]
        shares = self._before.get(model, was) if shares is None else shares
        if unknown := shares.keys() - self.models[model].keys():
            raise RefusedError(f"{unknown.pop()}: is not served; {model} has {', '.join(self.models[model])}")
        if min(shares.values(), default=-1.0) < 0 or not 0 < sum(shares.values()) < float("inf"):
            raise RefusedError("shares: must be numbers of at least 0, one of them above")
        self.shares[model], self._before[model] = dict(shares), was
        if self.keep:
            await self.keep(self.shares)
        return was

    def replace(self, old: Version, new: Version) -> None:
        """Serve a version instead of another of its model, with the share that it had."""
        versions = self.models[old.model]
        del versions[old.name]
        versions[new.name] = new
        for shares in (self.shares[old.model], self._before.get(old.model, {})):
            if old.name in shares:
                shares[new.name] = shares.pop(old.name)
        self._tasks[new.name] = asyncio.create_task(new.run())
        asyncio.get_running_loop().call_later(self._patience_s, self._tasks.pop(old.name).cancel)

    def start(self) -> None:
        """Start the versions, in the event loop that runs."""
        gc.collect()
        gc.freeze()  # what is loaded stays: to look through it again and again costs a third of the requests
        self._tasks = {version.name: asyncio.create_task(version.run()) for version in self}
        self._tasks |= {f"beside {i}": asyncio.create_task(go()) for i, go in enumerate(self.beside)}

    def stop(self) -> None:
        """End that; what waits is not answered any more."""
        gc.unfreeze()
        for task in self._tasks.values():
            task.cancel()
