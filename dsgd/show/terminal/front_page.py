"""What the command line shows first: most of what a run needs, and where the rest is. Fits one screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dsgd.process.outcomes import program
from dsgd.show.terminal import examples
from dsgd.show.terminal.paragraphs import paragraph, table, width

_STRATEGIES = Path(__file__).parents[2] / "strategies"
OPTIONS = (
    ("--engine ray|sim|both", "real workers (ray), virtual time, or both compared"),
    ("--num-workers P", "(4)  --steps N, mini-batches of each worker (100)"),
    (
        "--workload NAME|FILE",
        "xor digits quadratic none digits_cnn fashion gpt mnist moe router, FILE (xor)",
    ),
    ("--lr X", "step size (0.1)  --batch-size N (32)  --seed N (0)"),
    ("--compute-time LAW", "of a mini-batch in s, like exponential:1"),
    ("--slowdown W=F,...", "slower workers, like 0=4"),
    ("--scenario NAME", "one-slow heavy-tail spot thin-link wan, or a file"),
    ("--faults TEXT", "what goes wrong, like kill:2@update=100"),
    ("--target-loss X", "stop there; --max-seconds X: or after so long"),
    ("--out DIR|s3://...", "where records go (runs); --run-name NAME"),
    ("--resume RUN|auto", "go on with a run; --config FILE: with its options"),
)
"""Options of a run that most need, with their defaults."""

TOPICS = {
    "mode": ("mode",),
    "workload": ("data",),
    "learning": ("stop",),
    "times": ("timing",),
    "network": ("network",),
    "codecs": ("compression",),
    "faults": ("fault",),
    "saving": ("checkpoint",),
    "robust": ("aggregation",),
    "groups": ("group", "compute"),
    "ray": ("engine", "ray"),
    "watching": ("output", "live", "log"),
    "scenarios": (),
    "all": (),
}
"""The fields of TrainConfig that `--help TOPIC` shows; options that are in none are those of learning."""

COMMANDS = (
    ("run [OPTIONS]", "train; the word run may be left out"),
    ("compare FILE|MODE...", "run what the file compares, or modes; a page answers"),
    ("report DIR", "draw such a page from records, or of one run"),
    ("list [DIR]", "list runs, the newest first"),
    ("watch DIR", "watch runs in a browser while they go on"),
    ("replay RUN", "compute a run again, and compare it with its record"),
    ("evaluate RUN", "loss and score of what a run trained"),
    ("sample RUN", "text that a trained language model makes"),
    ("export RUN FILE", "write what a run trained to a safetensors file"),
    ("serve RUN...", "answer requests with what runs trained"),
    ("new NAME", "write a strategy of yours: its file, page and test"),
    ("check FILE", "hold a strategy to the laws of all strategies"),
    ("lab LAB [ANSWERS]", "the questions of a lab, or check the answers"),
    ("version", "print the version"),
)


def front_page() -> Iterator[str]:
    """Yield the lines of `--help`."""
    columns = width()
    yield f"usage: {program()} [COMMAND] [OPTIONS]"
    yield ""
    yield from paragraph("Train with one strategy, on real Ray workers or in virtual time:", columns)
    yield from examples.lines([examples.SIMULATED], columns)
    yield ""
    yield "Options that most need, with defaults in brackets:"
    # By their files: importing dsgd.strategies, which has all options, would take ten times as long.
    modes = sorted(path.stem.removeprefix("train_") for path in _STRATEGIES.glob("train_*.py"))
    yield from table([("--mode MODE|FILE", f"{' '.join(modes)} (ssgd)"), *OPTIONS], columns)
    yield ""
    topics = f"More options: --help MODE, --help WORKLOAD, and --help TOPIC: {', '.join(TOPICS)}"
    yield from paragraph(topics, columns)
    yield ""
    yield "Commands; COMMAND --help shows the options of each:"
    yield from table(COMMANDS, columns)
    yield ""
    codes = "Exit codes: 0 done, 1 failed, 2 a mistake here, 3 diverged, 130 interrupted"
    yield from paragraph(codes, columns)
