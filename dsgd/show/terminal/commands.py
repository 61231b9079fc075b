"""The commands other than a run, by the option that asks for each; only the one called is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from dsgd.process.interruptions import Interruptions, ended_by_signals
from dsgd.process.outcomes import print_page
from dsgd.show.terminal import examples
from dsgd.show.terminal.cli import is_given
from dsgd.show.terminal.help import paragraph, width

Command = Callable[[Sequence[str], Interruptions], int]

COMMANDS = {
    "--experiment": "dsgd.compare.experiment_command:experiment",
    "--report": "dsgd.show.report.report_command:report",
    "--replay": "dsgd.show.terminal.replay_command:replay",
    "--evaluate": "dsgd.show.terminal.trained_commands:evaluate",
    "--export": "dsgd.show.terminal.trained_commands:export",
    "--sample": "dsgd.show.terminal.trained_commands:sample",
    "--watch": "dsgd.show.live.watch_command:watch",
    "--check": "dsgd.teach.labs.check:check",
    "--list": "dsgd.show.terminal.list_command:list_runs",
    "--new-strategy": "dsgd.teach.authoring.scaffold:new_strategy",
    "--conformance": "dsgd.conformance.conformance_command:conformance",
}
"""Where each command's function is: it takes the arguments and interruptions, and returns the exit code."""


def command_of(arguments: Sequence[str]) -> Command | None:
    """Return the command that the arguments ask for, without any the menu; None for a run."""
    if not arguments:
        return menu
    for option, place in COMMANDS.items():
        if is_given(arguments, option):
            module, _, name = place.partition(":")
            with ended_by_signals():  # as for main.py's own imports
                found: Command = getattr(import_module(module), name)
            return found
    return None


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
