"""Commands on what a run has trained: `evaluate`, `export`, `sample`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Lt

from dsgd.core.option_rules import FINITE, Checked
from dsgd.core.problem import score_text
from dsgd.core.update_counts import finite
from dsgd.process.files import whole_file
from dsgd.process.interruptions import Interruptions, ended_by_signals
from dsgd.process.outcomes import UsageError, print_page
from dsgd.process.s3_access import is_s3
from dsgd.records.s3 import fetch
from dsgd.records.schema import RecordError
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.show.terminal.usage import usage_errors

with ended_by_signals():
    from dsgd.core.model import Evaluation
    from dsgd.running.trained_run import TrainedRun, split_version, trained_run


@dataclass(frozen=True, kw_only=True)
class _OfRun(Checked):
    run: Annotated[str, Positional("RUN")]
    """Its folder, or s3://BUCKET/PREFIX/NAME; RUN@VERSION is one of its checkpoints, RUN@newest the newest of
    them. Of a run that has not ended, the newest checkpoint is used.
    """


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(_OfRun):
    """Compute the loss of what a run trained, and its score, on the test data: those of the run, or those
    that its workload makes of another file. This runs the code of the run's workload.
    """

    on: str | None = None
    """What the workload reads in place of its --data: a file or a folder."""

    json: bool = False
    """Print it as JSON, with the names of summary.json."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(_OfRun):
    """Write what a run trained to a safetensors file: the tensors of the module's state_dict() by their
    names, and in its metadata the run. safetensors.torch.load_model(module, FILE) reads it.
    """

    file: Annotated[str, Positional("FILE")]
    """The file, which ends in .safetensors."""

    overwrite: bool = False
    """Replace FILE if it is there."""


@dataclass(frozen=True, kw_only=True)
class SampleOptions(_OfRun):
    """Print a prompt, and the text that a trained language model makes to follow it. The same options print
    the same text. This runs the code of the run's workload.
    """

    prompt: str = "\n"
    """How the text begins; without it, a line break."""

    tokens: Annotated[int, Ge(1)] = 200
    """How many follow."""

    temperature: Annotated[float, FINITE, Ge(0)] = 1.0
    """Below 1: more of what is probable; 0: always the most probable token."""

    seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    """Of the draws."""


def folder_of(command: str, source: str) -> str:
    """Return the folder of a run, with all that its bucket has by now, and the version that it names."""
    if not is_s3(source):
        return source
    url, version = split_version(source)
    folder = str(fetch(url, command, weights=True))
    return f"{folder}@{version}" if version else folder


def run_to_use(command: str, source: str, *, mapped: bool = False) -> TrainedRun:
    """Return what a run has trained; raises UsageError or ValueError, in one line, where that is not there.

    command: what asked for it, as messages name it. mapped: as for `trained_run`.
    """
    try:
        return trained_run(folder_of(command, source), mapped=mapped)
    except RecordError as error:
        raise UsageError(f"{command} {error}") from None


def evaluate(arguments: Sequence[str], _: Interruptions) -> int:
    """Evaluate what a run trained, print what was found, and return the exit code.

    Raises UsageError, in one line, for anything that is wrong.
    """
    given = options_of_command(EvaluateOptions, "evaluate", arguments)
    with usage_errors():
        run = run_to_use("evaluate", given.run)
        found = run.evaluate(given.on)
        page = "\n".join(_page(run, found, given.on))
    if given.json:
        numbers = {name: finite(getattr(found, name)) for name in ("loss", "accuracy", "bits_per_byte")}
        which = {"run": given.run, "version": run.version, "ended": run.ended}
        which |= {"damaged_checkpoints": run.damaged, "on": given.on}
        page = json.dumps({**which, "score_name": run.problem().score_name, **numbers})
    print_page(page)
    return 0


def _page(run: TrainedRun, found: Evaluation, on: str | None) -> Iterator[str]:
    yield run.in_words
    yield f"data      {on or 'the test data of the run'}"
    yield f"loss      {found.loss:.6g}"
    if found.accuracy is not None:
        name, value = score_text(run.problem().score_name, found.accuracy, 2).rsplit(" ", 1)
        yield f"{name:<9} {value}"
    if found.bits_per_byte is not None:
        yield f"text      {found.bits_per_byte:.4g} bits a byte, perplexity {found.perplexity:.4g}"


def export(arguments: Sequence[str], _: Interruptions) -> int:
    """Write the tensors of what a run trained to a file, say what is in it, and return the exit code.

    Raises UsageError, in one line, for anything that is wrong; the file is then as it was.
    """
    given = options_of_command(ExportOptions, "export", arguments)
    file = Path(given.file)
    if file.suffix != ".safetensors":
        raise UsageError(f"export {file}: is a safetensors file; name it {file.stem}.safetensors")
    if file.exists() and not given.overwrite:
        raise UsageError(f"export {file}: is there already; name another file, or give --overwrite")
    if not file.parent.is_dir():
        raise UsageError(f"export {file}: there is no folder {file.parent}; make it, or name another file")
    from dsgd.running.trained_module import named_tensors, to_safetensors

    with usage_errors():
        run = run_to_use("export", given.run)
        module = run.module()
        try:
            tensors, same = named_tensors(module)
        except ValueError as error:
            raise UsageError(f"export {run.path}: {error}") from None
    with whole_file(file, "name another file") as content:
        content.write(to_safetensors(tensors, {**run.facts, **same}))
    numbers = sum(tensor.numel() for tensor in tensors.values())
    print_page(f"{run.in_words}\nwritten   {file}: {len(tensors)} tensors, {numbers:,} numbers")
    return 0


def sample(arguments: Sequence[str], _: Interruptions) -> int:
    """Print a text that a trained language model makes, and return the exit code.

    Raises UsageError, in one line, for anything that is wrong.
    """
    given = options_of_command(SampleOptions, "sample", arguments)
    if not given.prompt:
        raise UsageError("--prompt: is empty; begin the text with a letter, or leave --prompt out")
    with usage_errors():
        run = run_to_use("sample", given.run)
        made = run.sample(given.prompt, tokens=given.tokens, temperature=given.temperature, seed=given.seed)
        notes = run.notes
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print_page(given.prompt + made)
    return 0
