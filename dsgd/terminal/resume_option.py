"""`--resume RUN`: the options of a run that goes on are those it had, with the few that may change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dsgd.config import OutputConfig, TrainConfig, options
from dsgd.execution.resuming import MAY_CHANGE, changed, unfinished
from dsgd.records.reader import is_record, read_yaml
from dsgd.records.schema import RecordError
from dsgd.terminal.cli import UsageError, configure, is_given, parse, take_option, with_dashes

AUTO = "auto"


class RunAsked(NamedTuple):
    """What a command line asks for."""

    cfg: TrainConfig
    resume: str | None
    """How the attempt before ended, if a run is to go on."""


def parse_run(arguments: Sequence[str]) -> RunAsked:
    """Return the run that a command line asks for, a new one or one that goes on.

    Raises UsageError in one line for anything that is wrong. `--help` and `--version` print and raise
    SystemExit.
    """
    arguments = [with_dashes(argument) for argument in arguments]
    if not is_given(arguments, "--resume") or {"-h", "--help"} & set(arguments):
        return RunAsked(parse(arguments), None)
    arguments, run = take_option(arguments, "--resume")
    if run == AUTO:
        cfg = parse(arguments)
        if cfg.output.run_name is None:
            raise UsageError("--resume auto: goes on with the run of --run-name; give that too")
        path = cfg.output.folder / cfg.output.run_name
        return (
            _going_on(path, arguments, f"--resume auto ({path})") if is_record(path) else RunAsked(cfg, None)
        )
    if is_given(arguments, "--config"):
        raise UsageError(f"--resume {run}: the options are those of that run; leave --config out")
    path = Path(str(run))
    if not is_record(path):
        raise UsageError(f"--resume {run}: is not the folder of a run record; give one, like runs/NAME")
    return _going_on(path, arguments, f"--resume {run}")


def _going_on(path: Path, arguments: Sequence[str], source: str) -> RunAsked:
    try:
        was = read_yaml(path / "config.yaml")
    except RecordError as error:
        raise UsageError(f"{source}: {error}; the record is damaged") from None
    here = path.resolve()
    file_options: dict[str, Any] = {**was, "run_name": here.name}
    if OutputConfig(out=str(was.get("out"))).folder.resolve() != here.parent:
        file_options["out"] = str(here.parent)
    cfg = configure(file_options, source, [a for a in arguments if a != "--config"])
    if (cfg.output.folder / str(cfg.output.run_name)).resolve() != here:
        raise UsageError(f"{source}: --out and --run-name name another folder; leave them out")
    if name := changed(was, cfg):
        option, value = f"--{name.replace('_', '-')}", options(cfg)[name]
        allowed = ", ".join(f"--{other.replace('_', '-')}" for other in MAY_CHANGE)
        raise UsageError(
            f"{source}: {option} {value}: the run has {was.get(name)}; leave it out. Only these may change: "
            f"{allowed}"
        )
    if cfg.steps < was["steps"]:
        raise UsageError(f"{source}: --steps {cfg.steps}: the run has {was['steps']}; steps may only grow")
    try:
        return RunAsked(cfg, unfinished(path, was, cfg))
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
