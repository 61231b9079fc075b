"""The command line.

    python main.py --mode ssgd --num-workers 2 --steps 10     # one run, on real workers
    python main.py --engine sim --mode asgd                   # in virtual time, on no cluster
    python main.py compare experiments/compare-modes.yaml     # several runs, and a page with the answer
    python main.py --help                                     # options and commands

A run goes from options (config.py) to a workload (data.py), a strategy (train_ssgd.py is the shortest) on a
cluster of workers, what is counted (metrics.py) and a record: `execute` in dsgd/running/execute.py.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # in the interpreter already, unlike `signal`

if __name__ in ("__main__", "dsgd.__main__"):  # until our handler is there, ctrl-C just ends the process
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from collections.abc import Sequence

from dsgd.process.interruptions import NOTHING_WRITTEN, Interruptions, run_as_program
from dsgd.process.outcomes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Failure, UsageError, report_error
from dsgd.show.terminal.commands import asked, command_of


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for and return the exit code."""
    try:
        with Interruptions() as interruptions:
            return command_of(arguments)(interruptions)
    except UsageError as error:
        code = report_error(error, EXIT_USAGE)
        from dsgd.show.terminal.usage import stop_own_job

        stop_own_job(error)
        return code
    except (Failure, OSError) as error:
        return report_error(error, EXIT_FAILED)
    except MemoryError:
        sizes = "lower --samples, --hidden, --dim, --num-workers or --padding-mb"
        return report_error(f"there is not enough memory on this machine; {sizes}", EXIT_FAILED)
    except KeyboardInterrupt:
        is_run = asked(arguments)[0] == "run"
        return report_error(NOTHING_WRITTEN if is_run else "interrupted", EXIT_INTERRUPTED)


def command() -> None:
    """Run as the console script `dsgd`."""
    run_as_program(main)


if __name__ == "__main__":
    command()
