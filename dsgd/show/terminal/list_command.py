"""The command `list`: which runs a folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from dsgd.core.option_rules import HIDDEN, Checked
from dsgd.core.problem import score_text
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError, print_page
from dsgd.records.listing import ListedRun, Listing, list_folder
from dsgd.records.schema import LastEvaluation, RecordError
from dsgd.records.variants import option_text
from dsgd.show.terminal import examples
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.show.terminal.paragraphs import paragraph, width

_WIDEST_CELL = 36


@dataclass(frozen=True, kw_only=True)
class ListOptions(Checked):
    """List the runs in a folder, the newest first: name, mode, engine, workers, when it began, result, and
    the options that are not at their defaults. Experiments in the folder come last.
    """

    folder: Annotated[str, Positional("DIR")] = "runs"
    """The folder, of runs or of an experiment; without it, runs."""

    last: Annotated[int | None, Ge(1), HIDDEN] = None
    """Show only the newest so many runs. None: all."""


def list_runs(arguments: Sequence[str], _: Interruptions) -> int:
    """Print which runs and experiments a folder holds, the newest first, and return the exit code.

    Raises UsageError in one line for anything that is wrong.
    """
    given = options_of_command(ListOptions, "list", arguments)
    folder = Path(given.folder)
    if given.folder == ListOptions.folder and not folder.is_dir():
        print_page(
            "\n".join(["There are no runs yet; the first:", *examples.lines([examples.SIMULATED], width())])
        )
        return 0
    try:
        listing = list_folder(folder)
    except RecordError as error:
        raise UsageError(f"list {error}") from None
    print_page("\n".join(_page(listing, folder, given.last, width())))
    return 0


def _page(listing: Listing, folder: Path, last: int | None, columns: int) -> Iterator[str]:
    runs = listing.runs[:last]
    shown = f", the newest {len(runs)}" if len(runs) < len(listing.runs) else ""
    yield from paragraph(f"{folder}: {_said(listing.kind, len(listing.runs))}{shown}", columns)
    if runs:
        yield from ["", *_rows(runs, columns)]
    if listing.unreadable and not last:
        yield from ["", f"Not read: {len(listing.unreadable)}"]
        for unreadable, reason in listing.unreadable:
            yield from paragraph(f"{unreadable}: {reason}", columns, "  ")
    if listing.folders:
        yield from ["", *paragraph(f"Folders of runs in it, listed by list {folder}/NAME:", columns)]
        for path, kind, count in listing.folders:
            yield from paragraph(f"{path.name}: {_said(kind, count)}", columns, "  ")


def _rows(runs: Sequence[ListedRun], columns: int) -> Iterator[str]:
    cells = [("name", "mode", "engine", "P", "began")]
    cells += [(run.path.name, run.mode, run.engine, f"{run.num_workers}", _when(run)) for run in runs]
    widths = [min(_WIDEST_CELL, max(map(len, column))) for column in zip(*cells, strict=True)]
    for row, run in zip(cells, [None, *runs], strict=True):
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        if run:
            options = (f"{option}={option_text(value)}" for option, value in run.given().items())
            yield from paragraph("; ".join(filter(None, [_result(run), " ".join(options)])), columns, "    ")


def _when(run: ListedRun) -> str:
    """Return when a run began, in local time."""
    return f"{datetime.fromtimestamp(run.started_epoch_s):%Y-%m-%d %H:%M}"


def _result(run: ListedRun) -> str:
    """Return how far a run came, and in which seconds."""
    if run.result is None:
        return "under way or killed"
    seconds = f"{run.result.clock_s:.4g} {'wall' if run.engine == 'ray' else 'virtual'} s"
    loss = "" if run.result.eval.loss is None else f"{_how_good(run.result.eval)} after "
    ended = "" if run.result.stopped_by == "budget" else f", stopped by {run.result.stopped_by}"
    if run.result.stopped_by in ("failed", "interrupted", "diverged"):
        ended = f", {run.result.stopped_by}"
    return f"{loss}{run.result.updates:,} updates, {seconds}{ended}"


def _how_good(found: LastEvaluation) -> str:
    """Return the last evaluation in the units in which such runs are compared."""
    if found.bits_per_byte is not None:
        return f"{found.bits_per_byte:.4g} bits a byte"
    scored = "" if found.accuracy is None else f", {score_text(found.score_name, found.accuracy)}"
    return f"loss {found.loss:.4g}{scored}"


def _said(kind: str, count: int) -> str:
    runs = "1 run" if count == 1 else f"{count:,} runs"
    return f"{kind}, {runs}" if kind else runs
