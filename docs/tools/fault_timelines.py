"""Draws what follows the loss of a process under each policy, and a pause under suspicion.

    python docs/tools/fault_timelines.py docs/images/fault-timelines.svg        # or make fault-timelines

Real runs of the simulator: four workers, and the same fault in all of them. Left SSGD, which waits for all;
right ASGD, which waits for none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline

from dsgd.running.quick_run import QuickRun, run
from dsgd.show.report.style import INK, LOOKS, RC, inline_svg, look, standalone_svg

WORKERS, STRUCK, BEGINS_S, LASTS_S, ENDS_S = 4, 1, 3.5, 4.0, 12.0
KILL = f"kill:{STRUCK}@t={BEGINS_S:g}+{LASTS_S:g}"
MODES = ("ssgd", "asgd")
_GAP_S = 0.04  # between two bars


class Policy(NamedTuple):
    """A row of the figure."""

    title: str
    options: Mapping[str, Any]


POLICIES = (
    Policy("replace: worker 1 waits for a new process", {"faults": KILL, "on_loss": "replace"}),
    Policy("rehost: worker 0's process computes for both", {"faults": KILL, "on_loss": "rehost"}),
    Policy("drop: the others go on without worker 1", {"faults": KILL, "on_loss": "drop"}),
    Policy("a spare takes over at once", {"faults": KILL, "spares": 1}),
    Policy(
        "a pause; suspected after 2 s, a spare gets the task too",
        {"faults": f"pause:{STRUCK}={LASTS_S:g}@t={BEGINS_S:g}", "suspect_after": 2.0, "spares": 1},
    ),
)


def outcome(mode: str, policy: Policy) -> QuickRun:
    """Run a mode under a policy, for longer than the figure shows."""
    return run(
        mode, workload="none", num_workers=WORKERS, steps=20, compute_time="uniform:.7,1.1", **policy.options
    )


def draw(path: Path) -> None:
    """Draw all policies, in both modes, into an SVG file."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(9.2, 7.4), layout="constrained")
        grid = figure.subplots(len(POLICIES), len(MODES), sharex=True, sharey=True)
        for row, policy in zip(grid, POLICIES, strict=True):
            for axes, mode in zip(row, MODES, strict=True):
                _timeline(axes, outcome(mode, policy), LOOKS[look(mode)][0], in_flight_since(mode))
                axes.set_title(f"{mode.upper()}, {policy.title}", fontsize=8.5)
        for axes in grid[-1]:
            axes.set_xlabel("virtual seconds")
        svg = inline_svg(figure, "Four workers when a process is lost, or stands still, under each policy")
        path.write_text(standalone_svg(svg), encoding="utf-8")


def in_flight_since(mode: str) -> float:
    """Return when the struck worker got the task that it has when the fault begins: the same in all rows."""
    (started_s,) = (
        float(d.started_s)
        for d in outcome(mode, POLICIES[0]).finished
        if d.worker == STRUCK and d.started_s < BEGINS_S < d.finished_s
    )
    return started_s


def _timeline(axes: Axes, outcome: QuickRun, colour: str, sent_s: float) -> None:
    axes.axvspan(BEGINS_S, BEGINS_S + LASTS_S, color=INK, alpha=0.08, linewidth=0, zorder=0)
    dones = [d for d in outcome.finished if d.started_s < ENDS_S]
    sent = [(d.worker, d.started_s, d.finished_s - d.compute_s) for d in dones]
    computed = [(d.worker, d.finished_s - d.compute_s, d.finished_s - _GAP_S) for d in dones]
    in_vain = [(STRUCK, sent_s, BEGINS_S)]
    sent = [(w, BEGINS_S if (w, a) == (STRUCK, sent_s) else a, b) for w, a, b in sent]
    for bars, paint, alpha in ((sent, colour, 0.25), (in_vain, INK, 0.45), (computed, colour, 1.0)):
        # One path for all bars: a path for each would make the file three times as large.
        boxes = [_box(*bar) for bar in bars if bar[2] > bar[1]]
        if boxes:
            path = Outline.make_compound_path(*boxes)
            axes.add_patch(PathPatch(path, color=paint, alpha=alpha, linewidth=0))
    updates_s = [update.finished_s for update in outcome.updates if update.finished_s < ENDS_S]
    ticks = [(x, y) for at_s in updates_s for x, y in ((at_s, -0.87), (at_s, -0.57), (math.nan, math.nan))]
    axes.plot(*zip(*ticks, strict=True), color=INK, linewidth=1)
    axes.set(xlim=(0, ENDS_S), ylim=(WORKERS - 0.5, -1.0), yticks=range(WORKERS))
    axes.set_ylabel("worker")


def _box(worker: int, start_s: float, end_s: float) -> Outline:
    low, high = worker - 0.31, worker + 0.31
    corners = [(start_s, low), (end_s, low), (end_s, high), (start_s, high), (start_s, low)]
    return Outline(corners, closed=True)


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".svg"):
        sys.exit("fault_timelines.py: give the figure's file, ending in .svg")
    draw(Path(sys.argv[1]))
