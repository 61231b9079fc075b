"""Runs the examples of the documents again and inserts their output.

    python docs/tools/examples.py README.md                             # or make docs
    python docs/tools/examples.py --references docs/strategies/*.md     # or make references

An example is a simulator command in a code block, and the block after it, which begins with the row `run`.
With `--references` it is instead the comparison of a strategy with its reference, which also draws the
page's figures.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = re.compile(
    r"(?P<command>uv run python main\.py (?:[^`\n]|\\\n)*?--engine sim(?:[^`\n]|\\\n)*)"
    r"(?P<between>\n(?:```\n)?\n```\n)run  .*?(?=\n```)",
    re.DOTALL,
)
REFERENCE = re.compile(
    r"(?P<command>uv run python -m references (?P<mode>\w+))"
    r"(?P<between>\n```\n\n```\n)strategy  .*?(?=\n```)",
    re.DOTALL,
)


def comparison_of(command: str) -> str:
    """Compare a strategy with its reference; return what is printed."""
    arguments = shlex.split(command)[3:]
    printed = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT / "tests/theory", stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return printed.rstrip()


def output_of(command: str) -> str:
    """Run an example, its record in a temporary folder; return its summary, without the record's path."""
    arguments = shlex.split(command.replace("\\\n", " "))[3:]
    with tempfile.TemporaryDirectory() as out:
        printed = subprocess.run(
            [sys.executable, *arguments, "--out", out], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    lines = [line.rstrip() for line in printed[printed.index("run  ") :].splitlines()]  # after the progress
    return "\n".join(line for line in lines if not line.startswith("record "))


def refresh(path: Path, pattern: re.Pattern[str] = EXAMPLE) -> int:
    """Run all examples of a document again, or with REFERENCE its comparison; return how many it has."""
    again = comparison_of if pattern is REFERENCE else output_of
    text, count = pattern.subn(
        lambda match: match["command"] + match["between"] + again(match["command"]), path.read_text()
    )
    path.write_text(text)
    return count


if __name__ == "__main__":
    names, pattern = sys.argv[1:], EXAMPLE
    if "--references" in names:
        names.remove("--references")
        pattern = REFERENCE
    for name in names:
        print(f"{name}: {refresh(Path(name), pattern)} examples", flush=True)
