"""Runs one strategy on one engine and leaves a record: `python main.py --mode ssgd --num-workers 2`.

From top to bottom: options -> workload -> cluster -> strategy -> updates -> record. The strategy makes
updates; everything else (what to record, when to evaluate, when to stop) is decided here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from dsgd.cluster import ClusterError
from dsgd.config import TrainConfig
from dsgd.live.observers import Observers
from dsgd.records.outcomes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from dsgd.records.s3 import is_s3
from dsgd.records.upload import Upload
from dsgd.run.run import report_error, run, run_both
from dsgd.terminal.cli import UsageError, is_given, parse
from dsgd.terminal.interruptions import Interruptions


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for and return the exit code."""
    started = time.time()
    try:
        with Interruptions() as interruptions:
            if is_given(arguments, "--experiment"):
                from dsgd.experiments.command import experiment

                return experiment(arguments, interruptions)
            if is_given(arguments, "--report"):
                from dsgd.experiments.command import report

                return report(arguments)
            if is_given(arguments, "--check"):
                from dsgd.labs.check import check

                return check(arguments)
            cfg = parse(arguments)
            with watched(cfg) as observers:
                run_it = run_to_s3 if is_s3(cfg.output.out) else run_here
                code = run_it(cfg, started, interruptions, observers)
                observers.linger(interruptions)
            return code
    except UsageError as error:
        return report_error(error, EXIT_USAGE)
    except (ClusterError, OSError) as error:
        return report_error(error, EXIT_FAILED)
    except MemoryError:
        sizes = "lower --samples, --hidden, --dim, --num-workers or --padding-mb"
        return report_error(f"there is not enough memory on this machine; {sizes}", EXIT_FAILED)
    except KeyboardInterrupt:
        return report_error("interrupted before the first update; nothing was written", EXIT_INTERRUPTED)


def watched(cfg: TrainConfig) -> Observers:
    """Return who looks on while the process trains, with the ports they need.

    Raises UsageError for a port that cannot be had.
    """
    try:
        return Observers(cfg.live, quiet=cfg.output.quiet)
    except ValueError as error:
        raise UsageError(str(error)) from None


def run_here(
    cfg: TrainConfig, started: float, interruptions: Interruptions, observers: Observers | None = None
) -> int:
    """Run on one engine or on both, and keep what comes of it on this machine."""
    run_it = run_both if cfg.engine == "both" else run
    return run_it(cfg, started, interruptions, observers)


def run_to_s3(
    cfg: TrainConfig, started: float, interruptions: Interruptions, observers: Observers | None = None
) -> int:
    """Run, and upload what there is of the record, however the run ends.

    Raises UsageError, before anything runs, for a bucket that cannot be written to and a name that is taken;
    OSError if only the upload failed.
    """
    upload, code = None, 0
    try:
        try:
            with interruptions.held():  # a name that is claimed is used or given back
                upload = Upload(cfg)
        except ValueError as error:
            raise UsageError(str(error)) from error
        code = run_here(upload.cfg, started, interruptions, observers)
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
        with suppress(BrokenPipeError, UnicodeEncodeError):
            print(f"upload  {url}", flush=True)


def command() -> None:
    """Run as the console script `dsgd`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
