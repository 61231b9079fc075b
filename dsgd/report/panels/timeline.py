"""When workers computed, sent and waited: a window of one run, worker by worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from dsgd.records.reader import Record
from dsgd.records.schema import RecordedTask
from dsgd.report.panels import Canvas, Panel, Scene, Section, boxes, readable_ticks
from dsgd.report.style import INK
from dsgd.report.words import few

_MOST_WORKERS = 16
_BATCHES = 16  # of a worker, about, that the window shows
_LONGER = 5  # times as many, where updates are rare
_MOST_UPDATES = 400  # in a window: more ticks are one block
_ROW = 0.17


@dataclass(kw_only=True)
class Window:
    """What a run did until `end_s`: the tasks of the first workers, and when updates were made."""

    end_s: float
    tasks: list[list[RecordedTask]]
    """Of each shown worker, in the order in which they came in."""
    ignored: list[list[RecordedTask]]
    """The same, of those that were discarded."""
    updates_s: list[float] = field(default_factory=list)


def timeline(scene: Scene) -> Section:
    """Draw a panel for each variant: the same window of time, where updates are not too rare for it."""
    complete = [v for v in scene.variants if is_complete(scene.representative(v))]
    shown, others = scene.most(complete)
    records = {variant: scene.representative(variant) for variant in shown}
    end_s = _end_s(list(records.values()))
    caption = (
        "The first moments of one run a variant, all with the same seed. Full colour: a worker computes; "
        "pale: its messages travel or are served (half before and half after, as the record has only their "
        "sum); dark grey: work that was discarded; light ground: it waits, or worked on a task that was "
        "cancelled. Ticks above are updates."
    )
    left_out = [v for v in scene.variants if v not in complete]
    if left_out:
        caption += f" Without a record of every update: {few(left_out)}."
    return Section(
        name="timeline",
        heading="When do workers compute, send and wait?",
        caption=caption + others,
        panels=[_panel(scene, v, records[v], end_s, place) for place, v in enumerate(shown)],
    )


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


def window(record: Record, end_s: float, most_workers: int = _MOST_WORKERS) -> Window:
    """Read a run's updates until `end_s`, and on until every shown worker's task at that time has come in."""
    rows = range(min(most_workers, record.summary.num_workers))
    found = Window(end_s=end_s, tasks=[[] for _ in rows], ignored=[[] for _ in rows])
    open_rows = set(rows)
    for update in record.updates():
        if update.t_s <= end_s:
            found.updates_s.append(update.t_s)
        for kind, tasks in ((found.tasks, update.gradients), (found.ignored, update.ignored)):
            for task in tasks:
                if task.worker in rows and task.started_s < end_s:
                    kind[task.worker].append(task)
                if task.finished_s >= end_s:
                    open_rows.discard(task.worker)
        if update.t_s > end_s and not open_rows:
            break
    return found


def _panel(scene: Scene, variant: str, record: Record, end_s: float, place: int) -> Panel:
    found = window(record, min(end_s, record.summary.clock_s))
    rows = len(found.tasks)
    canvas = Canvas(title=variant, what="Timeline", axes_height=_ROW * (rows + 1.4) + 0.05, left=0.72)
    axes = canvas.axes()
    colour = scene.looks[variant].colour
    boxes(axes, [(0, found.end_s, row - 0.4, row + 0.4) for row in range(rows)], facecolor=INK, alpha=0.07)
    computing, sending = _spans(found.tasks, found.end_s)
    for_nothing, sending_it = _spans(found.ignored, found.end_s)
    sending += sending_it
    boxes(axes, sending, facecolor=colour, alpha=0.35)
    boxes(axes, computing, facecolor=colour, alpha=0.95)
    if for_nothing:
        boxes(axes, for_nothing, facecolor=INK, alpha=0.45)
    ticks = found.updates_s[:: max(1, len(found.updates_s) // _MOST_UPDATES)]
    axes.vlines(ticks, -1.5, -0.75, color=INK, linewidth=0.7)
    shown = (
        "" if rows == record.summary.num_workers else f", the first {rows} of {record.summary.num_workers:,}"
    )
    axes.set_yticks([-1.1, *range(rows)], ["updates", *map(str, range(rows))])
    axes.set(xlim=(0, end_s), ylim=(rows - 0.5, -1.7))
    axes.set_ylabel(f"worker{shown}", labelpad=1, y=0.45)
    axes.set_xlabel(f"time ({scene.seconds}), seed {record.summary.seed}")
    axes.tick_params(axis="y", length=0, labelsize=7.5)
    axes.spines["left"].set_visible(False)
    readable_ticks(axes, "x")
    return canvas.done(f"timeline-{place + 1}")


Boxes = list[tuple[float, float, float, float]]


def _spans(tasks_of: Sequence[Sequence[RecordedTask]], end_s: float) -> tuple[Boxes, Boxes]:
    """Return the boxes of computing and of sending, cut at the window's end."""
    computing: Boxes = []
    sending: Boxes = []
    for row, tasks in enumerate(tasks_of):
        for task in tasks:
            other_s = max(0.0, task.finished_s - task.started_s - task.compute_s)
            first, last = task.started_s + other_s / 2, task.finished_s - other_s / 2
            hair = 0.0012 * end_s  # tasks that touch are seen as two
            for boxes_of, left, right in (
                (computing, first + hair, last - hair),
                (sending, task.started_s, first),
                (sending, last, task.finished_s),
            ):
                right = min(right, end_s)
                if right - left > 2e-4 * end_s:
                    boxes_of.append((left, right, row - 0.4, row + 0.4))
    return computing, sending
