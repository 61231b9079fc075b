"""What a report is made of, beside its figures: the answer and tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table with title and note; the first column names its rows."""

    title: str
    note: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: Table | None = None
    """The same in full, shown on demand."""
    best: Collection[tuple[int, int]] = ()
    """Rows and columns of the cells that stand out."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a report says first."""

    headline: str
    """The answer, in one sentence."""
    points: Sequence[str] = ()
    """Sentences: each group's winner, what is identical, what else was measured."""
    table: Table | None = None
    """The measure by group and level, where there are several."""
    basis: str = ""
    """How medians, intervals and tests are to be read."""

    @property
    def text(self) -> str:
        return " ".join(filter(None, [self.headline, *self.points, self.basis]))
