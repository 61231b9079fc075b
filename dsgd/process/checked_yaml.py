"""Turns what a file of a user holds into Structs; what does not fit gets one line with place, rule and hint.

A rule that the types alone do not say well stands beside them: `Annotated[float, Meta(gt=0, lt=1), rule(…)]`.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from dsgd.process.bounded_yaml import YamlError, read_yaml
from dsgd.process.outcomes import UsageError, echoed

T = TypeVar("T")
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of names and values",
    "null": "null",
}
"""What msgspec calls the types of JSON and YAML, in words."""


def rule(text: str) -> Meta:
    """Return what a line about a value that does not fit says instead of its type, like `must be a share`."""
    return Meta(extra={"rule": text})


Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max), rule("must be a number")]


def read(path: Path, where: str, remedy: str) -> Any:
    """Return what a file holds. where: how messages begin. Raises UsageError, also if there is nothing."""
    try:
        content = read_yaml(path, remedy)
    except YamlError as error:
        raise UsageError(f"{where}: {error}") from None
    if content is None:
        raise UsageError(f"{where}: is empty; {remedy}")
    return content


def convert(content: Any, kind: type[T], where: str) -> T:
    """Return what a file holds as that kind; raises UsageError in one line that begins with `where`."""
    try:
        return msgspec.convert(content, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise UsageError(": ".join([where, *_explained(str(error), content, kind)])) from None


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "choose from {}") -> str:
    """Return a hint for a name that is not known: the one that was probably meant, or all of them.

    >>> did_you_mean("at_leest", ["at_least", "at_most"]), did_you_mean("x", ["a", "b"])
    ('did you mean at_least?', 'choose from a, b')
    """
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]}?" if near else otherwise.replace("{}", ", ".join(known))


def _explained(error: str, value: Any, hint: Any) -> list[str]:
    """Return what an error of msgspec's is about: the names that lead there, and what is wrong."""
    place: list[str] = []
    named = re.fullmatch(r"Object contains unknown field `(.*)`", error, re.DOTALL)
    at_the_top = named and isinstance(value, Mapping) and named[1] in value  # whatever the name looks like
    found = None if at_the_top else re.fullmatch(r"(.*) - at `(key` in `)?(\$[^`]*)`", error, re.DOTALL)
    what, of_a_name, path = found.groups() if found else (error, None, "")
    for name, index in re.findall(r"\.(\w+)|\[([\d.]+)\]", path):
        key = name or _first_wrong(value, hint) if index in ("", "...") else int(index)
        place.append(str(key) if isinstance(key, str) else f"number {key + 1}")
        value, hint = value[key], _inside(hint, name, index == "...")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        known = [name for member in _members(hint) for name in _fields(member)]
        remedy = did_you_mean(unknown[1], known, "the keys are {}") if known else "leave it out"
        return [*place, f"there is no key {echoed(unknown[1])}; {remedy}"]
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        needed = _rule(_inside(hint, missing[1], in_mapping=False))
        return [*place, f"needs {missing[1]}:{needed and f', which {needed}'}"]
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    needed, shown = _rule(hint), echoed(text, 80) or "nothing"
    if not needed and what.startswith("Invalid enum value"):
        names = [name for member in _members(hint) for name in get_args(member)]
        return [*place, f"there is no {shown}; {did_you_mean(shown, names)}"]
    if expected := re.match(r"Expected `([\w |]+)`(?:, got .*| matching .*)?(.*)", what, re.DOTALL):
        kinds = " or ".join(KINDS.get(kind, kind) for kind in expected[1].split(" | ") if kind != "null")
        if of_a_name:
            return [*place, f"the name {_first_wrong(value, hint)} must be {kinds}"]
        if not needed and expected[2] == " of length >= 1":
            return [*place, "is empty; give at least one entry"]
        needed = needed or f"must be {kinds}{expected[2]}"
    return [*place, f"{needed}, not {shown}" if needed else what]  # at last, what the Struct itself says


def _first_wrong(mapping: Mapping[Any, Any], hint: Any) -> Any:
    """Return the name at which a mapping does not fit: msgspec says that only of fields."""
    for name, value in mapping.items():
        try:
            msgspec.convert({name: value}, hint, str_keys=True)
        except msgspec.ValidationError:
            return name
    raise ValueError("all of them fit")


def _inside(hint: Any, name: str, in_mapping: bool) -> Any:
    """Return the type of a field or, without a name, of a mapping's or list's values."""
    for member in _members(hint):
        if name and name in (fields := _fields(member)):
            return fields[name]
        origin = get_origin(member)
        if not name and isinstance(origin, type) and issubclass(origin, Mapping) == in_mapping:
            return get_args(member)[-1 if in_mapping else 0]
    raise TypeError(f"{hint} has nothing inside")


def _members(hint: Any) -> list[Any]:
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [inner for member in get_args(hint) for inner in _members(member)]
    return [hint]


def _fields(hint: Any) -> dict[str, Any]:
    """Return a Struct's fields by their names in files."""
    is_struct = isinstance(hint, type) and issubclass(hint, msgspec.Struct)
    return {field.encode_name: field.type for field in msgspec.structs.fields(hint)} if is_struct else {}


def _rule(hint: Any) -> str:
    """Return the rule that stands beside a type, or beside one of its members."""
    for given in (hint, *(get_args(hint) if get_origin(hint) in (Union, UnionType) else ())):
        for meta in getattr(given, "__metadata__", ()):
            if meta.extra:
                return str(meta.extra["rule"])
    return ""
