"""The figure of a strategy's page: its curve on that of its reference, and their difference."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from dsgd.show.report.panels.drawing import Canvas, readable_ticks
from dsgd.show.report.style import DASHES, INK, RC, Style, standalone_svg, styles
from references.compare import Curves

ROUNDING = 2.0**-23  # of float32
_LEAST = 1e-9  # what is drawn of a difference; equal numbers are drawn there
_DASHED = DASHES[1]


def draw_curves(mode: str, curves: Sequence[Curves]) -> str:
    """Return an SVG: above the loss over mini-batches, below how far strategy and reference are apart."""
    look = styles({mode: mode})[mode]
    with mpl.rc_context(RC):
        canvas = Canvas(title=f"{mode} and its reference, {len(curves)} seeds", axes_height=3.15)
        loss = canvas.axes(height=2.0)
        apart = canvas.axes(height=0.8, above=2.35)
        _loss(loss, curves, look)
        _differences(apart, curves, look)
        apart.set_xlabel("gradients (mini-batches)")
        for axes in (loss, apart):
            axes.set_xlim(0, 1.02 * max(c.gradients[-1] for c in curves))
            readable_ticks(axes, "x")
        loss.tick_params(labelbottom=False)
        return standalone_svg(canvas.done(f"reference-{mode}").svg)


def _loss(axes: Axes, curves: Sequence[Curves], look: Style) -> None:
    grid = np.linspace(max(c.gradients[0] for c in curves), min(c.gradients[-1] for c in curves), 60)
    for c in curves:
        (thin,) = axes.plot(c.gradients, c.strategy, color=look.colour, linewidth=0.6, alpha=0.45)
    middle = np.median([np.interp(grid, c.gradients, c.strategy) for c in curves], axis=0)
    (thick,) = axes.plot(grid, middle, color=look.colour, linewidth=1.8)
    few = grid[4::6]
    again = np.median([np.interp(few, c.gradients, c.reference) for c in curves], axis=0)
    (rings,) = axes.plot(few, again, "o", markersize=6, markerfacecolor="none", markeredgecolor=INK)
    axes.legend(
        [thin, thick, rings],
        ["strategy, each seed", "strategy, median", "reference, median"],
        loc="upper right",
        borderaxespad=0,
    )
    axes.set_yscale("log")
    axes.set_ylabel("loss on held-out data")
    readable_ticks(axes, "y", log=True)
    axes.grid(visible=True)


def _differences(axes: Axes, curves: Sequence[Curves], look: Style) -> None:
    for c in curves:
        shown = np.maximum(c.differences, _LEAST)
        axes.plot(c.gradients, shown, ".", color=look.colour, markersize=4, markeredgewidth=0, alpha=0.6)
    axes.axhline(ROUNDING, color=INK, linewidth=0.7)
    right = max(c.gradients[-1] for c in curves)
    axes.text(right, ROUNDING / 5, "rounding of float32", ha="right", va="top", fontsize=8.5)
    axes.set_yscale("log")
    axes.set_ylim(_LEAST / 1.5, 3e-5)
    axes.set_yticks([_LEAST, 1e-7, 1e-5], ["0", "1e-7", "1e-5"])
    axes.minorticks_off()
    axes.set_ylabel("difference")
    axes.grid(visible=True)
