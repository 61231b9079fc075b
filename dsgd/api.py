"""Runs and experiments from Python: `dsgd.run`, `dsgd.experiment` and more, for notebooks and scripts.

Options are named and checked as on the command line; results are values. Nothing is printed, and nothing is
written unless `out` says where.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgd.config import DataConfig, StopConfig, TrainConfig
from dsgd.core.option_rules import option_fields
from dsgd.core.option_rules import options as flat
from dsgd.metrics import QUANTITIES, taken_of_updates
from dsgd.models.workloads import options_of
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import StoppedBy, UsageError
from dsgd.process.s3_access import is_s3
from dsgd.records.output_options import OutputConfig
from dsgd.records.s3 import fetch
from dsgd.records.upload import Upload
from dsgd.records.writer import RunRecord
from dsgd.running import simulating
from dsgd.running.execute import Ended, execute
from dsgd.running.keeper import RunKeeper, Watcher
from dsgd.running.simulating import Scheduled
from dsgd.scenario.timing_options import MEGABYTE
from dsgd.show.live.observers import Observers
from dsgd.show.terminal.cli import configure
from dsgd.show.terminal.resume_option import AUTO, RunAsked, going_on, going_on_by_name
from dsgd.show.watching_options import LiveConfig, LogConfig
from dsgd.strategies import modes

if TYPE_CHECKING:
    import polars as pl

    from dsgd.core.protocol import Update
    from dsgd.core.weights import Vector
    from dsgd.running.trained_run import TrainedRun
    from dsgd.show.report.frames import Frames
    from dsgd.show.report.pictures import Picture

__all__ = [
    "Comparison", "Result", "Watcher",
    "experiment", "load", "modes", "replay", "run", "schedule", "simulation",
]  # fmt: skip

_PLACES = {"out", "profile"}
_OF_A_RECORD = {*option_fields(OutputConfig), *option_fields(LiveConfig), *option_fields(LogConfig)} - _PLACES
_OF_NO_SCHEDULE = {*option_fields(StopConfig), *_OF_A_RECORD, *_PLACES} - {"max_seconds"}
_TASKS = (
    "version", "worker", "step", "batches", "staleness", "started_s", "finished_s", "compute_s", "loss",
    "applied", "applied_at_s",
)  # fmt: skip
_EVALUATIONS = ("version", "t_s", "gradients", "bytes", "loss", "accuracy", "bits_per_byte")


class _Rows(Watcher):
    """Keeps what a record's updates.jsonl has of each update: no vectors, so that long runs fit in memory."""

    def __init__(self) -> None:
        self._taken = taken_of_updates()
        self.columns = ("version", "t_s", "loss", *self._taken)
        self.updates: list[tuple[Any, ...]] = []
        self.tasks: list[tuple[Any, ...]] = []

    def updated(self, update: Update) -> None:
        version = update.weights.version
        numbers = [take(update) for take in self._taken.values()]
        self.updates.append((version, update.finished_s, update.loss, *numbers))
        for applied, dones in ((True, update.dones), (False, update.ignored)):
            for done in dones:
                times = (done.started_s, done.finished_s, done.compute_s)
                task = (done.worker, done.step, done.batches, update.staleness(done))
                made_s = update.finished_s if applied else None
                self.tasks.append((version, *task, *times, done.loss, applied, made_s))


@dataclass(frozen=True, repr=False)
class Result:
    """A run that has ended."""

    _ended: Ended
    _rows: _Rows

    def __repr__(self) -> str:
        cfg, ended = self._ended.cfg, self._ended
        loss = f", loss {self.loss:.3g}" if self.loss is not None else ""
        return (
            f"<Result: {cfg.mode} on {cfg.engine}, {cfg.num_workers} workers, {ended.tally.updates} updates, "
            f"stopped by {ended.stopped_by}{loss}>"
        )

    @property
    def options(self) -> dict[str, Any]:
        """All options of the run, flat, as a record's config.yaml has them."""
        return flat(self._ended.cfg)

    @property
    def stopped_by(self) -> StoppedBy:
        """Why it ended: budget, seconds, target-loss or diverged."""
        return self._ended.stopped_by

    @property
    def error(self) -> str | None:
        """One line, if it diverged."""
        return self._ended.error

    @property
    def summary(self) -> Any:
        """What summary.json of a record says (docs/record.md)."""
        return self._ended.summary

    @property
    def weights(self) -> Vector:
        """The last version of the weights (D,), read-only."""
        return self._ended.weights.vector

    @property
    def loss(self) -> float | None:
        """Loss of the last evaluation; None where there are no weights."""
        evaluations = self._ended.evaluations
        return evaluations[-1].found.loss if evaluations else None

    @property
    def staleness(self) -> dict[int, int]:
        """How many gradients had each staleness, in updates."""
        return dict(sorted(self._ended.tally.staleness_counts.items()))

    @property
    def path(self) -> Path | None:
        """The record's folder; None without `out`."""
        return self._ended.path

    @cached_property
    def evaluations(self) -> pl.DataFrame:
        """The loss curve, one row per evaluation: version, t_s, gradients, bytes, loss, accuracy, and
        bits_per_byte, null except of language models.
        """
        found = self._ended.evaluations
        return _frame([(e.version, e.t_s, e.gradients, e.bytes, *e.found[:3]) for e in found], _EVALUATIONS)

    @cached_property
    def updates(self) -> pl.DataFrame:
        """One row per update: version, t_s, loss, and the numbers of updates (`QUANTITIES` in metrics.py)."""
        return _frame(self._rows.updates, self._rows.columns)

    @cached_property
    def tasks(self) -> pl.DataFrame:
        """One row per finished task: version (of its update), worker, step, batches, staleness, started_s,
        finished_s (when its result came in), compute_s, loss, whether it was applied or ignored, and
        applied_at_s, the time of its update.
        """
        return _frame(self._rows.tasks, _TASKS)

    def frame(self) -> pl.DataFrame:
        """Return the run as one row, with the columns of results.csv; `polars.concat` stacks such rows."""
        import msgspec
        import polars as pl

        from dsgd.records.schema import summary_type

        # The digest is added where a record is written; no column has it.
        summary = msgspec.convert({"weights_sha256": ""} | self.summary, summary_type(), strict=False)
        cfg = self._ended.cfg
        row = {"mode": cfg.mode, "engine": cfg.engine, "num_workers": cfg.num_workers, "seed": cfg.seed}
        row |= {"stopped_by": self.stopped_by}
        columns = {name: column for one in QUANTITIES for name, column in one.columns.items()}
        types = {name: pl.Int64 if column.kind is int else pl.Float64 for name, column in columns.items()}
        row |= {name: column.of(summary) for name, column in columns.items()}
        return pl.DataFrame([row], schema_overrides=types)

    def curve(self, y: str = "loss", x: str = "t_s") -> pl.DataFrame:
        """Return two columns of `evaluations`, without the rows that have no value.

        Raises ValueError, with the columns that there are, for another.
        """
        for column in (x, y):
            if column not in _EVALUATIONS:
                raise ValueError(f"curve: {column}: must be one of {', '.join(_EVALUATIONS)}")
        return self.evaluations.select(x, y).drop_nulls()

    def plot(self, *others: Result, y: str = "loss", x: str = "t_s") -> Picture:
        """Draw `curve`, and those of other runs beside it; a notebook shows it, `.save("it.svg")` keeps it.

        Raises ValueError as `curve` does, and for a run without evaluations.
        """
        from dsgd.show.report.pictures import Line, curves

        lines = {}
        for name, run in _named([self, *others]).items():
            points = run.curve(y, x)
            if not len(points):
                raise ValueError(f"plot: {name} was not evaluated; give it a workload and eval_every")
            lines[name] = Line(run.options["mode"], points[x].to_numpy(), points[y].to_numpy())
        engines = {run.options["engine"] for run in (self, *others)}
        unit = "engine s" if len(engines) > 1 else {"sim": "virtual s"}.get(engines.pop(), "s")
        labels = {"t_s": f"time ({unit})", "bytes": "bytes sent", "version": "updates"}
        title = f"{y[0].upper()}{y[1:]} against {labels.get(x, x).partition(' (')[0]}"
        return curves(title, lines, labels.get(x, x), y)


def run(
    mode: str | None = None,
    *,
    watch: Iterable[Watcher] = (),
    resume: str | Path | None = None,
    **options: Any,
) -> Result:
    """Run a strategy to the end of its budget.

    options: those of the command line, with underscores: `num_workers=8, engine="sim"`. With `out` the run
    leaves a record there; without, nothing is written.
    mode: ssgd, unless given. watch: observe the run while it goes on.
    resume: the folder of a run that was cut off, which goes on with the options it had; those given besides
    must be the same or be among those that may change (docs/checkpoints.md). "auto": the run of `out` and
    `run_name`, which begins if there is none. The result's updates and tasks are those of this call.

    Raises ValueError, in the words of the command line, for a mistake in the options; ClusterError if the
    workers cannot be started or kept; whatever a strategy raises; KeyboardInterrupt after ctrl-C, once the
    record, if there is one, is complete.

    >>> run("asgd", engine="sim", lrr=1)
    Traceback (most recent call last):
    ValueError: dsgd.run: lrr: there is no such option in --mode asgd; did you mean lr?
    """
    with _mistakes_as_value_errors():
        given = _plain(options) if mode is None else {"mode": mode, **_plain(options)}
        if resume is not None and str(resume) != AUTO:
            asked = going_on(str(resume), given=given)
        else:
            asked = RunAsked(configure({"mode": "ssgd", **given}, "dsgd.run"))
            asked = going_on_by_name(asked.cfg, (), given) if resume else asked
        cfg = asked.cfg
    if cfg.engine == "both":
        raise ValueError('dsgd.run: engine="both" is two runs; call it with engine="ray" and engine="sim"')
    if asked.finished:
        raise ValueError(f"dsgd.run: resume='auto': the run is finished ({asked.finished}); read its record")
    kept = "out" in options or asked.may_resume
    if not kept and (about_it := sorted(_OF_A_RECORD & options.keys())):
        raise ValueError(f"dsgd.run: {about_it[0]} is about the record; say with out= where that goes, too")
    rows = _Rows()
    with ExitStack() as stack:
        interruptions = stack.enter_context(Interruptions((signal.SIGINT,)))
        watchers = [*watch, rows]
        record = bucket = None
        if kept:
            watchers += stack.enter_context(Observers(cfg.live, quiet=True)).watchers()
            if is_s3(cfg.output.out):
                with interruptions.held():  # a claimed name is used or given back
                    upload = Upload(cfg, resume=asked.may_resume)
                    stack.callback(upload.finish)
                cfg, bucket = upload.cfg, upload.checkpoints
            record = RunRecord(cfg, resume=asked.resume is not None, bucket=bucket)
        ended = execute(cfg, watchers, record=record, interruptions=interruptions, resume=asked.resume)
    if ended.exception:
        raise ended.exception
    if ended.stopped_by == "interrupted":
        raise KeyboardInterrupt
    return Result(ended, rows)


def simulation(mode: str | None = None, *, watch: Iterable[Watcher] = (), **options: Any) -> RunKeeper:
    """Return a run in the simulator, kept in memory, that has not begun: it goes on when it is asked to.

    options: as of `run`; those about a record have no place here. watch: observe the run while it goes on.
    Many take turns in one process, and pausing changes no bit of any.

    Raises ValueError as `run` does.

    >>> paused = simulation("asgd", num_workers=8, compute_time="exponential:1")
    >>> paused.advance(20.0)  # to the first update at or after 20 virtual seconds
    >>> then, loss = paused.moment(), paused.evaluations.found[-1].found.loss
    >>> paused.advance()  # to its end
    'budget'
    >>> paused.go_to(then)  # and on from there again, here or in another run of the same options
    """
    return simulating.simulation(_simulated("dsgd.simulation", mode, options), [*watch])


def schedule(mode: str | None = None, *, num_weights: int = 0, **options: Any) -> Scheduled:
    """Return the schedule of a run in the simulator, in milliseconds: nothing is computed.

    options: as of `run`; those of data, evaluations and records are left out. num_weights: of the model, for
    the time of its messages. A mode that decides by the loss, like AdaComm, goes on as it begins.

    Raises ValueError as `run` does.

    >>> schedule("ssgd", num_workers=4, slowdown="0=3").computing  # the others wait for worker 0
    0.5
    """
    if not isinstance(num_weights, Integral) or num_weights < 0:
        raise ValueError(f"dsgd.schedule: num_weights {num_weights}: must be a whole number of at least 0")
    data = options_of(str(options.get("workload", "xor")))
    left_out = _OF_NO_SCHEDULE | option_fields(data or DataConfig).keys()
    given = {name: value for name, value in options.items() if name not in left_out}
    cfg = _simulated("dsgd.schedule", mode, given | {"workload": "none", "eval_every": 0})
    padding_mb = cfg.timing.padding_mb + 4 * num_weights / MEGABYTE
    return simulating.schedule(replace(cfg, timing=replace(cfg.timing, padding_mb=padding_mb)))


def _simulated(caller: str, mode: str | None, options: Mapping[str, Any]) -> TrainConfig:
    """Return the options of a run in the simulator that leaves no record."""
    if options.get("engine", "sim") != "sim":
        raise ValueError(
            f'{caller}: engine="{options["engine"]}": only the simulator does this; leave it out'
        )
    if about_it := sorted({*_PLACES, *_OF_A_RECORD} & options.keys()):
        raise ValueError(f"{caller}: {about_it[0]} is about the record, and there is none; leave it out")
    with _mistakes_as_value_errors():
        return configure({"mode": mode or "ssgd", **_plain(options), "engine": "sim"}, caller)


def replay(
    recorded: str | Path | Result, *, until: int | None = None, check: bool = True
) -> Iterator[Update]:
    """Compute a recorded run again, update by update, without workers: one can stop and look anywhere.

    recorded: the folder of a record, its URL in S3, or the result of a run that has one. Real and
    asynchronous runs too give the same bytes again. until: the last version wanted.
    check: whether each update is compared with its record.

    An update has the weights, and of each task the `value` that it computed and the `origin` it read.
    Raises ValueError for a record that cannot be replayed; where an update differs, while iterating.
    """
    from dsgd.running.replaying import Differs, difference, recorded_run, replayed

    both = replayed(recorded_run(Path(_place(recorded, "dsgd.replay"))), until)

    def updates() -> Iterator[Update]:
        for update, line in both:
            if check and (found := difference(update, line)):
                raise Differs(found)
            yield update

    return updates()


def load(recorded: str | Path | Result) -> TrainedRun:
    """Return what a run has trained: `.module()` is the torch module with its weights.

    recorded: the folder of a record, its URL in S3, or the result of a run that has one; RUN@VERSION is one
    of its checkpoints. Of a run that has not ended, the weights are those of its newest checkpoint. It runs
    the code of the run's workload: load only records that you trust.

    Raises ValueError, in one line, for what is no record, is damaged or has no weights yet.
    """
    from dsgd.running.trained_run import trained_run

    return trained_run(_place(recorded, "dsgd.load", weights=True))


def _place(recorded: str | Path | Result, caller: str, *, weights: bool = False) -> str:
    """Return the folder of a record, which is fetched if it is in S3."""
    if isinstance(recorded, Result):
        if recorded.path is None:
            raise ValueError(f"{caller}: this run has no record; give it out=")
        return str(recorded.path)
    place = str(recorded)
    return str(fetch(place, caller, weights=weights)) if is_s3(place) else place


@dataclass(frozen=True, repr=False)
class Comparison:
    """An experiment that has ended."""

    name: str
    runs: pl.DataFrame
    """One row per run; docs/experiments.md describes the columns of results.parquet."""
    curves: pl.DataFrame
    """One row per evaluation: variant, seed and the columns of `Result.evaluations`."""
    failed: Mapping[str, str]
    """The runs that failed, and why."""
    chosen: Mapping[str, Mapping[str, Any]]
    """By variant, the options that were chosen for it, if the experiment tunes some."""
    report: Path | None
    """The report's page; None without `out`."""
    answer: str
    """What the report says first."""

    _frames: Frames

    def frame(self) -> pl.DataFrame:
        """Return `runs`: one row per run."""
        return self.runs

    def curve(self, variant: str | None = None) -> pl.DataFrame:
        """Return `curves`, of one variant if it is named; raises ValueError for one that there is not."""
        if variant is None:
            return self.curves
        if variant not in self._frames.variants:
            raise ValueError(f"curve: {variant}: must be one of {', '.join(self._frames.variants)}")
        return self.curves.filter(variant=variant)

    def plot(self, figure: str | None = None) -> Picture:
        """Draw a figure of the report: the first, or the one named, like loss-time or time-to-target.

        Figures that look into updates (staleness, timelines, drift) need the records, and so `out`. Raises
        ValueError, with the names that there are, for another.
        """
        from dsgd.show.report.pictures import of_comparison

        return of_comparison(self._frames, figure)

    def __repr__(self) -> str:
        variants = self.runs["variant"].n_unique()
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"<Comparison: {self.name}, {variants} variants, {len(self.runs)} runs{failed}>"


def experiment(
    asked: str | Path | Mapping[str, Any],
    *,
    out: str | Path | None = None,
    name: str = "experiment",
    settings: Mapping[str, Any] | None = None,
    processes: int | None = None,
) -> Comparison:
    """Run an experiment, and compare its runs.

    asked: an experiment's file, or what would stand in one (docs/experiments.md).
    out: where the experiment's folder goes, with records and report; what is there already is not run again.
    Without it, nothing is kept. name: of the folder, where `asked` is not a file.
    settings: options that replace those of the base, and `seeds`.
    processes: how many simulate at the same time; as many as there are cores, unless given.

    Raises ValueError for a mistake in the options, RuntimeError if all runs failed, KeyboardInterrupt after
    ctrl-C: runs that had ended are kept.
    """
    from rich.console import Console

    from dsgd.compare.experiment_file import load, read
    from dsgd.compare.runner import run_experiment
    from dsgd.compare.uploads import Uploads
    from dsgd.show.report.answer import answer
    from dsgd.show.report.experiment_yaml import FIGURES, OF_UPDATES
    from dsgd.show.report.frames import read_folder

    texts = [f"{option}={value}" for option, value in _plain(settings or {}).items()]
    with ExitStack() as stack:
        stack.enter_context(_mistakes_as_value_errors())
        place = stack.enter_context(TemporaryDirectory()) if out is None else str(out)
        folder = OutputConfig(out=place).folder
        if isinstance(asked, Mapping):
            planned = read(dict(asked), name, "dsgd.experiment", texts, folder)
        else:
            planned = load(asked, texts, folder)
        interruptions = stack.enter_context(Interruptions((signal.SIGINT,)))
        uploads = stack.enter_context(Uploads(place, planned.folder)) if is_s3(place) else None
        finished = run_experiment(
            planned, interruptions, Console(quiet=True), processes, uploads, draw=out is not None
        )
        if uploads:
            uploads.finish()
        if len(finished.failed) >= len(planned.runs()):
            run_name, error = next(iter(finished.failed.items()))
            raise RuntimeError(f"all runs failed; {run_name}: {error}")
        frames = read_folder(finished.experiment.folder)
        said = answer(frames).text
        if out is None:  # the records are about to go
            drawn = [figure for figure in frames.show or FIGURES if figure not in OF_UPDATES]
            frames = replace(frames, show=drawn)
    return Comparison(
        planned.name,
        frames.runs,
        frames.curves,
        finished.failed,
        finished.chosen,
        finished.report,
        said,
        frames,
    )


def _named(runs: Sequence[Result]) -> dict[str, Result]:
    """Name runs by mode and the options in which they differ."""
    differing = [
        option
        for option in runs[0].options
        if option != "mode" and len({repr(run.options.get(option)) for run in runs}) > 1
    ]
    shared = [option for option in differing if all(option in run.options for run in runs)]
    named: dict[str, Result] = {}
    for run in runs:
        name = " ".join([run.options["mode"], *(f"{option}={run.options[option]}" for option in shared)])
        named[name if name not in named else f"{name} ({len(named) + 1})"] = run
    return named


@contextmanager
def _mistakes_as_value_errors() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise ValueError(str(error)) from None


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with numpy's numbers and paths as the command line would have them."""
    return {
        key: value.item()
        if isinstance(value, np.generic)
        else os.fspath(value)
        if isinstance(value, os.PathLike)
        else value
        for key, value in options.items()
    }


def _frame(rows: list[tuple[Any, ...]], columns: tuple[str, ...]) -> pl.DataFrame:
    import polars as pl

    floats = {"loss", "accuracy", "bits_per_byte", *taken_of_updates()}
    kinds = {name: pl.Float64 for name in columns if name in floats}
    schema = {name: kinds.get(name) for name in columns}  # a column of only None is numeric, too
    return pl.DataFrame(rows, schema=schema, orient="row", infer_schema_length=None)
