"""What stands on a command line, word by word: options by name, and values that have none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsgd.core.option_rules import Option
from dsgd.core.units import reader_of
from dsgd.process.outcomes import UsageError


def values_of(
    arguments: Sequence[str],
    known: Mapping[str, Option],
    unknown: Callable[[str, str], str],
    without_name: Sequence[str] = (),
    see: str = "--help",
) -> dict[str, Any]:
    """Return the options that a command line gives; where one is given twice, the last counts.

    unknown: returns the message for an option that is not known, from its key and as it is spelled.
    without_name: those whose values stand alone, in this order. see: where messages say more is.
    """
    values: dict[str, Any] = {}
    rest, places = deque(arguments), deque(without_name)
    while rest:
        word = rest.popleft()
        name, equals, text = word.partition("=")
        if not name.startswith("-"):
            if not places:
                rule = "is not an option; options are written --name value"
                raise UsageError(f"'{word}' {'is one value too many' if without_name else rule}, see {see}")
            if known[places[0]].kind == "tuple":
                values[places[0]] = (*values.get(places[0], ()), word)
            else:
                values[places[0]] = read_value(known[places[0]], word)
                places.popleft()
            continue
        key = field_of(name)
        switch = known.get(key.removeprefix("no_"))
        if switch and switch.kind == "bool":
            if equals:
                raise UsageError(f"{name}={text}: is a switch; write {name} alone")
            values[switch.name] = key == switch.name
            continue
        if key not in known or key in without_name:
            raise UsageError(unknown(key, word))
        if not equals:
            if not rest or rest[0].startswith("--"):
                rule = f"; {see} describes it"
                if known[key].kind != "str":
                    rule = f", which {known[key].kind_in_words}"
                raise UsageError(f"{name}: needs a value{rule}")
            text = rest.popleft()
        value = read_value(known[key], text)
        values[key] = (*values.get(key, ()), value) if known[key].kind == "tuple" else value
    return values


def read_value(option: Option, text: str) -> Any:
    """Return the value that a text stands for, in the option's own type."""
    if text == "None" and option.optional:
        return None
    read, units = reader_of(option.name) if option.kind == "float" else (str, "")
    try:
        return int(text) if option.kind == "int" else read(text)
    except ValueError:
        shown = text if text.strip() else repr(text)
        raise UsageError(f"--{dashed(option.name)} {shown}: {option.kind_in_words}{units}") from None


def with_dashes(argument: str) -> str:
    """Return an argument with dashes in its option's name, which may be written with underscores."""
    name, sign, value = argument.partition("=")
    return f"--{dashed(name[2:])}{sign}{value}" if name.startswith("--") else argument


def take_option(arguments: Sequence[str], option: str) -> tuple[list[str], str | None]:
    """Return the arguments without `option` and its value, and the value."""
    value = value_of(arguments, option)
    kept, skip = [], False
    for argument in arguments:
        if skip or argument == option or argument.startswith(f"{option}="):
            skip = argument == option and not skip
        else:
            kept.append(argument)
    return kept, value


def value_of(arguments: Sequence[str], option: str) -> str | None:
    """Return the last value given for `option`."""
    value = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
        elif argument == option:
            if not following or following.startswith("--"):
                raise UsageError(f"{option}: needs a value; --help describes it")
            value = following
    return value


def is_given(arguments: Sequence[str], option: str) -> bool:
    """Return whether `option` is among the arguments."""
    return any(argument == option or argument.startswith(f"{option}=") for argument in arguments)


def dashed(name: str) -> str:
    """Return the name of a field as that of its option."""
    return name.replace("_", "-")


def field_of(name: str) -> str:
    """Return the name of the field of an option, which may be followed by = and a value."""
    return name.partition("=")[0].removeprefix("--").replace("-", "_")
