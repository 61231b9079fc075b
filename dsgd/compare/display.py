"""The progress of an experiment on the terminal: one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dsgd.compare.experiment import Experiment, PlannedRun
from dsgd.compare.worker import Outcome
from dsgd.process.outcomes import echoed


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

    def add(self, runs: Sequence[PlannedRun]) -> None:
        """Count more runs."""
        self._count += len(runs)
        more = sum(run.cfg.budget for run in runs)
        self._progress.update(self._task, total=(self._progress.tasks[0].total or 0) + more)

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
        for note in outcome.notes:
            if (kind := f"{run.variant} {note.partition(':')[0]}") not in self._said:
                self._said.add(kind)
                self.say(f"{run.name}: {echoed(note)}")
        if outcome.error:
            how = "diverged" if outcome.stopped_by == "diverged" else "failed"
            self.say(f"{run.name} {how}: {outcome.error}")
        elif not self._console.is_terminal:
            self.say(f"{self._ended}/{self._count} {run.name} in {outcome.seconds:.1f} s")

    def _advance(self, run: PlannedRun) -> None:
        self._ended += 1
        status = f"{self._ended}/{self._count} runs · {run.name}"
        self._progress.update(self._task, advance=run.cfg.budget, status=status)
