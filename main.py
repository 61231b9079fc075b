"""Runs one strategy on one engine and leaves a record: `python main.py --mode ssgd --num-workers 2`.

This is the command line alone: options -> run -> what is printed -> exit code. The run itself, from options
to workload, cluster, strategy, updates and record, is `execute` in dsgd/running/execute.py. From Python,
call `dsgd.run`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in the interpreter already, unlike `signal`

if __name__ in ("__main__", "dsgd.__main__"):  # called, not imported: ctrl-C ends it until more is loaded
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from dsgd.process.interruptions import NOTHING_WRITTEN, Interruptions, ended_by_signals, run_as_program
from dsgd.process.outcomes import (
    EXIT_CODES,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    echoed,
    escaped,
    report_error,
)

with ended_by_signals():  # the other imports take a second
    from dsgd.config import TrainConfig
    from dsgd.core.protocol import ClusterError
    from dsgd.process.outcomes import UsageError
    from dsgd.process.s3_access import is_s3
    from dsgd.records.lease import TakenError
    from dsgd.records.size import announcement
    from dsgd.records.stores.store import Store
    from dsgd.records.upload import Upload
    from dsgd.records.writer import RunRecord, default_name, free_path
    from dsgd.running.comparison import execute_both
    from dsgd.running.execute import Ended, execute
    from dsgd.show.live.observers import Observers
    from dsgd.show.terminal.commands import command_of
    from dsgd.show.terminal.console import ProgressLine, print_comparison, print_ended, print_finished
    from dsgd.show.terminal.resume_option import RunAsked, parse_run, restored
    from dsgd.show.terminal.usage import Terminal, stop_own_job, usage_errors


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for and return the exit code."""
    started, other = time.time(), None
    try:
        with Interruptions() as interruptions:
            if other := command_of(arguments):
                return other(arguments, interruptions)
            asked = parse_run(arguments)
            cfg = asked.cfg
            if asked.finished:
                print_finished(cfg, asked.finished)
                return 0
            with usage_errors():
                observers = Observers(cfg.live, cfg.log, quiet=cfg.output.quiet)
            with observers:
                run_it = run_to_s3 if is_s3(cfg.output.out) else run_here
                code = run_it(asked, started, interruptions, observers)
                observers.linger(interruptions)
            return code
    except UsageError as error:
        code = report_error(error, EXIT_USAGE)
        if not isinstance(error.__cause__, TakenError):  # whoever has the name may be about to end
            stop_own_job()
        return code
    except (ClusterError, OSError) as error:
        return report_error(error, EXIT_FAILED)
    except MemoryError:
        sizes = "lower --samples, --hidden, --dim, --num-workers or --padding-mb"
        return report_error(f"there is not enough memory on this machine; {sizes}", EXIT_FAILED)
    except KeyboardInterrupt:
        return report_error("interrupted" if other else NOTHING_WRITTEN, EXIT_INTERRUPTED)


def run_here(
    asked: RunAsked,
    started: float,
    interruptions: Interruptions,
    observers: Observers,
    bucket: Store | None = None,
) -> int:
    """Run on one engine or on both, print the result and return the exit code.

    bucket: for checkpoints in S3.
    """
    cfg = asked.cfg
    console = Terminal(highlight=False)

    def run_one(cfg: TrainConfig, started: float | None = None) -> Ended:
        if not cfg.output.quiet and (said := announcement(cfg)):
            print(said, flush=True)
        with usage_errors(), ProgressLine(cfg, console) as line:
            watchers = [line, *observers.watchers()]
            ended = execute(
                cfg,
                watchers,
                record=RunRecord(cfg, resume=asked.resume is not None, bucket=bucket),
                interruptions=interruptions,
                started=started,
                resume=asked.resume,
            )
        print_ended(ended, console)
        for note in ended.notes:
            print(f"note: {echoed(note)}", file=sys.stderr)
        return ended

    if cfg.engine != "both":
        return _exit_code(run_one(cfg, started))
    with usage_errors():
        folder = free_path(cfg.output, default_name(cfg))
        observers.show(folder)
        ended, compared = execute_both(cfg, folder, run_one)
    if compared and not cfg.output.quiet:
        print_comparison(compared, console)
    return _exit_code(ended)


def run_to_s3(asked: RunAsked, started: float, interruptions: Interruptions, observers: Observers) -> int:
    """Run, and upload the record as far as it got, however the run ends.

    Raises UsageError, before anything runs, for a bucket that cannot be written to and a name that is taken;
    OSError if only the upload failed.
    """
    upload, code = None, 0
    try:
        with usage_errors(), interruptions.held():  # a claimed name is used or given back
            upload = Upload(asked.cfg, resume=asked.may_resume)
            if asked.resume:  # with the lease nobody else writes: now what is there is the newest
                restored(asked.cfg)
        code = run_here(asked._replace(cfg=upload.cfg), started, interruptions, observers, upload.checkpoints)
    finally:
        if upload:
            interruptions.hold()
            _finish(upload, code)
    return code


def _finish(upload: Upload, code: int) -> None:
    """Upload what a run that ended with `code` has left; raises OSError if that alone failed."""
    try:
        url = upload.finish()
    except OSError as error:
        if not code:
            raise
        report_error(error, code)
        return
    if url and not upload.cfg.output.quiet:
        with suppress(BrokenPipeError):
            print(f"upload  {url}", flush=True)


def _exit_code(ended: Ended) -> int:
    code = EXIT_CODES[ended.stopped_by]
    sys.stderr.write(escaped(ended.traceback))
    return report_error(ended.error, code) if ended.error else code


def _with_streams(arguments: Sequence[str]) -> int:
    """Call `main` where standard streams may be closed: by the caller, or by a file of the user's."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # or the next file that is opened has its number, 0 to 2
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    try:
        code = main(arguments)
    except ValueError:
        if not sys.stdout.closed:
            raise
        code = 0
    if sys.stdout.closed:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        code = code or report_error("standard output was closed; a workload must leave it open", EXIT_FAILED)
    return code


def command() -> None:
    """Run as the console script `dsgd`."""
    run_as_program(_with_streams)


if __name__ == "__main__":
    command()
