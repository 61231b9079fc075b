"""The command `report`: a page from records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from dsgd.core.option_rules import Checked
from dsgd.process.interruptions import Interruptions, ended_by_signals
from dsgd.process.outcomes import EXIT_INTERRUPTED, UsageError, report_error
from dsgd.process.s3_access import is_s3
from dsgd.records.listing import list_folder
from dsgd.records.reader import is_record
from dsgd.records.s3 import fetch
from dsgd.records.schema import RecordError
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.show.terminal.usage import open_page, usage_errors

_MOST_NOTES = 8


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Checked):
    """Draw a report from records alone: of an experiment, of one run, or of a folder of runs. Runs that
    cannot be compared with one another get an index, report.html in their folder, instead.
    """

    folder: Annotated[str, Positional("DIR")]
    """The folder, or s3://BUCKET/PREFIX."""

    like: str | None = None
    """Report on those runs in the folder that can be compared with this one."""

    open: bool = False
    """Open the page in a browser."""


def report(arguments: Sequence[str], _: Interruptions) -> int:
    """Draw the report of an experiment's folder, a folder of records or one record again.

    Raises UsageError in one line for anything that is wrong.
    """
    given = options_of_command(ReportOptions, "report", arguments)
    with usage_errors():
        folder = fetch(given.folder) if is_s3(given.folder) else Path(given.folder)
    try:
        page, notes = _build(folder, given.like)
    except KeyboardInterrupt:
        message = "interrupted before the report was complete; the same command draws it again"
        return report_error(message, EXIT_INTERRUPTED)
    except RecordError as error:
        raise UsageError(f"report {error}") from None
    print(page)
    for note in notes[:_MOST_NOTES]:
        print(f"note: {note}", file=sys.stderr)
    if more := notes[_MOST_NOTES:]:
        print(f"note: the page has {len(more)} more", file=sys.stderr)
    if given.open:
        open_page(page)
    return 0


def _build(folder: Path, like: str | None) -> tuple[Path, Sequence[str]]:
    """Write the report that fits what is in the folder; return its path, and what of the runs it lacks, in a
    line each. Raises RecordError.
    """
    with ended_by_signals():
        from dsgd.show.report.build import build_report, write_report
        from dsgd.show.report.comparable import are_one_comparison, groups
        from dsgd.show.report.frames import read_folder, read_loose
        from dsgd.show.report.index import COMPARISONS, build_index

    is_loose = folder.is_dir() and not is_record(folder) and not (folder / "experiment.yaml").is_file()
    if not is_loose:
        if like is not None:
            raise UsageError(
                f"--like {like}: is for a folder of single runs, which {folder} is not; leave it out"
            )
        frames = read_folder(folder)
        return build_report(folder, frames), frames.notes
    listing = list_folder(folder)
    if like is None:
        if are_one_comparison(listing):
            frames = read_folder(folder)
            return build_report(folder, frames), frames.notes
        return build_index(folder, listing), [f"left out: {': '.join(one)}" for one in listing.unreadable]
    group = next((g for g in groups(listing.runs) if like in (run.path.name for run in g.runs)), None)
    if group is None:
        raise UsageError(f"--like {like}: {folder} has no such run; list {folder} names them")
    frames = read_loose(folder, [run.path.name for run in group.runs], like)
    own = folder / COMPARISONS / group.slug
    own.mkdir(parents=True, exist_ok=True)
    return write_report(replace(frames, title=group.title), own), frames.notes
