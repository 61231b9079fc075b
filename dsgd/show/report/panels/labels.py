"""Names of lines, written where the lines end instead of in a legend."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SIZE = 8.5
"""Points of a name's letters."""
_LETTER, _LINE = 0.0715, 0.14  # inches of a letter and of a line of text
_WIDEST = 20  # letters of a line
_GAP = 0.06  # inches between a line's end and its name
_EARLY = 0.3  # inches before the right end of the axes: a line that ends earlier is named there
_BREAKS = re.compile(r"\S+?(?:[=,:;/_+-]+(?=\S\S)|\s+|$)|\s+")  # where a word that is too long may end
_STEP = 0.03  # inches between the points of a line that names keep away from


@dataclass(frozen=True, kw_only=True)
class Label:
    """The name of a line."""

    text: str
    line: Floats  # (n, 2), in data
    colour: str
    beside: Floats = field(default_factory=lambda: np.empty((0, 2)))
    """(m, 2), in data: marks next to the line, which no name may cover."""

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in inches."""
        return extent(self.text)


class Place(NamedTuple):
    """Where a name is written, in inches from the lower left corner of the axes."""

    x: float
    """Of its left end."""
    y: float
    """Of its middle."""
    leader: tuple[float, float] | None
    """Where a thin line to the name begins: the end of its line, where that is not beside the name."""


class Box(NamedTuple):
    """A rectangle, in inches."""

    left: float
    right: float
    low: float
    high: float

    def touches(self, other: Box) -> bool:
        beside = self.left >= other.right or other.left >= self.right
        return not (beside or self.low >= other.high or other.low >= self.high)


def wrapped(name: str, most: int = _WIDEST) -> str:
    r"""Return a name in lines of at most so many letters, broken at spaces or after punctuation if possible.

    >>> wrapped("asgd with a name that is much longer", 16)
    'asgd with a name\nthat is much\nlonger'
    """
    lines = [""]
    for word in re.findall(r"\S+\s*|\s+", name):
        parts = [word] if _letters(word.rstrip()) <= most else _BREAKS.findall(word)
        for part in (long[i : i + most] for long in parts for i in range(0, len(long), most)):
            if lines[-1] and _letters((lines[-1] + part).rstrip()) > most:
                lines.append("")
            lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def extent(text: str) -> tuple[float, float]:
    """Return the width and height of a name, in inches."""
    lines = text.split("\n")
    return _LETTER * max(map(_letters, lines)), _LINE * len(lines)


def fit(names: Sequence[str], height: float) -> bool:
    """Whether names can stand below each other at the end of axes of this height in inches."""
    return sum(extent(wrapped(name))[1] for name in names) <= height


def room(labels: Sequence[Label], axes: Axes, width: float, height: float, least: float = 0.0) -> float:
    """Return the inches to reserve at the right of axes, at least these, for names that do not fit into them.

    width, height: inches of the axes and the room together.
    """
    needed = least
    for _ in labels:
        places = arrange(labels, axes, width - needed, height)
        ends = [at.x + label.size[0] for label, at in zip(labels, places, strict=True)]
        outside = max(ends) + _GAP - (width - needed)
        if outside <= needed:
            break
        needed = outside
    return needed


def arrange(labels: Sequence[Label], axes: Axes, width: float, height: float) -> list[Place]:
    """Return a place for each name: where its line ends early, if there is room; else outside.

    Names outside, at the right of the axes, are pushed apart so that none covers another.
    """
    lines = [_in_inches(label.line, axes, width, height) for label in labels]
    marks = [_in_inches(label.beside, axes, width, height) for label in labels]
    ink = np.concatenate([np.empty((0, 2)), *map(_dense, lines), *marks])
    found: dict[int, Place] = {}
    taken: list[Box] = []
    for i in sorted(range(len(labels)), key=lambda i: -lines[i][-1][0]):
        for box in _beside(lines[i], labels[i].size) if width - lines[i][-1][0] > _EARLY else ():
            inside = box.left >= 0 and box.right <= width and box.low >= 0 and box.high <= height
            if inside and not _covers(box, ink) and not any(map(box.touches, taken)):
                found[i] = Place(box.left, (box.low + box.high) / 2, None)
                taken.append(box)
                break
    outside = [i for i in range(len(labels)) if i not in found]
    ends = [lines[i][-1] for i in outside]
    middles = apart([float(y) for _, y in ends], [labels[i].size[1] for i in outside], height)
    for i, (x, y), middle in zip(outside, ends, middles, strict=True):
        moved = abs(middle - y) > 0.04 or width - x > 0.12
        found[i] = Place(width + 1.6 * _GAP, middle, (float(x), float(y)) if moved else None)
    return [found[i] for i in range(len(labels))]


def write(labels: Sequence[Label], axes: Axes, width: float, height: float) -> None:
    """Write the names. width, height: of the axes, in inches."""
    on: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    thin: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.7, "scalex": False, "scaley": False}
    for label, at in zip(labels, arrange(labels, axes, width, height), strict=True):
        look: dict[str, Any] = {"color": label.colour, "size": SIZE, "va": "center", "linespacing": 1.1}
        axes.text(at.x / width, at.y / height, label.text, **on, **look)
        if at.leader:
            x, y = at.leader
            ends = [x / width, (at.x - _GAP / 2) / width], [y / height, at.y / height]
            axes.plot(*ends, color=label.colour, **thin, **on)


def apart(wanted: Sequence[float], heights: Sequence[float], most: float) -> list[float]:
    """Return the middles of boxes near those wanted, none above another, from 0 to `most` if they fit.

    Boxes that would overlap form a block around the mean of the places that they want: the least squares.

    >>> [round(y, 2) for y in apart([0.5, 0.52, 2.0], [0.2, 0.2, 0.2], 3.0)]
    [0.41, 0.61, 2.0]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[int]] = []
    lows: list[float] = []  # of the blocks
    for i in order:
        blocks.append([i])
        lows.append(_low(blocks[-1], wanted, heights, most))
        while len(blocks) > 1 and lows[-2] + sum(heights[j] for j in blocks[-2]) > lows[-1]:
            last = blocks.pop()
            lows.pop()
            blocks[-1] += last
            lows[-1] = _low(blocks[-1], wanted, heights, most)
    middles = [0.0] * len(wanted)
    for block, low in zip(blocks, lows, strict=True):
        for i in block:
            middles[i] = low + heights[i] / 2
            low += heights[i]
    return middles


def _low(block: Sequence[int], wanted: Sequence[float], heights: Sequence[float], most: float) -> float:
    """Return the lower end of a block that has its boxes, on average, where they want to be."""
    below, offsets = 0.0, []
    for i in block:
        offsets.append(wanted[i] - below - heights[i] / 2)
        below += heights[i]
    return max(0.0, min(sum(offsets) / len(offsets), most - below))


def _beside(line: Floats, size: tuple[float, float]) -> Iterator[Box]:
    """Yield where it is clear whose a name is: after the end of its line, around it, then along the line."""
    width, height = size
    along = line if len(line) == 1 else _dense(line)
    for share in (1.0, 0.85, 0.7, 0.55, 0.4):
        x, y = (float(value) for value in along[round(share * (len(along) - 1))])
        yield Box(x + _GAP, x + _GAP + width, y - height / 2, y + height / 2)
        for left in (x - width / 2, x - width, x - 0.2 * width):
            yield Box(left, left + width, y + _GAP, y + _GAP + height)
            yield Box(left, left + width, y - _GAP - height, y - _GAP)
        yield Box(x - _GAP - width, x - _GAP, y - height / 2, y + height / 2)


def _covers(box: Box, ink: Floats) -> bool:
    (x, y), near = ink.T, _STEP
    across = (box.left - near < x) & (x < box.right + near)
    return bool((across & (box.low - near < y) & (y < box.high + near)).any())


def _in_inches(line: Floats, axes: Axes, width: float, height: float) -> Floats:
    axes.get_xlim()  # settles what is still to be scaled
    axes.get_ylim()
    shares = (axes.transData - axes.transAxes).transform(line)
    inside = np.clip(shares[np.isfinite(shares).all(axis=1)], 0, 1)
    return np.asarray(inside) * (width, height)


def _dense(line: Floats) -> Floats:
    """Return points of a line that are nearer to each other than the height of a letter."""
    lengths = np.hypot(*np.diff(line, axis=0).T)
    along = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.linspace(0, along[-1], 2 + int(along[-1] / _STEP))
    return np.stack([np.interp(at, along, line[:, 0]), np.interp(at, along, line[:, 1])], axis=1)


def _letters(text: str) -> int:
    """Return how many letters wide a text is: those of Chinese and Japanese are two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
