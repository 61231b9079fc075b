"""The output of an experiment on the terminal: one line of progress, then a short table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from dsgd.experiments.experiment_file import Experiment, PlannedRun
from dsgd.experiments.worker import Outcome
from dsgd.records.outcomes import is_result
from dsgd.records.reader import read_summary
from dsgd.records.schema import RecordError, Summary


class Display:
    """One bar over all mini-batches of an experiment; without a terminal, a line for each run that ends."""

    def __init__(self, experiment: Experiment, console: Console) -> None:
        runs = [*experiment.tuning_runs(), *experiment.runs()]
        self._console, self._count, self._ended = console, len(runs), 0
        self._said: set[str] = set()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        total = sum(run.cfg.budget for run in runs)
        self._task = self._progress.add_task(experiment.name, total=total, status=f"{len(runs)} runs")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Print a line above the progress."""
        self._console.print(escape(text), soft_wrap=True)

    def kept(self, runs: Sequence[PlannedRun]) -> None:
        """Count runs that were there already."""
        if runs:
            self.say(f"{len(runs)} finished runs are kept")
        for run in runs:
            self._advance(run)

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        """Show how a run ended."""
        self._advance(run)
        if outcome.traceback and outcome.traceback not in self._said:  # the same mistake may end many runs
            self._said.add(outcome.traceback)
            print(outcome.traceback, end="", file=sys.stderr)
        if outcome.error:
            how = "diverged" if outcome.stopped_by == "diverged" else "failed"
            self.say(f"{run.name} {how}: {outcome.error}")
        elif not self._console.is_terminal:
            self.say(f"{self._ended}/{self._count} {run.name} in {outcome.seconds:.1f} s")

    def _advance(self, run: PlannedRun) -> None:
        self._ended += 1
        status = f"{self._ended}/{self._count} runs · {run.name}"
        self._progress.update(self._task, advance=run.cfg.budget, status=status)


def print_results(experiment: Experiment, console: Console) -> None:
    """Print a line per variant: medians over its runs."""
    table = Table("variant", "runs", "loss at the end", "seconds", "", box=None, pad_edge=False)
    runs = experiment.runs()
    for variant in experiment.variants:
        summaries = [_summary(run) for run in runs if run.variant == variant.name]
        finished = [summary for summary in summaries if summary]
        diverged = sum(summary.stopped_by == "diverged" for summary in finished)
        losses = [s.eval.loss for s in finished if s.eval.loss is not None]
        table.add_row(
            escape(variant.name),
            str(len(finished)),
            _median(losses),
            _median([summary.clock_s for summary in finished]),
            f"{diverged} diverged" if diverged else "",
        )
    console.print(table)


def _summary(run: PlannedRun) -> Summary | None:
    try:
        summary = read_summary(run.path)
    except RecordError:  # there is none: it failed before it began
        return None
    return summary if is_result(summary.stopped_by) else None


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.4g}" if values else "–"
