"""The examples that --help and the menu show: commands to copy."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsgd.process.outcomes import program


class Example(NamedTuple):
    """A command line without the program's name, and what it does."""

    does: str
    arguments: str


SIMULATED = Example(
    "the simulator, two seconds",
    "--engine sim --mode asgd --num-workers 8 --compute-time exponential:1 --steps 250",
)
ON_RAY = Example(
    "the same code on real workers, which Ray starts in ten seconds",
    "--mode asgd --num-workers 2 --compute-time exponential:.01",
)
COMPARED = Example(
    "four strategies, five seeds, and a page that answers",
    "compare experiments/compare-modes.yaml",
)
LISTED = Example("which runs there are", "list")
REPORTED = Example("a page of all runs", "report runs --open")
HELP = Example("a strategy's options, those of all runs, and the other commands", "--mode ssp --help")

_FILE = "experiments/scaling.yaml"

OF_COMMANDS = {
    "compare": (
        Example("modes, under one slow worker", "compare ssgd asgd ssp --slowdown 0=4 --target-loss .3"),
        Example("run what the file compares, and draw the report", f"compare {_FILE}"),
        Example(
            "shorter runs, one seed",
            f"compare {_FILE} --set steps=50 --set seeds=1",
        ),
        Example("which runs it has", f"compare {_FILE} --dry-run"),
    ),
    "report": (
        Example("an experiment", "report runs/compare-modes --open"),
        Example("all runs: a report if they can be compared, else an index", "report runs"),
        Example("those that can be compared with one of them", "report runs --like NAME"),
    ),
    "replay": (
        Example("a run, real and asynchronous ones too", "replay runs/NAME"),
        Example("its weights at version 50", "replay runs/NAME --until 50 --save w50.npy"),
    ),
    "evaluate": (
        Example("on the run's own test data", "evaluate runs/NAME"),
        Example("on data of yours", "evaluate runs/NAME --on my/data.npz"),
    ),
    "export": (Example("for any program that reads tensors", "export runs/NAME model.safetensors"),),
    "sample": (
        Example("200 bytes or tokens after a prompt", "sample runs/NAME --prompt 'To be'"),
        Example("nothing but what is most probable", "sample runs/NAME --temperature 0 --tokens 50"),
    ),
    "serve": (
        Example("on this machine, for any client of the two interfaces", "serve runs/NAME --open"),
        Example("two checkpoints side by side", "serve runs/NAME@100 runs/NAME@200"),
    ),
    "list": (
        Example("the newest 20 runs in runs/", "list --last 20"),
        Example("the runs of an experiment", "list runs/compare-modes"),
    ),
    "watch": (
        Example("all runs in runs/, in the browser", "watch runs --open"),
        Example("one experiment while it goes on", "watch runs/compare-modes"),
    ),
    "new": (Example("train_mine.py, its page and its test, in the folder my", "new mine --into my"),),
    "check": (
        Example("a strategy of yours", "check my/train_mine.py"),
        Example("a mode, without Ray", "check ssp --no-ray"),
    ),
    "lab": (Example("check the answers to the first lab", "lab docs/labs/01.yaml my/01.yaml"),),
}
"""Of the commands other than a run, by the option that asks for each."""


def of_run(chosen: str, own: str) -> tuple[Example, ...]:
    """Return the examples of runs of a strategy.

    chosen: the options that choose it, like `--mode ssp`. own: what its file gives as EXAMPLE.
    """
    settings = own or "--num-workers 8 --compute-time exponential:1"
    slept = "--steps 50 --compute-time exponential:.05"
    return (
        Example("in the simulator", f"--engine sim {chosen} {settings}"),
        Example("on both engines, compared", f"--engine both {chosen} {slept}"),
        Example("a run again from its record, with another seed", "--config runs/NAME/config.yaml --seed 1"),
    )


def command() -> str:
    """Return what a shell takes for this program: `dsgd`, `python main.py`, or that after `uv run`.

    uv sets UV for the commands that it runs.
    """
    if program() == "dsgd":
        return "dsgd"
    return "uv run python main.py" if "UV" in os.environ else "python main.py"


def lines(examples: Iterable[Example], width: int) -> Iterator[str]:
    """Yield each example as a comment and a command that a shell takes, however narrow the terminal."""
    for does, arguments in examples:
        yield from textwrap.wrap(does, width, initial_indent="  # ", subsequent_indent="  # ")
        yield from folded(f"{command()} {arguments}", width)


def folded(line: str, width: int) -> Iterator[str]:
    r"""Yield a command as lines of at most `width`, broken before options, that a shell joins again.

    >>> print("\n".join(folded("main.py --mode ssp --slack 2 --slowdown 0=4", 34)))
      main.py --mode ssp --slack 2 \
          --slowdown 0=4
    """
    words = shlex.split(line)
    starts = [at for at, word in enumerate(words) if word.startswith("--")]
    parts = [words[a:b] for a, b in zip([0, *starts], [*starts, len(words)], strict=True)]
    current = "  "
    for part in filter(None, parts):
        text = shlex.join(part)
        if current.strip() and len(current) + len(text) + 3 > width:
            yield f"{current.rstrip()} \\"
            current = "      "
        current += f"{text} "
    yield current.rstrip()
