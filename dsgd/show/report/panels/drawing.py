"""The figures of a report. A panel is one pair of axes, as wide as a phone; a page sets them side by side."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from dsgd.records.reader import Record
from dsgd.show.report.comparable import identical
from dsgd.show.report.frames import Frames
from dsgd.show.report.panels import labels
from dsgd.show.report.style import INK, Style, inline_svg, png
from dsgd.show.report.written_numbers import few, number

_LEGEND: dict[str, Any] = {
    "borderpad": 0.2, "labelspacing": 0.35, "columnspacing": 1.2, "handlelength": 2.4, "handletextpad": 0.5,
}  # fmt: skip
T = TypeVar("T")
Values = Sequence[float] | NDArray[np.float64]

WIDTH = 4.6  # inches: text of 9 points stays readable when a phone shows this at full width
MOST_PANELS = 12  # of one kind, such as one a variant
MOST_SCENARIOS = 4  # that get curves
_LEFT, _RIGHT, _TITLE, _AXIS, _LEGEND_ROW = 0.7, 0.14, 0.34, 0.46, 0.2
_TITLE_ROW = 0.17
_LETTER = 0.07  # inches, of 9 points


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A drawn figure."""

    name: str
    """Of its files."""
    title: str
    svg: str = field(repr=False)
    png: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Section:
    """Panels that belong together, with their heading and caption."""

    name: str
    """One of `FIGURES`."""
    heading: str
    caption: str
    panels: Sequence[Panel]
    columns: int = 2
    """Panels in a row, where there is room."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What panels are drawn from."""

    frames: Frames
    looks: Mapping[str, Style]
    """By variant."""

    @property
    def variants(self) -> list[str]:
        return self.frames.variants

    def of(self, variant: str) -> list[Record]:
        return self.frames.of(variant)

    def representative(self, variant: str) -> Record:
        """Return the variant's run with the lowest seed that all variants have: all meet the same draws."""
        records = self.of(variant)
        by_variant = ({r.summary.seed for r in self.of(other)} for other in self.variants)
        common = set.intersection(*by_variant)
        return next((r for r in records if r.summary.seed in common), records[0])

    def some_scenarios(self, among: Sequence[str] | None = None) -> tuple[dict[str, list[str]], str]:
        """Return scenarios with their variants, few enough to be drawn, and a sentence about the others.

        among: the variants that are looked at; None: all.
        """
        wanted = self.variants if among is None else among
        found = {s: [v for v in variants if v in wanted] for s, variants in self.frames.scenarios.items()}
        names = spread([scenario for scenario, variants in found.items() if variants], MOST_SCENARIOS)
        rest = sum(map(bool, found.values())) - len(names)
        sentence = f" Drawn are {len(names)} of {len(names) + rest} scenarios." if rest else ""
        return {name: found[name] for name in names}, sentence

    @property
    def seconds(self) -> str:
        """The unit of the engine's clock."""
        return self.frames.seconds

    def most(self, variants: Sequence[str]) -> tuple[Sequence[str], str]:
        """Return the variants that get a panel each, and a sentence about the others.

        Of those that are the same runs, the first has one for all. Those of a scenario stay together, because
        they are compared.
        """
        classes = [[v for v in same if v in variants] for same in identical(self.frames)]
        sentences = "".join(
            f" {few(same)} share a panel: they are the same runs." for same in classes if same[1:]
        )
        repeated = {v for same in classes for v in same[1:]}
        distinct = [v for v in variants if v not in repeated]
        shown, others = self._most(distinct)
        return shown, sentences + others

    def _most(self, variants: Sequence[str]) -> tuple[Sequence[str], str]:
        if len(variants) <= MOST_PANELS:
            return variants, ""
        groups = [[v for v in group if v in variants] for group in self.frames.scenarios.values()]
        groups = [group for group in groups if group]
        drawn = spread(groups, max(1, MOST_PANELS // max(map(len, groups))))
        shown = [variant for group in drawn for variant in group][:MOST_PANELS]
        return shown, f" Drawn are {len(shown)} of {len(variants)} variants."


def spread(values: Sequence[T], most: int) -> list[T]:
    """Return at most so many of the values, the last among them, the others evenly between.

    >>> spread("abcdefgh", 3), spread("abc", 1), spread("ab", 3)
    (['a', 'e', 'h'], ['c'], ['a', 'b'])
    """
    if len(values) <= most:
        return list(values)
    if most == 1:
        return [values[-1]]
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


@dataclass(kw_only=True)
class Canvas:
    """Axes of a panel before and while they are drawn on; sizes are inches."""

    title: str
    subtitle: str = ""
    what: str = ""
    """What is drawn, for those who do not see it."""
    axes_height: float = 2.3
    left: float = _LEFT
    right: float = _RIGHT
    """At least: names beside the axes may need more room."""
    legend: list[tuple[str, Any]] = field(default_factory=list)
    """Labels and handles, in order."""
    names: list[tuple[Axes, labels.Label]] = field(default_factory=list)
    """Of lines, written where the lines end."""

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(WIDTH, self.axes_height))
        self._placed: list[tuple[Axes, float, float]] = []

    def axes(self, height: float | None = None, above: float = 0.0, **options: Any) -> Axes:
        """Add axes of a height (None: all that is left), so far below the first ones' top."""
        axes = self.figure.add_axes((0.1, 0.1, 0.8, 0.8), **options)
        axes.set_axisbelow(True)
        self._placed.append((axes, above, self.axes_height - above if height is None else height))
        return axes

    def name(
        self, axes: Axes, text: str, x: Values, y: Values, look: Style, beside: Sequence[Sequence[float]] = ()
    ) -> None:
        """Write a name, in the colour of its variant, at the end of its line (x, y: data).

        beside: marks (x, y) that no name may cover.
        """
        line = np.column_stack([x, y]).astype(float)
        marks = np.array(beside, dtype=float).reshape(-1, 2)
        label = labels.Label(text=labels.wrapped(text), line=line, colour=look.text, beside=marks)
        self.names.append((axes, label))

    @property
    def room(self) -> float:
        """The inches at the right of the axes, for names too."""
        most = WIDTH - self.left
        return max(
            labels.room(self._named(axes), axes, most, height, self.right) for axes, _, height in self._placed
        )

    def _named(self, axes: Axes) -> list[labels.Label]:
        return [label for on, label in self.names if on is axes]

    def done(self, name: str) -> Panel:
        """Lay out the figure, with names at the ends of lines and the legend below, and render it."""
        rows = self._legend_rows()
        below = self._below_axes() + rows * _LEGEND_ROW + (0.06 if rows else 0)
        heading = [(line, "bold") for line in labels.wrapped(self.title, 44).split("\n")]
        heading += [(line, "normal") for line in labels.wrapped(self.subtitle, 52).split("\n") if line]
        total = _TITLE + _TITLE_ROW * (len(heading) - 1) + self.axes_height + below
        self.figure.set_size_inches(WIDTH, total)
        for place, (line, weight) in enumerate(heading):
            y = 1 - (0.17 + _TITLE_ROW * place) / total
            self.figure.text(0.08 / WIDTH, y, line, va="center", weight=weight, size=10)
        width = WIDTH - self.left - self.room
        for axes, above, height in self._placed:
            bottom = below + self.axes_height - above - height
            axes.set_position((self.left / WIDTH, bottom / total, width / WIDTH, height / total))
            labels.write(self._named(axes), axes, width, height)
        if rows:
            self.figure.legend(
                [handle for _, handle in self.legend],
                [label for label, _ in self._entries()],
                loc="lower left",
                bbox_to_anchor=(0.04 / WIDTH, 0.0),
                ncols=self._legend_columns(),
                **_LEGEND,
            )
        return _rendered(name, ", ".join(filter(None, [self.what, self.title, self.subtitle])), self.figure)

    def _below_axes(self) -> float:
        """Return the inches for ticks, of which some have several lines, and for the name of the axis."""
        lines = [
            1 + tick.get_text().count("\n") + bool(axes.get_xlabel())
            for axes, *_ in self._placed
            for tick in axes.get_xticklabels()
        ]
        return _AXIS + labels.extent("x")[1] * max(0, max(lines, default=0) - 2)

    def _entries(self) -> list[tuple[str, Any]]:
        """Return the legend with labels that fit the panel."""
        return [(labels.wrapped(label, 54), handle) for label, handle in self.legend]

    def _legend_columns(self) -> int:
        widest = max(_LETTER * len(label) for label, _ in self._entries()) + 0.55
        return max(1, min(len(self.legend), int((WIDTH - 0.1) / widest)))

    def _legend_rows(self) -> int:
        return math.ceil(len(self.legend) / self._legend_columns()) if self.legend else 0


def _rendered(name: str, title: str, figure: Figure) -> Panel:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names may be in any script
        return Panel(name=name, title=title, svg=inline_svg(figure, title), png=png(figure))


def legend(name: str, looks: Mapping[str, Style]) -> Panel:
    """Draw the legend of a section, by name, for panels in which names do not fit beside the lines."""
    shown = {labels.wrapped(name, 54): Line2D([], [], **look.line) for name, look in looks.items()}
    widest = max(labels.extent(text)[0] for text in shown) + 0.55
    columns = max(1, int((WIDTH - 0.1) / widest))
    rows = math.ceil(sum(labels.extent(text)[1] for text in shown) / labels.extent("x")[1] / columns)
    height = 0.1 + _LEGEND_ROW * rows
    figure = Figure(figsize=(WIDTH, height))
    figure.legend(list(shown.values()), list(shown), loc="center left", ncols=columns, **_LEGEND)
    return _rendered(name, "Legend", figure)


def boxes(axes: Axes, rectangles: Sequence[tuple[float, float, float, float]], **look: Any) -> PathPatch:
    """Draw rectangles (x from, x to, y from, y to) as one path: a figure of thousands stays small."""
    vertices, codes = [], []
    for left, right, low, high in rectangles:
        vertices += [(left, low), (right, low), (right, high), (left, high), (left, low)]
        codes += [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    patch = PathPatch(Outline(vertices or [(0, 0)], codes or None), linewidth=0, **look)
    axes.add_patch(patch)
    return patch


class _LogTicks(LogLocator):
    """Ticks of a logarithmic axis: more than the powers of ten where those are few, and labels have room."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        decades = math.log10(vmax / vmin) if vmin > 0 else 9
        finest = (decades <= 2.5) + (decades <= 0.8)
        for subs in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8), (1.0, 2.0, 5.0), (1.0,))[2 - finest :]:
            self.set_params(subs=subs)
            found = super().tick_values(vmin, vmax)
            if self._have_room([x for x in found if vmin <= x <= vmax], decades):
                break
        return found

    def _have_room(self, ticks: Sequence[float], decades: float) -> bool:
        """Whether labels do not touch side by side; the axes have their final width when this is asked."""
        axis: Any = self.axis
        if axis.axis_name == "y":
            return True
        inches = axis.axes.bbox.width / axis.axes.figure.dpi / decades
        return all(
            inches * math.log10(b / a) > sum(labels.extent(_tick(x, 0))[0] for x in (a, b)) / 2 + 0.08
            for a, b in pairwise(ticks)
        )


def readable_ticks(axes: Axes, which: str, *, log: bool = False, whole: bool = False) -> None:
    """Write the ticks of an axis (x or y) as plain numbers, on a logarithmic axis at 1, 2 and 5 if few."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if log:
        axis.set_major_locator(_LogTicks(numticks=12))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(5 if which == "x" else 6, integer=whole))
    axis.set_major_formatter(FuncFormatter(_tick))


def _tick(x: float, _place: object) -> str:
    """Return a tick's label: short, for many stand in a row.

    >>> _tick(1500.0, 0), _tick(2.5e6, 0), _tick(0.05, 0)
    ('1,500', '2.5M', '0.05')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(x) >= size:
            return number(x / (1e3 if letter == "k" else size)) + letter
    return number(x, 4)


def left_margin(names: Iterable[str], bold: Iterable[str] = ()) -> float:
    """Return the inches that names next to a vertical axis take, some of them in bold letters."""
    widths = [labels.extent(name)[0] for name in names] + [1.15 * labels.extent(name)[0] for name in bold]
    return 0.3 + max(widths)


def rule(axes: Axes, value: float, which: str = "y", **look: Any) -> Any:
    """Draw a dotted line across the axes at a value, in the ink of the text."""
    draw: Callable[..., Any] = axes.axhline if which == "y" else axes.axvline
    return draw(value, **({"color": INK, "linewidth": 1.0, "linestyle": (0, (1, 2))} | look))
