"""Numbers as the pages write them, and what a page is made of beside its figures: the answer and tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dsgd.core.units import SECONDS
from dsgd.records.variants import option_text as option_text
from dsgd.show.report.statistics import Interval

NEVER = "never"


def number(x: float | None, digits: int = 3) -> str:
    """Return a number with so many significant digits and separated thousands.

    >>> number(12345.6), number(0.30004), number(41.26), number(math.inf), number(None), number(1e-9)
    ('12,346', '0.3', '41.3', 'never', '–', '1e-09')
    """
    if x is None or math.isnan(x):
        return "–"
    if math.isinf(x):
        return NEVER
    if x == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(x)))
    if places > 7:
        return f"{x:.{digits}g}"
    text = f"{x:,.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def seconds_text(seconds: float) -> str:
    """Return a time in the unit that people say it in.

    >>> seconds_text(0.0082), seconds_text(90.0), seconds_text(2e-5)
    ('8.2 ms', '1.5 min', '20 us')
    """
    unit = next((unit for unit in reversed(SECONDS) if seconds >= SECONDS[unit]), "us")
    return f"{number(seconds / SECONDS[unit])} {unit}"


def percent(x: float | None) -> str:
    r"""Return a share in per cent.

    >>> percent(0.12345), percent(1.0), percent(0.0004), percent(None)
    ('12.3\xa0%', '100\xa0%', '0.04\xa0%', '–')
    """
    if x is None:
        return "–"
    return f"{number(100 * x, 3 if x >= 0.01 else 1)}\N{NO-BREAK SPACE}%"


def p_value(p: float) -> str:
    """Return a p-value as a sentence has it.

    >>> p_value(0.0301), p_value(0.00001), p_value(1.0), p_value(0.3)
    ('p = 0.03', 'p < 0.001', 'p = 1', 'p = 0.3')
    """
    return "p < 0.001" if p < 0.001 else f"p = {number(p, 2 if p < 0.1 else 1)}"


def confidence(interval: Interval) -> str:
    r"""Return an interval with its confidence, or nothing where none can be given.

    >>> confidence(Interval(2.0, 1.0, math.inf, 0.9375, 5))
    '94\xa0% interval 1 to never'
    """
    if not interval.level:
        return ""
    level = f"{round(100 * interval.level)}\N{NO-BREAK SPACE}%"
    return f"{level} interval {number(interval.low)} to {number(interval.high)}"


def with_interval(interval: Interval) -> str:
    r"""Return a median with its interval in brackets, if there is one.

    >>> with_interval(Interval(2.0, 1.0, 3.0, 0.9375, 5)), with_interval(Interval(2.0, 2.0, 2.0, 0.0, 1))
    ('2 [1, 3]', '2')
    """
    if not interval.level or interval.low == interval.high:
        return number(interval.centre)
    return f"{number(interval.centre)} [{number(interval.low)}, {number(interval.high)}]"


def plural(n: int, one: str, many: str = "") -> str:
    """Return a count with its noun.

    >>> plural(1, "seed"), plural(5, "seed"), plural(1200, "update")
    ('1 seed', '5 seeds', '1,200 updates')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(names: list[str]) -> str:
    """Return names as a sentence lists them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]])) if names else ""


def few(names: list[str], most: int = 4) -> str:
    """Return names as a sentence lists them, or the first and how many others there are.

    >>> few(["a", "b", "c", "d", "e", "f"])
    'a, b, c and 3 others'
    """
    if len(names) <= most:
        return listed(names)
    return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"


def ratio_text(ratio: float) -> str:
    """Return a ratio as a sentence has it: two digits, hundredths below 2, or enough to tell it from 1.

    >>> ratio_text(2.46), ratio_text(1.0041), ratio_text(0.333), ratio_text(1.0), ratio_text(123.4)
    ('2.5', '1.004', '0.33', '1', '123')
    >>> ratio_text(1.049), ratio_text(1.14), ratio_text(1.95)
    ('1.05', '1.14', '1.95')
    """
    return number(ratio, 4) if ratio_bound(ratio) == "1" else ratio_bound(ratio)


def ratio_with_interval(ratio: Interval) -> str:
    """Return a ratio with its interval in brackets, if there is one.

    >>> ratio_with_interval(Interval(2.04, 1.51, 3.0, 0.97, 6))
    '2 [1.51, 3]'
    """
    end = ratio_bound if ratio.low <= 1 <= ratio.high else ratio_text  # no end looks like 1 that is not
    wide = ratio.level and ratio.low < ratio.high
    interval = f" [{end(ratio.low)}, {end(ratio.high)}]" if wide else ""
    return f"{ratio_text(ratio.centre)}{interval}"


def ratio_bound(ratio: float) -> str:
    """Return an end of a ratio's interval: as its centre, but no more digits near 1.

    >>> ratio_bound(1.0041), ratio_bound(1.049), ratio_bound(2.46)
    ('1', '1.05', '2.5')
    """
    return number(ratio, 3 if ratio >= 100 or 1 <= ratio < 2 else 2)


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
    links: Sequence[str] = ()
    """Where the names of the rows lead, if anywhere."""


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
