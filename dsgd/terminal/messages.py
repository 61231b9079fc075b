"""How every command reports an error. Imports nothing that takes time: ctrl-C during imports needs it."""

from __future__ import annotations

import sys
from pathlib import Path

from dsgd.records.outcomes import one_line


def program() -> str:
    """Return the name by which the command line was called: dsgd (console script, module) or main.py."""
    called = Path(sys.argv[0])
    return "dsgd" if called.name == "dsgd" or called.parts[-2:] == ("dsgd", "__main__.py") else "main.py"


def report_error(error: object, exit_code: int) -> int:
    """Print an error, in one line, and return the exit code."""
    print(f"{program()}: {one_line(error)}", file=sys.stderr)
    return exit_code
