"""Runs the examples of the documents again and inserts their output.

    python docs/tools/examples.py README.md docs/strategies/*.md        # or make docs

An example is a simulator command in a code block, and the block after it, which begins with the row `run`.
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


def output_of(command: str) -> str:
    """Run an example, its record in a temporary folder; return its summary, without the record's path."""
    arguments = shlex.split(command.replace("\\\n", " "))[3:]
    with tempfile.TemporaryDirectory() as out:
        printed = subprocess.run(
            [sys.executable, *arguments, "--out", out], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    lines = [line.rstrip() for line in printed[printed.index("run  ") :].splitlines()]  # after the progress
    return "\n".join(line for line in lines if not line.startswith("record "))


def refresh(path: Path) -> int:
    """Run all examples of a document again; return how many it has."""
    text, count = EXAMPLE.subn(
        lambda match: match["command"] + match["between"] + output_of(match["command"]), path.read_text()
    )
    path.write_text(text)
    return count


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"{name}: {refresh(Path(name))} examples")
