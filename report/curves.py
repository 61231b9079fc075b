"""Draws the loss of several runs against time and against gradients, from their records.

    python -m report.curves docs/images/compare-modes.svg runs/ssgd runs/asgd …

The same colour stands for a mode everywhere, chosen to be told apart by the colour-blind (Okabe and Ito
2008, "Color universal design").
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

COLOURS = {"ssgd": "#0072B2", "asgd": "#D55E00", "ssp": "#009E73", "localsgd": "#CC79A7"}
OTHERS = ("#E69F00", "#56B4E9", "#000000")


class Curve(NamedTuple):
    """The evaluations of a run."""

    label: str
    mode: str
    engine: str
    t_s: list[float]
    gradients: list[int]
    loss: list[float]


def read_curve(record: Path) -> Curve:
    """Read a run's evaluations; the run's name is its label.

    Raises ValueError, naming the record, if it is not a finished run.
    """
    try:
        summary = json.loads((record / "summary.json").read_text())
        evals = [json.loads(line) for line in (record / "evals.jsonl").read_text().splitlines()]
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{record} is not the record of a finished run: {error}") from None
    columns = zip(*((e["t_s"], e["gradients"], e["loss"]) for e in evals), strict=True)
    t_s, gradients, loss = (list(column) for column in columns)
    return Curve(record.name, summary["mode"], summary["engine"], t_s, gradients, loss)


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw the curves into a file whose name says the format (svg or png)."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "dsgd"  # the same curves give the same file
    import matplotlib.pyplot as plt

    figure, (by_time, by_gradients) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    others = iter(OTHERS * len(curves))
    for curve in curves:
        style: dict[str, Any] = {"color": COLOURS.get(curve.mode) or next(others), "linewidth": 1.8}
        by_time.plot(curve.t_s, curve.loss, label=curve.label, **style)
        by_gradients.plot(curve.gradients, curve.loss, **style)
    unit = "virtual seconds" if all(c.engine == "sim" for c in curves) else "seconds"
    by_time.set(xlabel=f"time ({unit})", ylabel="loss on held-out data", title="Who is first?")
    by_gradients.set(xlabel="gradients (mini-batches, all workers)", title="Who learns most from a gradient?")
    for axes in (by_time, by_gradients):
        axes.set_yscale("log")
        axes.grid(alpha=0.25, which="both", linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    figure.legend(loc="outside right center", frameon=False)
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, dpi=150, metadata=metadata)
    plt.close(figure)


if __name__ == "__main__":
    try:
        draw([read_curve(Path(record)) for record in sys.argv[2:]], Path(sys.argv[1]))
    except (IndexError, ValueError) as error:
        sys.exit(f"report.curves: {error}; give the figure's file and the records of finished runs")
