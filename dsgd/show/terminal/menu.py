"""What the command line prints without arguments: what can be done, as commands to copy."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.process.interruptions import Interruptions
from dsgd.process.messages import print_page
from dsgd.show.terminal import examples
from dsgd.show.terminal.help import paragraph, width


def menu(_: Sequence[str], __: Interruptions) -> int:
    """Print the menu, which fits a terminal of 80 by 24, and return the exit code."""
    shown = (
        examples.SIMULATED,
        examples.ON_RAY,
        examples.COMPARED,
        examples.LISTED,
        examples.REPORTED,
        examples.HELP,
    )
    columns = width()
    title = paragraph("A laboratory for distributed SGD. Nothing was run; commands to begin with:", columns)
    print_page("\n".join([*title, "", *examples.lines(shown, columns)]))
    return 0
