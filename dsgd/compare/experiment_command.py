"""The command `compare`: an experiment, several runs compared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge

from dsgd.compare.experiment_file import load
from dsgd.config import LiveConfig, LogConfig, OutputConfig
from dsgd.core.option_rules import Checked
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import EXIT_FAILED, EXIT_INTERRUPTED, UsageError, report_error
from dsgd.process.s3_access import is_s3
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.show.terminal.usage import Terminal, open_page, usage_errors


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Checked):
    """Run an experiment: several runs, compared. docs/experiments.md describes its file. Finished runs are
    reused when the command is repeated.
    """

    file: Annotated[str, Positional("FILE")]
    """The experiment's file."""

    set: tuple[str, ...] = ()
    """OPTION=VALUE replaces an option of the file's base, like steps=1000, or its seeds or target_loss; may
    be given several times.
    """

    out: str = "runs"
    """Where the experiment's folder goes; s3://BUCKET/PREFIX uploads it too, and goes on with what is
    there.
    """

    upload_every: float = 60.0
    """Seconds between two uploads of a run that goes on, with --out s3://BUCKET/PREFIX."""

    processes: Annotated[int | None, Ge(1)] = None
    """Simulations at the same time. None: one per core."""

    dry_run: bool = False
    """List the runs and what differs; run and write nothing."""

    check_premise: bool = False
    """Exit with code 1 if what the file says under premise: was not so in the runs."""

    open: bool = False
    """Open the report in the browser."""

    live: LiveConfig = field(default_factory=LiveConfig)
    log: LogConfig = field(default_factory=LogConfig)


def compare(arguments: Sequence[str], interruptions: Interruptions) -> int:
    """Run the experiment that the command line asks for, and return the exit code.

    Raises UsageError in one line for anything that is wrong.
    """
    given = options_of_command(CompareOptions, "compare", arguments)
    with usage_errors():
        folder = OutputConfig(out=given.out, upload_every=given.upload_every).folder
    asked = load(given.file, given.set, folder)
    if given.check_premise and not asked.premises:
        raise UsageError(f"--check-premise: {given.file} has no premise:; give it one, or leave this out")
    live = given.live
    with usage_errors():
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
        observers = Observers(live, given.log)
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
