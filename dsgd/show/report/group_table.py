"""The measure by group and level, as a small table."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dsgd.show.report.frames import Frames
from dsgd.show.report.layout import Factor
from dsgd.show.report.questions import Question
from dsgd.show.report.sentences import tied
from dsgd.show.report.written_numbers import Table, number, ratio_with_interval, with_interval


def table_of_groups(frames: Frames, question: Question) -> Table | None:
    """Return the measure by group and level; None where a sentence says it all."""
    layout = question.layout
    if len(layout.cells) == 1 and not frames.asked.compare and layout.baseline is None:
        return None
    baseline, levels = layout.baseline, list(layout.compared.levels)
    note = f"{question.measure.label}, medians over seeds with their intervals"
    best, equal = set[tuple[int, int]](), set[str]()
    if baseline is not None:
        levels.remove(baseline)
        levels.insert(0, baseline)
        note += f"; ×: how many times that of {baseline}"
    elif question.measure.low_is_good is not None:
        note += "; ≈: the best has no significant lead over it"
        for row, group in enumerate(layout.cells):
            ranking, leaders = question.ranking(group), question.leaders(group)
            if leaders and math.isfinite(ranking[leaders[0]].centre):
                best |= {(row, levels.index(layout.level(group, one))) for one in leaders}
                equal |= set(tied(question, group))

    def cell(cells: Mapping[str, str], level: str) -> str:
        value = question.median(cells[level]) if level in cells else None
        if value is None:
            return "–"
        if baseline is None or level == baseline or baseline not in cells:
            return f"{with_interval(value)}{' ≈' if cells[level] in equal else ''}"
        ratio = question.ratio(cells[level], cells[baseline])
        if ratio is None or not math.isfinite(ratio.centre):
            return with_interval(value)
        return f"{number(value.centre)}\n× {ratio_with_interval(ratio)}"

    grouped, compared = layout.grouped, layout.compared
    if len(layout.cells) == 1:
        (cells,) = layout.cells.values()
        return Table(
            title="",
            note=f"{note[0].upper()}{note[1:]}.",
            headings=[compared.option or "variant", question.measure.label],
            rows=[[compared.short(level), cell(cells, level)] for level in levels],
            best={(column, 1) for _, column in best},
        )
    return Table(
        title="",
        note=f"{note[0].upper()}{note[1:]}.",
        headings=[_corner(grouped, compared), *(compared.short(level) for level in levels)],
        rows=[
            [grouped.short(group), *(cell(cells, level) for level in levels)]
            for group, cells in layout.cells.items()
        ],
        best={(row, 1 + column) for row, column in best},
    )


def _corner(rows: Factor, columns: Factor) -> str:
    return " \\ ".join(filter(None, [rows.option, columns.option]))
