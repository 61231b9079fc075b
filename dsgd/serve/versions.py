"""What is served: models by what they learned, each in one version or several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dsgd.models.networks.sampling import Sampler
from dsgd.models.networks.writing import Piece, TextRequest, Writer
from dsgd.process.batching import Batcher, BusyError
from dsgd.process.outcomes import one_line
from dsgd.running.trained_run import TrainedRun
from dsgd.serve.options import ServeOptions

_SECONDS = 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0
_ROWS = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024


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
        self.rows = Histogram("dsgd_serve_batch_rows", "Rows computed together", of, buckets=_ROWS, **to)


class Version:
    """A version of a model: the weights of a run, or of one of its checkpoints."""

    def __init__(self, run: TrainedRun, options: ServeOptions, meters: Meters) -> None:
        """Load it; raises ValueError, in one line, for a run without a module that can be called."""
        self.model, self.name = run.name, f"{run.path.resolve().name}@{run.version}"
        self.labels = self.model, self.name
        self.call, sampler = run.call(), run.problem().sample
        changed = [f"{run.changed}; the file that was trained is served"] * bool(run.changed)
        self.notes = [*changed, *run.notes]
        self.batches = Batcher(
            most=options.max_batch,
            wait_s=options.batch_wait_ms / 1000,
            places=options.max_queue,
            queued=meters.queue.labels(*self.labels).set,
            computed=meters.rows.labels(*self.labels).observe,
        )
        self._writer = (
            Writer(self.call.module, sampler, self.batches) if isinstance(sampler, Sampler) else None
        )

    @property
    def writes(self) -> bool:
        """Whether it goes on with texts."""
        return self._writer is not None

    def pieces(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of a text, as `Writer` does."""
        assert self._writer
        return self._writer.pieces(request)

    async def answer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs for inputs that are as `call` says: for each row what it alone would get.

        Raises RefusedError for inputs that the module cannot take, and BusyError.
        """
        rows, most = (len(next(iter(inputs.values()))), self.batches.most) if self.call.rows else (1, 1)
        shape = tuple((name, tuple(getattr(x, "shape", "?")[1:])) for name, x in sorted(inputs.items()))
        parts: list[Mapping[str, Any]] = [inputs]
        if self.call.rows:
            parts = [{name: x[i : i + most] for name, x in inputs.items()} for i in range(0, rows, most)]
        asked = (
            self.batches.ask(self._computed, shape, part, rows=min(most, rows - i * most))
            for i, part in enumerate(parts)
        )
        try:
            return _joined(await asyncio.gather(*asked))
        except BusyError:
            raise
        except Exception as error:  # of the user's module
            raise RefusedError(f"inputs: {self.model} cannot compute them: {one_line(error)}") from error

    def _computed(self, values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if not self.call.rows:
            return [self.call(value) for value in values]
        found, begin, answers = self.call(_joined(values)), 0, []
        for value in values:
            end = begin + len(next(iter(value.values())))
            answers.append({name: x[begin:end] for name, x in found.items()})
            begin = end
        return answers


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows of several values, by name, as those of one."""
    if len(parts) == 1:
        return dict(parts[0])
    together = {name: [part[name] for part in parts] for name in parts[0]}
    return {
        name: torch.cat(rows) if isinstance(rows[0], torch.Tensor) else [*chain.from_iterable(rows)]
        for name, rows in together.items()
    }


class Catalog:
    """The versions that are served, by model, and which of them answers."""

    def __init__(self, versions: Sequence[Version]) -> None:
        self.models: dict[str, dict[str, Version]] = {}
        for version in versions:
            if version.name in self.models.setdefault(version.model, {}):
                raise ValueError(f"{version.name}: is there twice, as a version of {version.model}")
            self.models[version.model][version.name] = version

    def __iter__(self) -> Iterator[Version]:
        return (version for versions in self.models.values() for version in versions.values())

    def choose(self, model: str, version: str | None = None) -> Version:
        """Return the version that answers a request; raises RefusedError for what is not served."""
        if model not in self.models:
            raise RefusedError(f"model {model}: is not served; there are {', '.join(self.models)}", 404)
        versions = self.models[model]
        if version is None:
            return [*versions.values()][-1]
        if version not in versions:
            raise RefusedError(f"version {version}: is not served; {model} has {', '.join(versions)}", 404)
        return versions[version]
