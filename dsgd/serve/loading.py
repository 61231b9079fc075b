"""Versions whose weights are in this process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from dsgd.models.networks.sampling import Sampler
from dsgd.models.networks.writing import Piece, TextRequest, Writer
from dsgd.models.objectives.int8 import in_int8
from dsgd.process.batching import Batcher, BusyError
from dsgd.process.outcomes import one_line
from dsgd.running.trained_run import TrainedRun, trained_run
from dsgd.serve.options import ServeOptions
from dsgd.serve.versions import Catalog, Meters, RefusedError, Version
from dsgd.show.terminal.trained_commands import folder_of, run_to_use

_FOLLOW_EVERY_S = 1.0


class LoadedVersion:
    """A version that is computed here: what waits is computed together."""

    def __init__(self, run: TrainedRun, options: ServeOptions, meters: Meters) -> None:
        """Load it; raises ValueError, in one line, for a run without a module that can be called."""
        self.model, self.name = run.name, f"{run.path.resolve().name}@{run.version}"
        self.version, self.ended = run.version, run.ended
        self._call, problem = run.call(), run.problem()
        self.form = self._call.form
        changed = [f"{run.changed}; the file that was trained is served"] * bool(run.changed)
        self.notes = [*changed, *run.notes]
        if options.int8:
            self._call.module, cost = in_int8(self._call.module, problem)
            self.notes.append(cost)
        labels = self.model, self.name
        self._batches = Batcher(
            most=options.max_batch,
            wait_s=options.batch_wait_ms / 1000,
            places=options.max_queue,
            queued=meters.queue.labels(*labels).set,
            computed=meters.rows.labels(*labels).observe,
        )
        sampler, self._writer = problem.sample, None
        if isinstance(sampler, Sampler):
            self._writer = Writer(self._call.module, sampler, self._batches)
        self.writes = self._writer is not None

    async def run(self) -> None:
        await self._batches.run()

    def pieces(self, request: TextRequest) -> AsyncGenerator[Piece, None]:
        assert self._writer
        return self._writer.pieces(request)

    async def answer(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        parts, most = [inputs], self._batches.most
        if self.form.rows:
            begins = range(0, _rows(inputs), most)
            parts = [{name: x[i : i + most] for name, x in inputs.items()} for i in begins]
        shape = tuple((name, tuple(getattr(x, "shape", "?")[1:])) for name, x in sorted(inputs.items()))
        asked = (
            self._batches.ask(self._computed, shape, part, rows=_rows(part) if self.form.rows else most)
            for part in parts
        )
        try:
            return _joined(await asyncio.gather(*asked))
        except BusyError:
            raise
        except Exception as error:  # of the user's module
            raise RefusedError(f"inputs: {self.model} cannot compute them: {one_line(error)}") from error

    def _computed(self, values: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        found, begin, answers = self._call(_joined(values)), 0, []
        if not self.form.rows:  # then values come alone
            return [found]
        for value in values:
            end = begin + _rows(value)
            answers.append({name: x[begin:end] for name, x in found.items()})
            begin = end
        return answers


def _rows(values: Mapping[str, Any]) -> int:
    return len(next(iter(values.values())))


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rows of several values, by name, as those of one."""
    if len(parts) == 1:
        return dict(parts[0])
    together = {name: [part[name] for part in parts] for name in parts[0]}
    return {
        name: torch.cat(rows) if isinstance(rows[0], torch.Tensor) else [*chain.from_iterable(rows)]
        for name, rows in together.items()
    }


def load(options: ServeOptions, meters: Meters) -> list[LoadedVersion]:
    """Load what is asked for; raises ValueError or UsageError, in one line."""
    return [LoadedVersion(run_to_use("serve", run, mapped=True), options, meters) for run in options.runs]


def catalog_of(options: ServeOptions, versions: Sequence[Version]) -> Catalog:
    """Return the versions, in the order of the options' runs, with their shares; raises ValueError."""
    names = {run: version.name for run, version in zip(options.runs, versions, strict=True)}
    shares = {names.get(name, name): share for name, share in options.shares.items()}
    return Catalog(versions, shares, options.timeout_s)


async def follow(
    catalog: Catalog, source: str, version: LoadedVersion, options: ServeOptions, meters: Meters
) -> None:
    """Replace a version by each newer checkpoint of its run, until the run has ended."""

    def newer(seen: set[str]) -> LoadedVersion | None:
        folder = folder_of("serve", source)
        files = {path.name for path in Path(folder).rglob("*")}
        if files <= seen:
            return None
        seen |= files
        run = trained_run(folder, mapped=True)
        return None if run.version == version.version else LoadedVersion(run, options, meters)

    seen = set[str]()
    while not version.ended:
        await asyncio.sleep(_FOLLOW_EVERY_S)
        try:
            found = await asyncio.to_thread(newer, seen)
        except (OSError, ValueError) as error:  # the next new file is another chance
            print(f"{one_line(error)}; {version.name} is still served", file=sys.stderr)
            continue
        if found:
            catalog.replace(version, found)
            version = found
