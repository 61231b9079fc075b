"""When workers computed, sent and waited: a window of one run, worker by worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import NamedTuple

from matplotlib.axes import Axes

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedFault, RecordedTask
from dsgd.show.report.colours import LIGHT
from dsgd.show.report.panels.drawing import Canvas, Panel, Scene, Section, boxes, readable_ticks
from dsgd.show.report.style import INK
from dsgd.show.report.written_numbers import few

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
    disturbed: bool = False
    """Whether the run had faults that change times, be it outside the window."""


def timeline(scene: Scene) -> Section:
    """Draw a panel for each variant: the same window of time, where updates are not too rare for it."""
    complete = [v for v in scene.variants if is_complete(scene.representative(v))]
    shown, others = scene.most(complete)
    records = {variant: scene.representative(variant) for variant in shown}
    from_s, end_s = _span(list(records.values()))
    moments = "The first moments" if from_s == 0 else "The moments around the first fault"
    caption = (
        f"{moments} of one run per variant, all with the same seed. Full colour: a worker computes; "
        "pale: its messages travel or are served (half before and half after, as the record has only their "
        "sum); dark grey: work that was discarded; light ground: it waits, or worked on a task that was "
        "cancelled or dropped. Ticks above are updates."
    )
    if any(record.faults for record in records.values()):
        caption += (
            " A triangle is where a fault began; the bar below it lasts until all workers concerned computed "
            "again, were honest again or had left. In a run with faults a task that waits for a process is "
            "pale too, and all of that comes before it computes; dark grey is also what was computed when a "
            "process was lost."
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
        from_s=from_s,
        end_s=end_s,
        tasks=[[] for _ in rows],
        ignored=[[] for _ in rows],
        faults=faults,
        disturbed=any(fault.kind != "lie" for fault in record.faults),
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
    computing, sending, lost = _spans(found, found.tasks)
    discarded, sending_it, lost_too = _spans(found, found.ignored)
    sending += sending_it
    discarded += lost + lost_too
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
_LOSES = frozenset({"kill", "node"})  # the faults that end a process
_NO_TIME_S = 1e-9  # by which times differ that are the same


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


class Spans(NamedTuple):
    """When (from, until, engine s) a task was computed, travelled or waited, and was lost."""

    computing: Sequence[tuple[float, float]]
    sending: Sequence[tuple[float, float]]
    lost: Sequence[tuple[float, float]] = ()


def spans_of(task: RecordedTask, faults: Sequence[RecordedFault], *, disturbed: bool) -> Spans:
    """Return when a task was computed, as far as a record says it.

    Without faults the rest of its time is in halves around it. In a run with faults it is before: the task
    waits for a process. A pause interrupts the computing and a cut holds its result; what a lost process had
    computed is lost. faults: those of the run. disturbed: whether the run had any, be it outside the window.
    """
    start_s, end_s, compute_s = task.started_s, task.finished_s, task.compute_s
    other_s = max(0.0, end_s - start_s - compute_s)
    if not disturbed:
        first, last = start_s + other_s / 2, end_s - other_s / 2
        return Spans([(first, last)], [(start_s, first), (last, end_s)])
    during = [f for f in faults if task.worker in f.workers and start_s < f.t_s < end_s and f.kind != "lie"]
    if not during or other_s < _NO_TIME_S:
        return Spans([(end_s - compute_s, end_s)], [(start_s, end_s - compute_s)])
    kinds, t_s = {fault.kind for fault in during}, during[0].t_s
    if kinds & _LOSES:
        lost_at_s = next(fault.t_s for fault in during if fault.kind in _LOSES)
        sent_s = max(lost_at_s, end_s - compute_s)
        return Spans([(sent_s, end_s)], [(lost_at_s, sent_s)], [(start_s, lost_at_s)])
    before_s = {"cut": compute_s, "pause": min(compute_s, t_s - start_s)}.get("".join(kinds), 0.0)
    stops_s, goes_on_s = start_s + before_s, end_s - (compute_s - before_s)
    return Spans([(start_s, stops_s), (goes_on_s, end_s)], [(stops_s, goes_on_s)])


def _spans(found: Window, tasks_of: Sequence[Sequence[RecordedTask]]) -> tuple[Boxes, Boxes, Boxes]:
    """Return the boxes of computing, of sending and waiting, and of what was lost, within the window."""
    computing, sending, lost = Boxes(), Boxes(), Boxes()
    hair = 0.0012 * (found.end_s - found.from_s)  # tasks that touch are seen as two
    for row, tasks in enumerate(tasks_of):
        for task in tasks:
            spans = spans_of(task, found.faults, disturbed=found.disturbed)
            for boxes_of, pieces, gap in zip(
                (computing, sending, lost), spans, (hair, 0.0, 0.0), strict=True
            ):
                for left, right in pieces:
                    left, right = max(left + gap, found.from_s), min(right - gap, found.end_s)
                    if right - left > 2e-4 * (found.end_s - found.from_s):
                        boxes_of.append((left, right, row - 0.4, row + 0.4))
    return computing, sending, lost
