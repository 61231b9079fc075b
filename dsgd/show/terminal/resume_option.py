"""`--resume RUN`: a run goes on with the options that it had, except for the few that may change."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dsgd.config import TrainConfig
from dsgd.core.option_rules import options
from dsgd.core.option_texts import with_restarts
from dsgd.process.outcomes import UsageError
from dsgd.process.s3_access import is_s3
from dsgd.records.fixed_options import MAY_CHANGE, changed
from dsgd.records.output_options import OutputConfig
from dsgd.records.reader import is_record, read_meta, read_options
from dsgd.records.s3 import CHECKPOINTS
from dsgd.records.schema import RecordError
from dsgd.records.upload import restore_record
from dsgd.records.workload_copy import changed_since
from dsgd.running.resuming import FinishedError, unfinished
from dsgd.show.terminal.arguments import is_given, take_option, with_dashes
from dsgd.show.terminal.cli import configure, parse, without_auto
from dsgd.show.terminal.scenario_option import with_scenario
from dsgd.show.terminal.usage import usage_errors

AUTO = "auto"


class RunAsked(NamedTuple):
    """What a command line asks for."""

    cfg: TrainConfig
    resume: str | None = None
    """How the attempt before ended, if a run goes on."""
    may_resume: bool = False
    """Whether --resume was given: a name that is taken is then no mistake."""
    finished: str | None = None
    """How it ended, if --resume auto finds the run finished: nothing is left to do."""


def parse_run(arguments: Sequence[str]) -> RunAsked:
    """Return the run that a command line asks for, a new one or one that goes on.

    Raises UsageError in one line for anything that is wrong. `--help` prints and raises SystemExit.
    """
    arguments = with_scenario([with_dashes(argument) for argument in arguments])
    if not is_given(arguments, "--resume") or {"-h", "--help"} & set(arguments):
        return RunAsked(parse(arguments))
    arguments, run = take_option(arguments, "--resume")
    if run == AUTO:
        cfg = parse(arguments)
        of_file = is_given(arguments, "--config")
        fixed, given = without_auto(arguments), options(cfg) if of_file else {}
        if fixed is not arguments:
            given.pop("batch_size", None)  # a run that goes on keeps the size that it found
        return going_on_by_name(cfg, () if of_file else fixed, given)
    if is_given(arguments, "--config"):
        raise UsageError(f"--resume {run}: the options are those of that run; leave --config out")
    return going_on(str(run), arguments)


def going_on(run: str, arguments: Sequence[str] = (), given: Mapping[str, Any] | None = None) -> RunAsked:
    """Return how the run of a record, in a folder or in S3, goes on with options that may change.

    Raises UsageError.
    """
    path, source = Path(run), f"--resume {run}"
    own = dict(given or {})
    if is_s3(run):
        place, _, name = run.rstrip("/").rpartition("/")
        with usage_errors():
            path = OutputConfig(out=place).folder / name
            restore_record(run, path)
        own["out"] = place
    if not is_record(path):
        raise UsageError(f"{source}: is not the folder of a run record; give one, like runs/NAME")
    return _going_on(path, source, arguments, own)


def going_on_by_name(
    cfg: TrainConfig, arguments: Sequence[str], given: Mapping[str, Any] | None = None
) -> RunAsked:
    """Return how the run of cfg's name goes on with these options, or that it begins if there is none.

    arguments, given: what of cfg was asked for; for the rest the record's options hold. Raises UsageError.
    """
    if cfg.output.run_name is None:
        raise UsageError("--resume auto: goes on with the run of --run-name; give that too")
    path = cfg.output.folder / cfg.output.run_name
    restored(cfg)
    if not is_record(path):
        return RunAsked(cfg, None, may_resume=True)
    return _going_on(path, f"--resume auto ({path})", arguments, given or {}, by_name=True)


def _with_more_steps(cfg: TrainConfig, before: int) -> TrainConfig:
    """Return the options of a run that had fewer steps: a step size that has fallen to 0 begins again."""
    asked = cfg.parsed_schedule
    if cfg.steps == before or asked.shape == "constant":
        return cfg
    schedule = with_restarts(cfg.schedule, (*asked.restarts, before))
    said = "--schedule %s: falls to 0 at step %d as before, and begins again there, to step %d; now it is %s"
    logging.getLogger("dsgd").warning(said, cfg.schedule, before, cfg.steps, schedule)
    return replace(cfg, schedule=schedule)


def restored(cfg: TrainConfig) -> None:
    """Bring what S3 has of the run of cfg's name to this machine.

    Raises UsageError, and OSError if S3 fails.
    """
    if is_s3(cfg.output.out):
        name = str(cfg.output.run_name)
        with usage_errors():
            restore_record(f"{cfg.output.out.rstrip('/')}/{name}", cfg.output.folder / name)


def _going_on(
    path: Path, source: str, arguments: Sequence[str], given: Mapping[str, Any], *, by_name: bool = False
) -> RunAsked:
    try:
        was = read_options(path)
        read_meta(path)
        other_code = changed_since(path, was)
    except RecordError as error:
        raise UsageError(f"{source}: {error}; the record is damaged") from None
    if other_code:
        raise UsageError(f"{source}: {other_code}")
    here = path.resolve()
    file_options: dict[str, Any] = {**was, "run_name": here.name}
    if OutputConfig(out=str(was.get("out"))).folder.resolve() != here.parent:
        file_options["out"] = str(here.parent)
    cfg = configure({**file_options, **given}, source, arguments)
    if (cfg.output.folder / str(cfg.output.run_name)).resolve() != here:
        raise UsageError(f"{source}: --out and --run-name name another folder; leave them out")
    if cfg.steps < was["steps"]:
        raise UsageError(f"{source}: --steps {cfg.steps}: the run has {was['steps']}; steps may only grow")
    schedule = str(was.get("schedule", ""))
    if cfg.schedule == with_restarts(schedule, ()):
        cfg = replace(cfg, schedule=schedule)
    if difference := changed(was, cfg):
        name, had = difference
        option, value = f"--{name.replace('_', '-')}", options(cfg)[name]
        allowed = ", ".join(f"--{other.replace('_', '-')}" for other in MAY_CHANGE)
        raise UsageError(
            f"{source}: {option} {value}: the run has {had}; leave it out. Only these may change: {allowed}"
        )
    cfg = _with_more_steps(cfg, was["steps"])
    for folder in (path, path / CHECKPOINTS):
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{source}: {folder} is not a folder; move it away")
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(f"{source}: {folder} cannot be written to; correct its permissions")
    try:
        return RunAsked(cfg, unfinished(path, was, cfg), may_resume=True)
    except FinishedError as error:
        if by_name and error.ending != "diverged":  # a job that is started again has done its work
            return RunAsked(cfg, may_resume=True, finished=error.ending)
        raise UsageError(f"{source}: {error}") from None
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
