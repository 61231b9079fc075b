"""The command line of evaluations: `main.py --evaluate RUN`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsgd.process.interruptions import Interruptions, ended_by_signals
from dsgd.process.messages import print_page
from dsgd.show.terminal.run_to_use import RUN, run_to_use
from dsgd.show.terminal.usage import Parser, usage_errors

with ended_by_signals():
    from dsgd.core.model import Evaluation
    from dsgd.running.trained_run import TrainedRun


def evaluate(arguments: Sequence[str], _: Interruptions) -> int:
    """Evaluate what a run trained, print what was found, and return the exit code.

    Raises UsageError, in one line, for anything that is wrong.
    """
    parser = Parser(
        "--evaluate",
        "Compute the loss of what a run trained, and its score, on the test data: those of the run, or those "
        "that its workload makes of another file. This runs the code of the run's workload.",
    )
    parser.add_argument("--evaluate", metavar="RUN", required=True, help=RUN)
    parser.add_argument(
        "--on", metavar="DATA", help="what the workload reads in place of its --data: a file or a folder"
    )
    given = parser.parse(arguments)
    with usage_errors():
        run = run_to_use("--evaluate", given.evaluate)
        found = run.evaluate(given.on)
    print_page("\n".join(_page(run, found, given.on)))
    return 0


def _page(run: TrainedRun, found: Evaluation, on: str | None) -> Iterator[str]:
    yield run.in_words
    yield f"data      {on or 'the test data of the run'}"
    yield f"loss      {found.loss:.6g}"
    if found.accuracy is not None:
        yield f"accuracy  {found.accuracy:.2%}"
    if found.bits_per_byte is not None:
        yield f"text      {found.bits_per_byte:.4g} bits a byte, perplexity {found.perplexity:.4g}"
