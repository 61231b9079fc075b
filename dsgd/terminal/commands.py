"""The commands other than a run, by the option that asks for each; only the one called is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from dsgd.terminal.cli import is_given
from dsgd.terminal.interruptions import Interruptions

Command = Callable[[Sequence[str], Interruptions], int]

COMMANDS = {
    "--experiment": "dsgd.experiments.experiment_command:experiment",
    "--report": "dsgd.report.report_command:report",
    "--watch": "dsgd.live.watch_command:watch",
    "--check": "dsgd.labs.check:check",
}
"""Where each command's function is: it takes the arguments and interruptions, and returns the exit code."""


def command_of(arguments: Sequence[str]) -> Command | None:
    """Return the command that the arguments ask for; None for a run."""
    for option, place in COMMANDS.items():
        if is_given(arguments, option):
            module, _, name = place.partition(":")
            found: Command = getattr(import_module(module), name)
            return found
    return None
