"""Figures of a report as values: a notebook shows them, and they can be saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from dsgd.show.report.figures import draw_sections
from dsgd.show.report.frames import Frames
from dsgd.show.report.panels.drawing import Canvas, Panel, readable_ticks
from dsgd.show.report.style import RC, standalone_svg, styles

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """A figure. The last expression of a notebook's cell shows it."""

    title: str
    svg: str = field(repr=False)
    """A whole file: light or dark as the reader's page is."""
    png: bytes = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> Path:
        """Write the figure to a file that ends in .svg or .png, and return its path.

        Raises ValueError for another ending, OSError where the file cannot be written.
        """
        path = Path(path)
        match path.suffix:
            case ".svg":
                path.write_text(self.svg, encoding="utf-8")
            case ".png":
                path.write_bytes(self.png)
            case ending:
                raise ValueError(f"{path}: {ending or 'no ending'}: must end in .svg or .png")
        return path


class Line(NamedTuple):
    """A line of `curves`."""

    mode: str
    x: Floats
    y: Floats


def of_comparison(frames: Frames, name: str | None = None) -> Picture:
    """Return a figure of a report by its name, or the first, which shows the answer.

    Raises ValueError, with the names that there are, for another.
    """
    names = []
    for section in draw_sections(frames):
        for panel in section.panels:
            if name in (None, panel.name):
                return _picture(panel)
            names.append(panel.name)
    if not names:
        raise ValueError("there is no figure: nothing was measured")
    raise ValueError(f"plot: {name}: there is no such figure; choose from {', '.join(names)}")


def curves(title: str, lines: Mapping[str, Line], x_label: str, y_label: str) -> Picture:
    """Return lines with their names at the end, each in its mode's look."""
    with mpl.rc_context(RC):
        canvas = Canvas(title=title)
        axes = canvas.axes()
        looks = styles({name: line.mode for name, line in lines.items()})
        for name, line in lines.items():
            axes.plot(line.x, line.y, **looks[name].line, markevery=0.2, drawstyle="steps-post")
            if len(lines) > 1:
                canvas.name(axes, name, line.x, line.y, looks[name])
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.grid(visible=True)
        readable_ticks(axes, "x")
        readable_ticks(axes, "y")
        return _picture(canvas.done("curves"))


def _picture(panel: Panel) -> Picture:
    return Picture(panel.title, standalone_svg(panel.svg), panel.png)
