"""The command `run`: one run, here or with its record in S3, on one engine or on both."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from dsgd.config import TrainConfig
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import EXIT_CODES, echoed, report_error
from dsgd.process.s3_access import is_s3
from dsgd.records.stores.store import Store
from dsgd.records.upload import Upload
from dsgd.records.writer import RunRecord, default_name, free_path
from dsgd.running.comparison import execute_both
from dsgd.running.execute import Ended, execute
from dsgd.show.live.observers import Observers
from dsgd.show.terminal.console import ProgressLine, print_comparison, print_ended, print_finished
from dsgd.show.terminal.resume_option import RunAsked, parse_run, restored
from dsgd.show.terminal.usage import Terminal, usage_errors


def run(arguments: Sequence[str], interruptions: Interruptions) -> int:
    """Run what the options ask for, and return the exit code.

    Raises UsageError in one line for anything that is wrong, and OSError if only an upload failed.
    """
    started = time.monotonic()
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
    sys.stderr.write(ended.traceback)
    return report_error(ended.error, code) if ended.error else code
