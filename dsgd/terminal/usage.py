"""How every command reports a usage error: in one line, with the remedy."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from dsgd.terminal.cli import UsageError, with_dashes
from dsgd.terminal.messages import program


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn a ValueError of the block into UsageError."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


class Parser(argparse.ArgumentParser):
    """The parser of a command other than a run: --experiment, --report, --watch or --check."""

    def __init__(self, verb: str, description: str) -> None:
        super().__init__(prog=program(), allow_abbrev=False, description=description)
        self._verb = verb

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self._verb} --help")

    def parse(self, arguments: Sequence[str]) -> Any:
        """Return the options' values; raises UsageError for an option that the verb does not take."""
        if {"-h", "--help"} & set(arguments):  # also where the verb still lacks its value
            self.parse_args(["--help"])
        given, others = self.parse_known_args([with_dashes(argument) for argument in arguments])
        if not others:
            return given
        name = others[0].partition("=")[0]
        known = {o for action in self._actions for o in action.option_strings} - {"-h", "--help"}
        if near := difflib.get_close_matches(name, known, n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}?"
        elif "--set" in known and name.startswith("--"):
            hint = f"an option of its runs is given as --set {name.removeprefix('--')}=VALUE"
        else:
            hint = f"see {self._verb} --help"
        raise UsageError(f"{name}: is not an option of {self._verb}; {hint}")
