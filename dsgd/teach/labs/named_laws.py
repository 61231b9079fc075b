"""What the check of a law finds, and the functions that a lab's file names."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Finding(NamedTuple):
    """Whether a law holds, what was seen, and what is needed."""

    holds: bool | None
    """None if it was not tested."""
    seen: str
    theory: str = ""
    """What theory says, for those who are to see it."""
    run: int | None = None
    """The number of the strategy's run in which a law was first broken."""


@dataclass(frozen=True, kw_only=True)
class CheckedLaw:
    """Something that has to hold: a sentence, the function that checks it, and that function's arguments."""

    name: str
    text: str
    parameters: Mapping[str, Any]


def function(module: Any, name: str) -> Callable[..., Any]:
    """Return a module's own public function; raises ValueError if it has none of that name."""
    found = functions(module)
    if name not in found:
        raise ValueError(f"there is no {name}; {did_you_mean(name, found)}")
    return found[name]


def functions(module: Any) -> dict[str, Callable[..., Any]]:
    """Return a module's public functions by name, without those that it imports."""
    return {
        name: found
        for name, found in vars(module).items()
        if inspect.isfunction(found) and found.__module__ == module.__name__ and not name.startswith("_")
    }


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "choose from") -> str:
    """Return a hint for a name that is not known: the one that was probably meant, or all of them.

    >>> did_you_mean("at_leest", ["at_least", "at_most"]), did_you_mean("x", ["a", "b"])
    ('did you mean at_least?', 'choose from a, b')
    """
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]}?" if near else f"{otherwise} {', '.join(known)}"
