"""When workers computed, sent and waited: a window of one run, worker by worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from matplotlib.axes import Axes

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedFault, RecordedTask
from dsgd.report.colours import LIGHT
from dsgd.report.panels import Canvas, Panel, Scene, Section, boxes, readable_ticks
from dsgd.report.style import INK
from dsgd.report.words import few

_MOST_WORKERS = 16
_BATCHES = 16  # of a worker, about, that the window shows
_LONGER = 5  # times as many, where updates are rare
_MOST_UPDATES = 400  # in a window: more ticks are one block
_BEFORE = 0.25  # of a window that begins late: before its first fault
_ROW = 0.17


@dataclass(kw_only=True)
class Window:
    """What a run did from `from_s` until `end_s`: the tasks of the first workers, when updates were made, and
    the faults.
    """

    from_s: float
    end_s: float
    tasks: list[list[RecordedTask]]
    """Of each shown worker, in the order in which they came in."""
    ignored: list[list[RecordedTask]]
    """The same, of those that were discarded."""
    updates_s: list[float] = field(default_factory=list)
    faults: Sequence[RecordedFault] = ()


def timeline(scene: Scene) -> Section:
    """Draw a panel for each variant: the same window of time, where updates are not too rare for it."""
    complete = [v for v in scene.variants if is_complete(scene.representative(v))]
    shown, others = scene.most(complete)
    records = {variant: scene.representative(variant) for variant in shown}
    from_s, end_s = _span(list(records.values()))
    moments = "The first moments" if from_s == 0 else "The moments around the first fault"
    caption = (
        f"{moments} of one run a variant, all with the same seed. Full colour: a worker computes; "
        "pale: its messages travel or are served (half before and half after, as the record has only their "
        "sum); dark grey: work that was discarded; light ground: it waits, or worked on a task that was "
        "cancelled or lost. Ticks above are updates."
    )
    if any(record.faults for record in records.values()):
        caption += (
            " A triangle is where a fault began; the bar below it lasts until all workers concerned computed "
            "again or had left."
        )
    left_out = [v for v in scene.variants if v not in complete]
    if left_out:
        caption += f" Without a record of every update: {few(left_out)}."
    return Section(
        name="timeline",
        heading="When do workers compute, send and wait?",
        caption=caption + others,
        panels=[_panel(scene, v, records[v], (from_s, end_s), place) for place, v in enumerate(shown)],
    )


def _span(records: Sequence[Record]) -> tuple[float, float]:
    """Return the window that is shown: from the start of the runs, or around a later first fault."""
    length_s = _end_s(records)
    first_s = min((fault.t_s for record in records for fault in record.faults), default=0.0)
    from_s = first_s - _BEFORE * length_s if first_s > (1 - _BEFORE) * length_s else 0.0
    return from_s, from_s + length_s


def _end_s(records: Sequence[Record]) -> float:
    """Return until when runs are shown: past the first update of each, unless that is far too long."""
    common_s = _BATCHES * median(record.summary.batch_s for record in records)
    first_s = 1.3 * max(map(_first_update_s, records), default=0.0)
    return max(common_s, min(first_s, _LONGER * common_s))


def is_complete(record: Record) -> bool:
    """Whether all tasks of a run were recorded."""
    return record.config.get("record", "all") == "all" and record.summary.updates > 0


def _first_update_s(record: Record) -> float:
    return max((update.t_s for update in islice(record.updates(), 1)), default=0.0)


def window(record: Record, end_s: float, most_workers: int = _MOST_WORKERS, *, from_s: float = 0.0) -> Window:
    """Read a run's updates until `end_s`, and on until every shown worker's task at that time has come in."""
    rows = range(min(most_workers, record.summary.num_workers))
    faults = [f for f in record.faults if f.t_s < end_s and (f.over_s is None or f.over_s > from_s)]
    found = Window(
        from_s=from_s, end_s=end_s, tasks=[[] for _ in rows], ignored=[[] for _ in rows], faults=faults
    )
    open_rows = set(rows)
    for update in record.updates():
        if from_s <= update.t_s <= end_s:
            found.updates_s.append(update.t_s)
        for kind, tasks in ((found.tasks, update.gradients), (found.ignored, update.ignored)):
            for task in tasks:
                if task.worker in rows and task.started_s < end_s and task.finished_s > from_s:
                    kind[task.worker].append(task)
                if task.finished_s >= end_s:
                    open_rows.discard(task.worker)
        if update.t_s > end_s and not open_rows:
            break
    return found


def _panel(scene: Scene, variant: str, record: Record, span_s: tuple[float, float], place: int) -> Panel:
    from_s, end_s = span_s
    found = window(record, max(from_s, min(end_s, record.summary.clock_s)), from_s=from_s)
    rows = len(found.tasks)
    canvas = Canvas(title=variant, what="Timeline", axes_height=_ROW * (rows + 1.4) + 0.05, left=0.72)
    axes = canvas.axes()
    colour = scene.looks[variant].colour
    boxes(
        axes, [(from_s, found.end_s, row - 0.4, row + 0.4) for row in range(rows)], facecolor=INK, alpha=0.07
    )
    computing, sending = _spans(found.tasks, from_s, found.end_s)
    discarded, sending_it = _spans(found.ignored, from_s, found.end_s)
    sending += sending_it
    boxes(axes, sending, facecolor=colour, alpha=0.35)
    boxes(axes, computing, facecolor=colour, alpha=0.95)
    if discarded:
        boxes(axes, discarded, facecolor=INK, alpha=0.45)
    ticks = found.updates_s[:: max(1, len(found.updates_s) // _MOST_UPDATES)]
    axes.vlines(ticks, -1.5, -0.75, color=INK, linewidth=0.7)
    _mark_faults(axes, found, rows)
    shown = (
        "" if rows == record.summary.num_workers else f", the first {rows} of {record.summary.num_workers:,}"
    )
    axes.set_yticks([-1.1, *range(rows)], ["updates", *map(str, range(rows))])
    axes.set(xlim=(from_s, end_s), ylim=(rows - 0.5, -1.7))
    axes.set_ylabel(f"worker{shown}", labelpad=1, y=0.45)
    axes.set_xlabel(f"time ({scene.seconds}), seed {record.summary.seed}")
    axes.tick_params(axis="y", length=0, labelsize=7.5)
    axes.spines["left"].set_visible(False)
    readable_ticks(axes, "x")
    return canvas.done(f"timeline-{place + 1}")


Boxes = list[tuple[float, float, float, float]]


def _mark_faults(axes: Axes, found: Window, rows: int) -> None:
    """Draw a triangle where a fault began and a bar until it was over, in the rows of the workers it hit.

    Those that hit no worker, like the driver's, are in the row of the updates.
    """
    marks, bars = [], []
    for fault in found.faults:
        over_s = found.end_s if fault.over_s is None else min(fault.over_s, found.end_s)
        for row in [worker for worker in fault.workers if worker < rows] if fault.workers else [-1.1]:
            marks.append((fault.t_s, row))
            bars.append((max(fault.t_s, found.from_s), over_s, row + 0.26, row + 0.46))
    boxes(axes, bars, facecolor=INK)
    began = [(t_s, row) for t_s, row in marks if t_s >= found.from_s]
    axes.plot(
        [t_s for t_s, _ in began],
        [row - 0.05 for _, row in began],
        linestyle="",
        marker="v",
        markersize=5.5,
        markerfacecolor=INK,
        markeredgecolor=LIGHT,
        markeredgewidth=0.6,
    )


def _spans(tasks_of: Sequence[Sequence[RecordedTask]], from_s: float, end_s: float) -> tuple[Boxes, Boxes]:
    """Return the boxes of computing and of sending, cut at the window's ends."""
    computing: Boxes = []
    sending: Boxes = []
    for row, tasks in enumerate(tasks_of):
        for task in tasks:
            other_s = max(0.0, task.finished_s - task.started_s - task.compute_s)
            first, last = task.started_s + other_s / 2, task.finished_s - other_s / 2
            hair = 0.0012 * (end_s - from_s)  # tasks that touch are seen as two
            for boxes_of, left, right in (
                (computing, first + hair, last - hair),
                (sending, task.started_s, first),
                (sending, last, task.finished_s),
            ):
                left, right = max(left, from_s), min(right, end_s)
                if right - left > 2e-4 * (end_s - from_s):
                    boxes_of.append((left, right, row - 0.4, row + 0.4))
    return computing, sending
