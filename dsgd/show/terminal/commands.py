"""The commands by their names; only the one that is called is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

from dsgd.process.interruptions import Interruptions, ended_by_signals
from dsgd.process.outcomes import UsageError, print_page
from dsgd.show.terminal.front_page import front_page

RUN = "run"


PLACES = {
    RUN: "dsgd.show.run_command:run",
    "compare": "dsgd.compare.experiment_command:compare",
    "report": "dsgd.show.report.report_command:report",
    "list": "dsgd.show.terminal.list_command:list_runs",
    "watch": "dsgd.show.live.watch_command:watch",
    "replay": "dsgd.show.terminal.replay_command:replay",
    "evaluate": "dsgd.show.terminal.trained_commands:evaluate",
    "sample": "dsgd.show.terminal.trained_commands:sample",
    "export": "dsgd.show.terminal.trained_commands:export",
    "serve": "dsgd.serve.serve_command:serve",
    "new": "dsgd.teach.authoring.scaffold:new",
    "check": "dsgd.conformance.conformance_command:check",
    "lab": "dsgd.teach.labs.lab_command:lab",
    "version": "dsgd.show.terminal.commands:version",
}
"""Where each command's function is: it takes the arguments and interruptions, and returns the exit code."""

OLD = {
    f"--{name}": name for name in PLACES if name not in (RUN, "compare", "serve", "new", "check", "lab")
} | {
    "--experiment": "compare",
    "--new-strategy": "new",
    "--conformance": "check",
    "--check": "lab",
}
"""How commands were spelled: as an option, with the values after it, anywhere on the line."""


def asked(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command that the arguments ask for, and those that are left for it.

    >>> asked(["--csv", "--check=01", "answers"])
    ('lab', ['--csv', '01', 'answers'])
    """
    first, *rest = [*arguments, ""]
    if first in PLACES:
        return first, rest[:-1]
    if first in ("-h", "--help") and rest[0] in PLACES:
        return rest[0], ["--help"]
    if first and not first.startswith("-"):
        from dsgd.process.checked_yaml import did_you_mean

        raise UsageError(f"{first}: there is no such command; {did_you_mean(first, PLACES)}")
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if command := OLD.get(name.replace("_", "-")):
            return command, [*arguments[:at], *[value] * bool(equals), *arguments[at + 1 :]]
    return RUN, list(arguments)


def command_of(arguments: Sequence[str]) -> Callable[[Interruptions], int]:
    """Return what the arguments ask for, to be called; without any, that is the front page."""
    command, rest = asked(arguments)
    if not arguments or (command == RUN and rest in (["--help"], ["-h"])):
        return _front_page
    module, _, name = PLACES[command].partition(":")
    with ended_by_signals():  # importing one takes up to a second
        return partial(getattr(import_module(module), name), rest)


def _front_page(_: Interruptions) -> int:
    print_page("\n".join(front_page()))
    return 0


def version(_: Sequence[str], __: Interruptions) -> int:
    """Print the version of what is installed."""
    from importlib.metadata import version

    print_page(f"dsgd-lab {version('dsgd-lab')}")
    return 0
