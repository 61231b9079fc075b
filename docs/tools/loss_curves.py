"""Draws the loss of several runs against time and against gradients, from their records.

    python docs/tools/loss_curves.py docs/images/compare-modes.svg runs/ssgd runs/asgd …

One picture for the README; `main.py --report` draws all that can be said of the same runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from dsgd.records.reader import Record, read_record
from dsgd.show.report.panels.drawing import readable_ticks
from dsgd.show.report.style import RC, inline_svg, png, standalone_svg, styles


def draw(records: Sequence[Record], path: Path) -> None:
    """Draw the runs into a file whose name says the format (svg or png); a run's folder is its label.

    Raises ValueError for another format, and for a run without evaluations.
    """
    if path.suffix not in (".svg", ".png"):
        raise ValueError(f"{path}: must end in .svg or .png")
    for record in records:
        if not record.evals:
            raise ValueError(f"{record.path}: has no evaluation")
    with mpl.rc_context(RC):
        figure = _figure(records)
        if path.suffix == ".svg":
            path.write_text(standalone_svg(inline_svg(figure, "Loss against time and against gradients")))
        else:
            path.write_bytes(png(figure))


def _figure(records: Sequence[Record]) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_time, by_gradients = figure.subplots(1, 2, sharey=True)
    looks = styles({record.path.name: record.summary.mode for record in records})
    for record in records:
        label = record.path.name
        finite = [e for e in record.evals if e.loss is not None]
        losses = [e.loss for e in finite]
        for axes, places in (
            (by_time, [e.t_s for e in finite]),
            (by_gradients, [e.gradients for e in finite]),
        ):
            axes.plot(places, losses, label=label, markevery=max(1, len(losses) // 6), **looks[label].line)
    unit = "virtual seconds" if all(r.summary.engine == "sim" for r in records) else "seconds"
    by_time.set(xlabel=f"time ({unit})", ylabel="loss on held-out data", title="Who is first?")
    by_gradients.set(xlabel="gradients (mini-batches, all workers)", title="Who learns most from a gradient?")
    for axes in (by_time, by_gradients):
        axes.set_yscale("log")
        axes.grid(visible=True)
        axes.margins(x=0.02)
        readable_ticks(axes, "x")
    readable_ticks(by_time, "y", log=True)
    handles, labels = by_time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")
    return figure


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("loss_curves.py: give the figure's file and the records of finished runs")
    try:
        draw([read_record(Path(record)) for record in sys.argv[2:]], Path(sys.argv[1]))
    except ValueError as error:
        sys.exit(f"loss_curves.py: {error}")
