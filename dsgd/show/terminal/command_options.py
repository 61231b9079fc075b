"""The options of a command other than a run: fields of a frozen dataclass, like those of a run; the class's
docstring is what its page says. ListOptions, of the command `list`, is a short one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, NamedTuple, TypeVar

from dsgd.core.option_rules import HIDDEN, Option, from_options, option_fields
from dsgd.process.outcomes import UsageError, print_page, program
from dsgd.show.terminal import examples
from dsgd.show.terminal.arguments import dashed, values_of, with_dashes
from dsgd.show.terminal.help import option_rows
from dsgd.show.terminal.paragraphs import paragraph, table, width

T = TypeVar("T")


class Positional(NamedTuple):
    """Marks a field whose value stands alone on the command line, without `--name`."""

    name: str


def options_of_command(config_type: type[T], command: str, arguments: Sequence[str]) -> T:
    """Return what the arguments of a command ask for, as `options_and_more`."""
    return options_and_more(config_type, command, arguments, {})[0]


def options_and_more(
    config_type: type[T], command: str, arguments: Sequence[str], more: Mapping[str, Option]
) -> tuple[T, dict[str, Any]]:
    """Return what the arguments of a command ask for, and the values of other options, which are in `more`.

    Raises UsageError in one line for anything that is wrong; `--help` prints a page and raises SystemExit.
    """
    arguments = [with_dashes(argument) for argument in arguments]
    known = option_fields(config_type)
    alone = {
        name: rule.name
        for name, option in known.items()
        for rule in option.rules
        if isinstance(rule, Positional)
    }
    if {"-h", "--help"} & set(arguments):  # also where a value is missing
        seen = {n: o for n, o in known.items() if "all" in arguments or HIDDEN not in o.rules}
        last = ["", f"Options that few need: {command} --help all"] * (len(seen) < len(known))
        print_page("\n".join([*_page(config_type, command, seen, alone), *last]))
        raise SystemExit(0)

    def unknown(key: str, word: str) -> str:
        name = word.partition("=")[0]
        named = [f"--{dashed(other)}" for other in (*known, *more) if other not in alone]
        if near := difflib.get_close_matches(name, named, n=1, cutoff=0.8):
            hint = f"did you mean {near[0]}?"
        elif "set" in known and not more and name.startswith("--"):
            hint = f"an option of its runs is given as --set {name.removeprefix('--')}=VALUE"
        else:
            hint = f"see {command} --help"
        return f"{name}: is not an option of {command}; {hint}"

    values = values_of(arguments, {**more, **known}, unknown, [*alone], f"{command} --help")
    others = {name: values.pop(name) for name in [*values] if name not in known}
    needed = {name for name, option in known.items() if option.default is MISSING}
    missing = [alone[name] for name in alone if name in needed - values.keys()]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UsageError(f"{command}: {' and '.join(missing)} {verb} missing; see {command} --help")
    try:
        return from_options(config_type, values), others
    except ValueError as error:
        raise UsageError(str(error)) from None


def _page(
    config_type: type, command: str, known: Mapping[str, Option], alone: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a command's page, for the terminal as wide as it is."""
    columns, named = width(), [option for name, option in known.items() if name not in alone]
    shown = [f"[{name}]" if known[key].default is not MISSING else name for key, name in alone.items()]
    yield " ".join([f"usage: {program()} {command}", *shown, *["[OPTIONS]"] * bool(named)])
    yield ""
    yield from paragraph(" ".join((config_type.__doc__ or "").split()), columns)
    yield from ["", "Examples:", *examples.lines(examples.OF_COMMANDS[command], columns), ""]
    yield from table(((name, known[key].help()) for key, name in alone.items()), columns)
    if named:
        yield from ["", "Options:", *table(option_rows(named), columns)]
