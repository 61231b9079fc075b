"""The command `compare`: an experiment, several runs compared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from dsgd.compare.experiment import Experiment
from dsgd.compare.experiment_file import load, read
from dsgd.compare.named_modes import content_of, name_of, named, options_of_runs, text_of
from dsgd.core.option_rules import HIDDEN, REPEATED, Checked
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import EXIT_FAILED, EXIT_INTERRUPTED, UsageError, print_page, report_error
from dsgd.process.s3_access import is_s3
from dsgd.records.output_options import OutputConfig
from dsgd.show.terminal.arguments import take_option, value_of, with_dashes
from dsgd.show.terminal.command_options import Positional, options_and_more, options_of_command
from dsgd.show.terminal.scenario_option import with_scenario
from dsgd.show.terminal.usage import Terminal, open_page, usage_errors
from dsgd.show.watching_options import LiveConfig, LogConfig


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Checked):
    """Run an experiment: several runs, compared. docs/experiments.md describes its file. Finished runs are
    reused when the command is repeated.
    """

    what: Annotated[tuple[str, ...], Positional("FILE|MODE..."), REPEATED]
    """The experiment's file; or two modes or more, and then options of their runs, like --slowdown 0=4, and
    --target-loss.
    """

    seeds: Annotated[int | None, Ge(1)] = None
    """Runs of each mode or variant, with seeds from 0. None: 5, or as the file says."""

    set: Annotated[tuple[str, ...], REPEATED] = ()
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

    check_premise: Annotated[bool, HIDDEN] = False
    """Exit with code 1 if what the file says under premise: was not so in the runs."""

    open: bool = False
    """Open the report in the browser."""

    live: LiveConfig = field(default_factory=LiveConfig)
    log: LogConfig = field(default_factory=LogConfig)


def experiment_of(arguments: Sequence[str], root: Path = Path()) -> tuple[CompareOptions, Experiment, str]:
    """Return the options of the command, its experiment and, where modes are named, the file of that.

    root: the folder in which the command is called. Raises UsageError in one line for anything that is wrong.
    """
    arguments = [with_dashes(argument) for argument in arguments]
    if named(arguments):
        arguments = with_scenario(arguments)
    known = options_of_runs(named(arguments), value_of(arguments, "--workload")) if named(arguments) else {}
    more = {name: option for own in known.values() for name, option in own.items()}
    given, of_runs = options_and_more(CompareOptions, "compare", arguments, more)
    with usage_errors():
        folder = OutputConfig(out=given.out, upload_every=given.upload_every).folder
    if not named(given.what):
        given = options_of_command(CompareOptions, "compare", arguments)  # of runs it takes none
        settings = [*given.set, *([f"seeds={given.seeds}"] if given.seeds else [])]
        if len(given.what) > 1:
            raise UsageError(f"compare: takes one file, or modes, not {' and '.join(given.what)}")
        return given, load(root / given.what[0], settings, folder), ""
    if given.set:  # of a file; where there is none, an option by its name is the same
        rest, _ = take_option(arguments, "--set")
        return experiment_of([*rest, *(f"--{setting}" for setting in given.set)], root)
    content = content_of(given.what, known, of_runs, given.seeds)
    experiment = read(content, name_of(content), f"compare {' '.join(given.what)}", (), folder)
    return given, experiment, text_of(content)


def compare(arguments: Sequence[str], interruptions: Interruptions) -> int:
    """Run the experiment that the command line asks for, and return the exit code.

    Raises UsageError in one line for anything that is wrong.
    """
    given, asked, file = experiment_of(arguments)
    if file:
        print_page(f"# as a file, for `compare FILE`:\n{file}")
    if given.check_premise and not asked.premises:
        what = " ".join(given.what)
        raise UsageError(f"--check-premise: {what} has no premise:; give it one, or leave this out")
    live = given.live
    with usage_errors():
        for run in (*asked.tuning_runs(), *asked.runs()):
            live.require_possible(run.cfg)
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
