"""Lines for a terminal as wide as it is: paragraphs, and rows of a name and a text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence

NARROWEST, WIDEST = 40, 100
KEPT = "\N{NO-BREAK SPACE}"
"""A space where a line is not broken."""

_NAMES = 24  # columns of the rows' names


def width() -> int:
    """Return how wide lines may be: as the terminal, within what can be read."""
    return min(WIDEST, max(NARROWEST, shutil.get_terminal_size().columns))


def paragraph(text: str, columns: int, indent: str = "") -> list[str]:
    """Return a text as lines; words with a dash stay whole, so that options can be copied."""
    wrapped = textwrap.wrap(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(KEPT, " ") for line in wrapped]


def table(rows: Iterable[Sequence[str]], columns: int) -> Iterator[str]:
    """Yield rows of a name and a text; a name that is too long has a line for itself."""
    for name, text in rows:
        first, *others = paragraph(text, columns, " " * (_NAMES + 2))
        if len(name) > _NAMES - 2:
            yield f"  {name}"
            yield first
        else:
            yield f"  {name:<{_NAMES}}{first.lstrip()}"
        yield from others
