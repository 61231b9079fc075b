"""How every command prints a page and reports an error.

Imports nothing that takes time: ctrl-C during imports needs it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dsgd.process.outcomes import one_line


def program() -> str:
    """Return the name by which the command line was called: dsgd (console script, module) or main.py."""
    called = Path(sys.argv[0])
    return "dsgd" if called.name == "dsgd" or called.parts[-2:] == ("dsgd", "__main__.py") else "main.py"


def report_error(error: object, exit_code: int) -> int:
    """Print an error, in one line, and return the exit code."""
    print(f"{program()}: {one_line(error)}", file=sys.stderr)
    return exit_code


def print_page(text: str) -> None:
    """Print a text to the end; a reader that has left, as in `--help | head`, is not an error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
