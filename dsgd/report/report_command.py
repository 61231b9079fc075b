"""The command line of reports: `main.py --report DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsgd.records.outcomes import EXIT_INTERRUPTED
from dsgd.records.s3 import fetch, is_s3
from dsgd.records.schema import RecordError
from dsgd.terminal.cli import UsageError
from dsgd.terminal.interruptions import Interruptions, ended_by_signals
from dsgd.terminal.messages import report_error
from dsgd.terminal.usage import Parser, usage_errors


def report(arguments: Sequence[str], _: Interruptions) -> int:
    """Draw the report of an experiment's folder, a folder of records or one record again.

    Raises UsageError in one line for anything that is wrong.
    """
    parser = Parser(
        "--report",
        "Draw a report from records alone: of an experiment, of a folder of runs, or of one run.",
    )
    parser.add_argument("--report", metavar="DIR", required=True, help="the folder, or s3://BUCKET/PREFIX")
    given = parser.parse(arguments)
    with usage_errors():
        folder = fetch(given.report) if is_s3(given.report) else Path(given.report)
    with ended_by_signals():
        from dsgd.report.build import build_report

    try:
        print(build_report(folder))
    except KeyboardInterrupt:
        message = "interrupted before the report was complete; the same command draws it again"
        return report_error(message, EXIT_INTERRUPTED)
    except RecordError as error:
        raise UsageError(f"--report {error}") from None
    return 0
