"""The result of an experiment on the terminal: a short table, and the answer that the report gives."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsgd.show.report.answer import answer
from dsgd.show.report.frames import Frames
from dsgd.show.report.questions import questions
from dsgd.show.report.written_numbers import number


def print_results(frames: Frames, console: Console) -> None:
    """Print a line per variant, medians over its runs, and the answer."""
    asked = questions(frames) if len(frames.variants) > 1 else []
    measured = [
        question for question in asked if question.measure.name not in ("last-loss", "time", "loss-at-time")
    ][:1]
    unit = frames.seconds
    headings = ["variant", "runs", *(question.name for question in measured), "loss at the end", unit]
    table = Table(*headings, "", box=None, pad_edge=False)
    for variant in frames.variants:
        summaries = [record.summary for record in frames.of(variant)]
        diverged = sum(summary.stopped_by == "diverged" for summary in summaries)
        medians = [question.median(variant) for question in measured]
        table.add_row(
            escape(variant),
            str(len(summaries)),
            *(number(found.centre if found else None, 4) for found in medians),
            _median([s.eval.loss for s in summaries if s.eval.loss is not None]),
            _median([summary.clock_s for summary in summaries]),
            f"{diverged} diverged" if diverged else "",
        )
    console.print(table)
    found = answer(frames)
    console.print()
    for sentence in (found.headline, *(f"- {point}" for point in found.points)):
        console.print(escape(sentence), highlight=False)
    if found.basis:
        console.print(escape(found.basis), style="dim", highlight=False)
    for premise in frames.judged_premises:
        style = "dim" if premise.held else "bold"
        console.print(f"premise {escape(premise.text)}", style=style, highlight=False, soft_wrap=True)


def _median(values: Sequence[float]) -> str:
    return number(median(values), 4) if values else "–"
