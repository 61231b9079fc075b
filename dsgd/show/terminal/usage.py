"""How every command reports a usage error: in one line, with the remedy."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from dsgd.process.messages import print_page, program
from dsgd.show.terminal import examples
from dsgd.show.terminal.cli import UsageError, with_dashes
from dsgd.show.terminal.help import paragraph, table, width


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError of the block into UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


class Parser(argparse.ArgumentParser):
    """The parser of a command other than a run, like --experiment; its examples are in examples.py."""

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(prog=program(), allow_abbrev=False, description=description, add_help=False)
        self._verb = verb

    def format_help(self) -> str:
        """Return the help page, for the terminal as wide as it is."""
        columns = width()
        rows = [(_usage(action), action.help or "") for action in self._actions]
        page = [f"usage: {self.prog} {rows[0][0]}{' [OPTIONS]' * (len(rows) > 1)}", ""]
        page += [*paragraph(self.description or "", columns), ""]
        if shown := examples.OF_COMMANDS.get(self._verb):
            page += ["Examples:", *examples.lines(shown, columns), ""]
        return "\n".join([*page, "Options:", *table(rows, columns)])

    def error(self, message: str) -> NoReturn:
        if bad := re.fullmatch(r"argument (\S+): invalid (int|float) value: '(.*)'", message):
            kind = {"int": "a whole number", "float": "a number"}[bad[2]]
            raise UsageError(f"{bad[1]} {bad[3]}: must be {kind}")
        raise UsageError(f"{message.removeprefix('argument ')}; see {self._verb} --help")

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the options' values; raises UsageError for an option that the verb does not take."""
        if {"-h", "--help"} & set(arguments):  # also where the verb still lacks its value
            print_page(self.format_help())
            raise SystemExit(0)
        given, others = self.parse_known_args([with_dashes(argument) for argument in arguments])
        if not others:
            return given
        name = others[0].partition("=")[0]
        known = {o for action in self._actions for o in action.option_strings}
        if near := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}?"
        elif "--set" in known and name.startswith("--"):
            hint = f"an option of its runs is given as --set {name.removeprefix('--')}=VALUE"
        else:
            hint = f"see {self._verb} --help"
        raise UsageError(f"{name}: is not an option of {self._verb}; {hint}")


def _usage(action: argparse.Action) -> str:
    metavar = action.metavar
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar or ""
    shown = f"[{value}]" if action.nargs == "?" else value
    return f"{', '.join(action.option_strings)} {shown}".rstrip()
