"""The command line of experiments and reports: `main.py --experiment FILE`, `main.py --report DIR`."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from dsgd.config import LiveConfig, OutputConfig
from dsgd.experiments.spec import load
from dsgd.records.outcomes import EXIT_INTERRUPTED
from dsgd.records.s3 import Uploads, fetch, is_s3
from dsgd.terminal.cli import UsageError, with_dashes
from dsgd.terminal.interruptions import Interruptions


class _Parser(argparse.ArgumentParser):
    """Tells a mistake as the rest of the command line does: in one line, with the remedy."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")


def experiment(arguments: Sequence[str], interruptions: Interruptions) -> int:
    """Run the experiment that the command line asks for, and return the exit code.

    Raises UsageError in one line for anything that is wrong.
    """
    parser = _Parser(
        prog="main.py",
        allow_abbrev=False,
        description="Run an experiment: several runs, compared. docs/experiments.md describes its file. "
        "Repeated, the command keeps the runs that are there and makes the others.",
    )
    parser.add_argument("--experiment", metavar="FILE", required=True, help="the experiment's file")
    parser.add_argument(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="replace an option of the file's base, like steps=1000, or its seeds; may be given again",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="runs",
        help="where the experiment's folder goes (default: runs); s3://BUCKET/PREFIX uploads it too",
    )
    parser.add_argument(
        "--processes", metavar="N", type=int, help="simulations at the same time (default: one a core)"
    )
    parser.add_argument(
        "--dashboard",
        metavar="PORT",
        type=int,
        help="port of this machine where a browser sees the runs live",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=int,
        help="port at which Prometheus finds the metrics of runs on Ray",
    )
    parser.add_argument("--metrics-host", metavar="HOST", default="127.0.0.1", help="address of that port")
    parser.add_argument(
        "--metrics-linger-s",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="how long metrics and live page stay after the last run; ctrl-C ends that",
    )
    parser.add_argument("--pushgateway", metavar="URL", help="a Pushgateway that gets the metrics too")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and how long they would take; write nothing"
    )
    names = [name for action in parser._actions for name in action.option_strings if name.startswith("--")]
    given = _parse(parser, arguments, [name for name in names if name != "--help"])
    if given.processes is not None and given.processes < 1:
        raise UsageError(f"--processes {given.processes}: must be at least 1")
    try:
        folder = OutputConfig(out=given.out).folder
    except ValueError as error:
        raise UsageError(str(error)) from None
    asked = load(given.experiment, given.set, folder)
    try:
        live = LiveConfig(
            dashboard=given.dashboard,
            metrics_port=given.metrics_port,
            metrics_host=given.metrics_host,
            metrics_linger_s=given.metrics_linger_s,
            pushgateway=given.pushgateway,
        )
        for run in (*asked.tuning_runs(), *asked.runs()):
            live.require_few(run.cfg.num_workers)
            if run.cfg.engine == "sim" and (live.metrics_port is not None or live.pushgateway):
                option = "--pushgateway" if live.metrics_port is None else "--metrics-port"
                raise ValueError(
                    f"{option}: variant {run.variant} is simulated, in a process of its own; metrics are for "
                    "experiments on Ray (--set engine=ray), others are seen with --dashboard"
                )
    except ValueError as error:
        raise UsageError(str(error)) from None
    # Not the standard output of the moment: runs on Ray have theirs taken away while they run.
    console = Console(file=sys.stdout, highlight=False)
    if given.dry_run:
        from dsgd.experiments.forecast import print_forecast

        print_forecast(asked, console, given.processes)
        return 0
    from dsgd.experiments.runner import run_experiment
    from dsgd.live.observers import Observers

    try:
        uploads = Uploads(given.out, asked.folder) if is_s3(given.out) else None
        observers = Observers(live)
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        with observers, uploads or nullcontext():
            observers.show(asked.folder)
            code = run_experiment(asked, interruptions, console, given.processes, uploads, observers)
            if uploads:
                uploads.finish()
                console.print(f"upload  {uploads.url}", soft_wrap=True)
            observers.linger(interruptions)
            return code
    except KeyboardInterrupt:
        print(
            "main.py: interrupted; the runs that had ended are kept, and the same command makes the others",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED


def report(arguments: Sequence[str]) -> int:
    """Draw the report of an experiment's folder, a folder of records or one record again.

    Raises UsageError in one line for anything that is wrong.
    """
    from dsgd.records.schema import RecordError

    parser = _Parser(
        prog="main.py",
        allow_abbrev=False,
        description="Draw a report from records alone: of an experiment, of a folder of runs, or of one run.",
    )
    parser.add_argument("--report", metavar="DIR", required=True, help="the folder, or s3://BUCKET/PREFIX")
    given = _parse(parser, arguments, ("--report",))
    try:
        folder = fetch(given.report) if is_s3(given.report) else Path(given.report)
    except ValueError as error:
        raise UsageError(str(error)) from None
    try:
        from dsgd.report.page import build_report

        print(build_report(folder))
    except RecordError as error:
        raise UsageError(f"--report {error}") from None
    return 0


def _parse(parser: argparse.ArgumentParser, arguments: Sequence[str], known: Sequence[str]) -> Any:
    if {"-h", "--help"} & set(arguments):  # also where the verb still lacks its value
        parser.parse_args(["--help"])
    given, others = parser.parse_known_args([with_dashes(argument) for argument in arguments])
    if others:
        name = others[0].partition("=")[0]
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            hint = f"did you mean {near[0]}?"
        elif "--set" in known and name.startswith("--"):
            hint = f"an option of its runs is given as --set {name.removeprefix('--')}=VALUE"
        else:
            hint = "see --help"
        raise UsageError(f"{name}: does not go with {known[0]}; {hint}")
    return given
