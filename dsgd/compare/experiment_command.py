"""The command line of experiments: `main.py --experiment FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from dsgd.compare.experiment_file import load
from dsgd.config import LiveConfig, LogConfig, OutputConfig
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import EXIT_FAILED, EXIT_INTERRUPTED, UsageError, report_error
from dsgd.process.s3_access import is_s3
from dsgd.show.terminal.usage import Parser, Terminal, open_page, usage_errors


def experiment(arguments: Sequence[str], interruptions: Interruptions) -> int:
    """Run the experiment that the command line asks for, and return the exit code.

    Raises UsageError in one line for anything that is wrong.
    """
    parser = Parser(
        "--experiment",
        "Run an experiment: several runs, compared. docs/experiments.md describes its file. "
        "Finished runs are reused when the command is repeated.",
    )
    parser.add_argument("--experiment", metavar="FILE", required=True, help="the experiment's file")
    parser.add_argument(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="replace an option of the file's base, like steps=1000, or its seeds or target_loss; repeatable",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="runs",
        help="where the experiment's folder goes (default: runs); s3://BUCKET/PREFIX uploads it too, and "
        "goes on with what is there",
    )
    parser.add_argument(
        "--upload-every",
        metavar="SECONDS",
        type=float,
        default=60.0,
        help="between two uploads of a run that goes on, with --out s3://BUCKET/PREFIX (default: 60)",
    )
    parser.add_argument(
        "--processes", metavar="N", type=int, help="simulations at the same time (default: one per core)"
    )
    parser.add_argument(
        "--dashboard",
        metavar="PORT",
        type=int,
        help="port of the live page in a browser on this machine",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=int,
        help="port of the metrics of runs on Ray, for Prometheus",
    )
    parser.add_argument("--metrics-host", metavar="HOST", default="127.0.0.1", help="address of that port")
    parser.add_argument(
        "--metrics-linger-s",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="seconds to keep serving metrics and live page after the last run; ctrl-C ends it",
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        default="info",
        help="the least that is logged of runs on Ray: debug, info, warning or error (default: info)",
    )
    parser.add_argument(
        "--log-format", metavar="FORMAT", default="auto", help="text or json (default: json on a cluster)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs and what differs; run and write nothing"
    )
    parser.add_argument(
        "--check-premise",
        action="store_true",
        help="exit with code 1 if what the file says under premise: was not so in the runs",
    )
    parser.add_argument("--open", action="store_true", help="open the report in the browser")
    given = parser.parse(arguments)
    if given.processes is not None and given.processes < 1:
        raise UsageError(f"--processes {given.processes}: must be at least 1")
    with usage_errors():
        folder = OutputConfig(out=given.out, upload_every=given.upload_every).folder
    asked = load(given.experiment, given.set, folder)
    if given.check_premise and not asked.premises:
        raise UsageError(
            f"--check-premise: {given.experiment} has no premise:; give it one, or leave this out"
        )
    with usage_errors():
        log = LogConfig(log_level=given.log_level, log_format=given.log_format)
        live = LiveConfig(
            dashboard=given.dashboard,
            metrics_port=given.metrics_port,
            metrics_host=given.metrics_host,
            metrics_linger_s=given.metrics_linger_s,
        )
        for run in (*asked.tuning_runs(), *asked.runs()):
            live.require_few(run.cfg.num_workers)
            if run.cfg.engine == "sim" and live.metrics_port is not None:
                raise ValueError(
                    f"--metrics-port: variant {run.variant} is simulated, in a separate process; metrics are "
                    "for experiments on Ray (--set engine=ray), others are seen with --dashboard"
                )
    console = Terminal(highlight=False)
    from dsgd.compare.runner import print_plan, run_experiment

    if given.dry_run:
        print_plan(asked, console)
        return 0
    from dsgd.compare.uploads import Uploads
    from dsgd.show.live.observers import Observers

    with usage_errors():
        observers = Observers(live, log)
        uploads = Uploads(given.out, asked.folder, given.upload_every) if is_s3(given.out) else None
    try:
        with observers, uploads or nullcontext():
            observers.show(asked.folder)
            finished = run_experiment(asked, interruptions, console, given.processes, uploads, observers)
            if uploads:
                uploads.finish()
                console.print(f"upload  {uploads.url}", soft_wrap=True)
            if given.open and finished.report:
                open_page(finished.report)
            observers.linger(interruptions)
            refused = given.check_premise and not finished.premises_held
            return EXIT_FAILED if finished.failed or refused else 0
    except KeyboardInterrupt:
        kept = "interrupted; finished runs are kept, and the same command makes the others"
        return report_error(kept, EXIT_INTERRUPTED)
