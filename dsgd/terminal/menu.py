"""What the command line prints without arguments: what can be done, as commands to copy."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.terminal import examples
from dsgd.terminal.help import width
from dsgd.terminal.interruptions import Interruptions
from dsgd.terminal.messages import print_page


def menu(_: Sequence[str], __: Interruptions) -> int:
    """Print the menu, which fits a terminal of 80 by 24, and return the exit code."""
    shown = (
        examples.SIMULATED,
        examples.ON_RAY,
        examples.COMPARED,
        examples.LISTED,
        examples.REPORTED,
    )
    print_page(
        "\n".join(
            [
                "A laboratory for distributed SGD. Nothing was run; commands to begin with:",
                "",
                *examples.lines(shown, width()),
                "",
                f"  {examples.command()} --help              all options and commands",
                f"  {examples.command()} --mode ssp --help   those of a strategy",
            ]
        )
    )
    return 0
