"""Texts like `topk:.01`: a name and what follows it. What is wrong with one is said in one line.

forms = {"krum": Form(Krum, (whole("F", 0),), "krum:2"), …}
parsed("krum:x", forms, "mean")         # ValueError: F must be a whole number of at least 0, like krum:2
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


class FormPart(NamedTuple):
    """One of the things between commas."""

    name: str
    rule: str
    """What it must be, in words."""
    read: Callable[[str], Any]
    """Returns its value; raises ValueError if it is not what it must be."""
    optional: bool = False


def number(
    name: str,
    rule: str,
    holds: Callable[[float], bool],
    *,
    optional: bool = False,
    of: Callable[[str], float] = float,
) -> FormPart:
    """Return a part that is a number for which the rule holds.

    rule: like `above 0`. of: what reads it, with a unit too (dsgd/core/units.py).
    """

    def read(text: str) -> float:
        value = of(text)
        if not holds(value):
            raise ValueError
        return value

    return FormPart(name, f"a number {rule}", read, optional)


def whole(name: str, least: int, most: float = math.inf) -> FormPart:
    """Return a part that is a whole number in these bounds."""

    def read(text: str) -> int:
        value = int(text) if re.fullmatch(r"\d{1,18}", text) else -1
        if not least <= value <= most:
            raise ValueError
        return value

    bounds = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    return FormPart(name, f"a whole number {bounds}", read)


def word(name: str) -> FormPart:
    """Return a part that is this word, or is left out."""

    def read(text: str) -> bool:
        if text != name:
            raise ValueError
        return True

    return FormPart(name, f"the word {name}, or left out", read, optional=True)


def setting(text: str, part: FormPart, default: Any, example: str) -> tuple[str, Any]:
    """Return a text without its `name=value`, which stands between commas, and that value, or the default.

    >>> setting("sharded:4,replicas=2", whole("replicas", 1), 1, "")
    ('sharded:4', 2)
    """
    parts = text.split(",")
    found = [at for at in parts if at.startswith(f"{part.name}=")]
    if not found:
        return text, default
    if len(found) > 1:
        raise ValueError(f"has {part.name} twice; give it once")
    try:
        value = part.read(found[0].partition("=")[2])
    except ValueError:
        raise ValueError(f"{part.name} must be {part.rule}, like {example}") from None
    return ",".join(at for at in parts if at != found[0]), value


@dataclass(frozen=True)
class Form(Generic[T]):
    """What may follow a name: parts, of which the last ones may be optional."""

    make: Callable[..., T]
    """Of the parts' values; raises ValueError, with the rule, for values that do not go together."""
    parts: Sequence[FormPart] = ()
    example: str = ""

    def read(self, name: str, given: Sequence[str]) -> T:
        """Return what is meant by a name and what follows it; raises ValueError with the rule."""
        if given and not self.parts:
            raise ValueError(f"nothing may follow {name}; give {name} alone")
        if not sum(not part.optional for part in self.parts) <= len(given) <= len(self.parts):
            needed = self.written(name).removeprefix(f"{name}:")
            raise ValueError(f"{name} needs {needed}, like {self.example}")
        values = []
        for part, text in zip(self.parts, given, strict=False):
            try:
                values.append(part.read(text))
            except ValueError:
                raise ValueError(f"{part.name} must be {part.rule}, like {self.example}") from None
        return self.make(*values)

    def written(self, name: str) -> str:
        """Return how it is written, like `dgc:SHARE[,MOMENTUM]`."""
        text = ""
        for part in self.parts:
            separator = "," if text else ":"
            text += f"[{separator}{part.name}" if part.optional else f"{separator}{part.name}"
        return name + text + "]" * sum(part.optional for part in self.parts)


def parsed(text: str, forms: Mapping[str, Form[T]], plain: str) -> T | None:
    """Return what an option's text means; None for `plain`. Raises ValueError with the rule."""
    if text == plain:
        return None
    name, colon, rest = text.partition(":")
    if name not in forms:
        *others, last = (form.written(name) for name, form in forms.items())
        raise ValueError(f"must be {', '.join(filter(None, [plain, *others]))} or {last}")
    return forms[name].read(name, rest.split(",") if colon else ())
