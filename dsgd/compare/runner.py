"""Runs an experiment: simulations in several processes at the same time, then Ray's one after another."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml
from rich.console import Console

from dsgd.compare.display import Display
from dsgd.compare.experiment import Experiment, PlannedRun, described
from dsgd.compare.finished_runs import clear, goes_on, kept_and_damaged, locked
from dsgd.compare.measured_times import in_need, with_measured_times
from dsgd.compare.pool import Pool, cores
from dsgd.compare.tuning import Selection, choose, widened
from dsgd.compare.uploads import Uploads
from dsgd.compare.worker import Outcome, execute_recorded
from dsgd.data import make_workload
from dsgd.engines.open_cluster import require_room
from dsgd.process.files import whole_file
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError, is_result
from dsgd.show.live.observers import Observers
from dsgd.show.report.experiment_yaml import AsRun, AsTuned, ComparedVariant
from dsgd.show.report.not_given import measured_text
from dsgd.show.terminal.usage import usage_errors


class Finished(NamedTuple):
    """The result of an experiment."""

    experiment: Experiment
    """With the options that were chosen for its variants, if it was tuned."""
    failed: Mapping[str, str]
    """The runs that failed, and why."""
    chosen: Mapping[str, Mapping[str, Any]]
    """By variant, the options that were chosen for it, if any were tuned."""
    report: Path | None
    """None if there was nothing to report on, or no report was asked for."""
    premises_held: bool = True
    """Whether all that the file takes for granted was so; without a report, it was not looked at."""


def run_experiment(
    experiment: Experiment,
    interruptions: Interruptions,
    console: Console,
    processes: int | None = None,
    uploads: Uploads | None = None,
    observers: Observers | None = None,
    *,
    draw: bool = True,
) -> Finished:
    """Run what is not there yet, write the tables and, with `draw`, the report.

    console: shows the progress, and a table at the end.
    processes: how many simulate at the same time; as many as there are cores, unless said.
    uploads: gets the records as they are finished.
    observers: see the runs on Ray, which are in this process.
    Raises UsageError for impossible runs, and for files in the way of their records, before any is run;
    KeyboardInterrupt when interrupted: what had finished is kept.
    """
    with locked(experiment.folder) as lock:
        return _run_locked(experiment, interruptions, console, processes, uploads, observers, lock, draw=draw)


def _run_locked(
    experiment: Experiment,
    interruptions: Interruptions,
    console: Console,
    processes: int | None,
    uploads: Uploads | None,
    observers: Observers | None,
    lock: int,
    *,
    draw: bool,
) -> Finished:
    with ExitStack() as stack:
        engines = stack.enter_context(_Engines(interruptions, processes or cores(), lock, observers))
        display = stack.enter_context(Display(experiment, console))
        choices: Sequence[Selection] = ()
        if in_need(experiment):
            experiment = _with_measured_times(experiment, display, uploads)
        if experiment.tuning:
            wider: Experiment | None = experiment
            tried: set[str] = set()
            while wider:
                experiment = wider
                asked = [run for run in experiment.tuning_runs() if run.name not in tried]
                tried |= {run.name for run in asked}
                display.add(asked if choices else [])
                missing, failed = _missing(asked, engines, display, uploads)
                if failed := failed | _run(missing, engines, display, uploads):
                    said = f"{len(failed)} of the tuning runs failed, so nothing was compared; run it again"
                    display.say(said)
                    return Finished(experiment, failed, {}, None)
                choices = choose(experiment)
                wider = widened(experiment, choices)
            for choice in choices:
                display.say(str(choice))
            experiment = experiment.tuned({choice.tuned.variant: choice.best for choice in choices})
        missing, failed = _missing(experiment.runs(), engines, display, uploads)
        _write_as_run(experiment, choices)
        failed |= _run(missing, engines, display, uploads)
    report, held = None, True
    if draw and len(failed) < len(experiment.runs()):
        with Interruptions():  # a second one: the caller's holds signals once the last run has ended
            report, held = _report(experiment.folder, console)
    chosen = {choice.tuned.variant: choice.tuned.chosen for choice in choices}
    return Finished(experiment, failed, chosen, report, held)


def print_plan(experiment: Experiment, console: Console) -> None:
    """List the experiment's runs and what differs; nothing is run or written.

    Raises UsageError as `run_experiment` does, before the first run.
    """
    tuning_runs = experiment.tuning_runs()
    runs = [*tuning_runs, *experiment.runs()]
    # Which options the variants of a tuned experiment will have is not known before its tuning.
    kept, damaged = kept_and_damaged(tuning_runs or runs)
    check_data([run for run in runs if run.path not in kept and run not in damaged])
    own = {variant.name: variant.own for variant in experiment.variants}
    if experiment.tuning:
        own |= {v.name: v.own for tried in experiment.tuning.tried.values() for v in tried}
    names = {run: f"{'tuning/' if run in tuning_runs else ''}{run.name}" for run in runs}
    width = max(map(len, names.values()))
    for run, name in names.items():
        state = "kept" if run.path in kept else ""
        differs = damaged.get(run) or " ".join(described(*item) for item in own[run.variant].items())
        console.print(f"{name:{width}}  {state:4}  {differs}", soft_wrap=True, markup=False)
    count = f"{len(runs)} runs, {len(kept)} of them kept; into {experiment.folder}"
    console.print(count, soft_wrap=True, markup=False)


def check_data(runs: Sequence[PlannedRun]) -> None:
    """Raise UsageError for what options alone do not show: data that cannot be split, too little memory."""
    seen = set()
    for run in runs:
        data = (run.cfg.data, run.cfg.num_workers, run.cfg.batch_size, run.cfg.engine)
        if data not in seen:
            seen.add(data)
            try:
                require_room(run.cfg)
                make_workload(run.cfg, recorded={} if goes_on(run) else None)
            except ValueError as error:
                raise UsageError(f"variant {run.variant}: {error}") from None


def _with_measured_times(experiment: Experiment, display: Display, uploads: Uploads | None) -> Experiment:
    if uploads:  # what another machine has measured counts
        with usage_errors():
            uploads.fetch([run.path for run in (*experiment.tuning_runs(), *experiment.runs())])
    experiment = with_measured_times(experiment)
    for said in measured_text({v.name: v.measured_s for v in experiment.variants if v.measured_s}):
        display.say(said)
    return experiment


def _missing(
    runs: Sequence[PlannedRun], engines: _Engines, display: Display, uploads: Uploads | None
) -> tuple[list[PlannedRun], dict[str, str]]:
    """Return the runs that are not there yet, once checked to be possible and to have a free folder; and
    those whose records are damaged, and why.
    """
    kept, damaged = kept_and_damaged(runs)
    if uploads:
        with usage_errors():
            uploads.fetch([run.path for run in runs if run.path not in kept])
        kept, damaged = kept_and_damaged(runs)
    missing = [run for run in runs if run.path not in kept and run not in damaged]
    display.kept([run for run in runs if run.path in kept])
    for run, why in damaged.items():
        display.ended(run, Outcome("failed", why, "", 0.0, 0.0))
    if uploads:
        for path in sorted(kept):
            uploads.add(path)
    engines.warm_up(missing)
    check_data(missing)  # while the processes import what they need
    return missing, {run.name: why for run, why in damaged.items()}


def _run(
    runs: Sequence[PlannedRun], engines: _Engines, display: Display, uploads: Uploads | None
) -> dict[str, str]:
    """Run all, and return those that failed, and why."""
    failed = {}
    for run in runs:
        clear(run)
    if continued := sum(map(goes_on, runs)):
        display.say(f"{continued} unfinished runs go on from their checkpoints")
    if uploads:
        uploads.begin([run.path for run in runs])
    for run, outcome in engines.outcomes(runs):
        display.ended(run, outcome)
        finished = is_result(outcome.stopped_by)
        if not finished:
            failed[run.name] = outcome.error
        if uploads and finished:
            uploads.add(run.path)
    return failed


class _Engines:
    """The processes that simulate and the connection to Ray, each made when first needed and then kept."""

    def __init__(
        self, interruptions: Interruptions, processes: int, lock: int, observers: Observers | None
    ) -> None:
        self._interruptions, self._observers = interruptions, observers
        self._stack = ExitStack()
        self._pool = self._stack.enter_context(Pool(processes, lock))
        self._connected = False

    def __enter__(self) -> _Engines:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def warm_up(self, runs: Sequence[PlannedRun]) -> None:
        """Have as many processes begin to import as `runs` can use."""
        self._pool.grow([run for run in runs if run.cfg.engine == "sim"])

    def outcomes(self, runs: Sequence[PlannedRun]) -> Iterator[tuple[PlannedRun, Outcome]]:
        simulated = [run for run in runs if run.cfg.engine == "sim"]
        real = [run for run in runs if run.cfg.engine == "ray"]
        yield from self._interruptions.between(self._pool.outcomes(simulated))
        if real:
            self._pool.end()
        for run in self._interruptions.between(iter(real)):  # alone on the machine, because it is timed
            self._connect(run)
            watchers = self._observers.watchers() if self._observers else ()
            outcome = execute_recorded(run.cfg, self._interruptions, watchers)
            if outcome.stopped_by == "interrupted":
                clear(run)
                raise KeyboardInterrupt
            yield run, outcome

    def _connect(self, run: PlannedRun) -> None:
        """Connect to Ray, once: each run's own connection then leaves it open."""
        if not self._connected:
            from dsgd.engines.ray.connection.connect import connect

            with self._interruptions.held():
                connection = connect(run.cfg.ray.start_timeout_s)
                self._stack.callback(connection.close)
            self._connected = True


def _write_as_run(experiment: Experiment, choices: Sequence[Selection]) -> None:
    asked, tuning = experiment.asked, experiment.tuning
    as_run = AsRun(
        title=experiment.title,
        question=experiment.question,
        base=experiment.base,
        variants=[
            ComparedVariant(
                name=v.name, folder=v.folder, options=v.options, measured_s=v.measured_s, **v.parts
            )
            for v in experiment.variants
        ],
        seeds=experiment.seeds,
        target_loss=experiment.target_loss,
        compare=asked.compare,
        per=asked.per,
        baseline=asked.baseline,
        measure=asked.measures,
        premise=experiment.premises or (),
        show=experiment.show,
        tuning=AsTuned(seeds=tuning.seeds, choices=[c.tuned for c in choices]) if tuning else None,
    )
    with whole_file(experiment.folder / "experiment.yaml") as file:
        file.write(yaml.safe_dump(msgspec.to_builtins(as_run), sort_keys=False, allow_unicode=True).encode())


def _report(folder: Path, console: Console) -> tuple[Path, bool]:
    """Write tables and report, print the answer; return the report's path, and whether the premises held."""
    from dsgd.show.report.answer import print_results
    from dsgd.show.report.build import build_report
    from dsgd.show.report.frames import read_folder

    frames = read_folder(folder)
    with suppress(BrokenPipeError):
        print_results(frames, console)  # first: a full disk must not cost the answer
    for name, table in (("results", frames.runs), ("curves", frames.curves)):
        with whole_file(folder / f"{name}.parquet") as file:
            table.write_parquet(parquet := io.BytesIO())  # polars does not say that a disk is full
            file.write(parquet.getbuffer())
    report = build_report(folder, frames)
    with suppress(BrokenPipeError):
        console.print(f"report  {report}", soft_wrap=True, highlight=False)
    return report, all(premise.held for premise in frames.judged_premises)
