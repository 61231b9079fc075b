"""The command line of samples: `main.py --sample RUN --prompt "Once"`."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.process.interruptions import Interruptions
from dsgd.process.messages import print_page
from dsgd.show.terminal.cli import UsageError
from dsgd.show.terminal.run_to_use import RUN, run_to_use
from dsgd.show.terminal.usage import Parser, usage_errors

_MOST_SEEDS = 2**63


def sample(arguments: Sequence[str], _: Interruptions) -> int:
    """Print a text that a trained language model makes, and return the exit code.

    Raises UsageError, in one line, for anything that is wrong.
    """
    parser = Parser(
        "--sample",
        "Print a prompt, and the text that a trained language model makes to follow it. The same options "
        "print the same text. This runs the code of the run's workload.",
    )
    parser.add_argument("--sample", metavar="RUN", required=True, help=RUN)
    parser.add_argument(
        "--prompt", metavar="TEXT", default="\n", help="how the text begins (default: a line break)"
    )
    parser.add_argument("--tokens", metavar="N", type=int, default=200, help="how many follow (default: 200)")
    parser.add_argument(
        "--temperature", metavar="T", type=float, default=1.0,
        help="below 1: more of what is probable; 0: always the most probable token (default: 1)",
    )  # fmt: skip
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of the draws (default: 0)")
    given = parser.parse(arguments)
    for option, value, holds, rule in (
        ("tokens", given.tokens, given.tokens >= 1, "must be at least 1"),
        (
            "temperature",
            given.temperature,
            0 <= given.temperature < float("inf"),
            "must be finite, 0 or more",
        ),
        ("seed", given.seed, 0 <= given.seed < _MOST_SEEDS, "must be in [0, 2^63)"),
    ):
        if not holds:
            raise UsageError(f"--{option} {value}: {rule}")
    if not given.prompt:
        raise UsageError("--prompt: is empty; begin the text with a letter, or leave --prompt out")
    with usage_errors():
        run = run_to_use("--sample", given.sample)
        made = run.sample(given.prompt, tokens=given.tokens, temperature=given.temperature, seed=given.seed)
    print_page(given.prompt + made)
    return 0
