"""The front page: what README shows of the tree, rooms on their floors and how many there are of a thing.

    python docs/tools/house.py        # or make docs

A room is a folder of dsgd/, and its line is the first of its docstring.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

FLOORS = (
    ("process",),
    ("core",),
    ("scenario",),
    ("transforms",),
    ("config",),
    ("theory",),
    ("models", "metrics"),
    ("strategies", "data", "engines"),
    ("records",),
    ("running",),
    ("show",),
    ("compare", "conformance", "serve", "teach"),
)
"""From the ground up: a room imports those below it. config, data and metrics are files at the top."""

_ROOMS = re.compile(r"(?<=^dsgd/ {16}the package, from the ground up\n)(?:  \w+/ .*\n)*", re.MULTILINE)


def tree() -> str:
    """Return a line for each room: its name, and what its docstring says first."""
    rooms = (name for names in FLOORS for name in names if (ROOT / "dsgd" / name).is_dir())
    return "".join(f"  {name + '/':<19}{_door(name)}\n" for name in rooms)


def _door(name: str) -> str:
    module = ast.parse((ROOT / "dsgd" / name / "__init__.py").read_text(encoding="utf-8"))
    text = (ast.get_docstring(module) or "").partition("\n")[0].removesuffix(".")
    return text[:1].lower() + text[1:]


def with_tree(page: str) -> str:
    """Return the text of README with today's rooms."""
    return _ROOMS.sub(lambda _: tree(), page, count=1)


def counts() -> dict[str, int]:
    """Return how many there are of what README counts, by what it calls them."""
    theory = (ROOT / "docs/theory.md").read_text(encoding="utf-8")
    return {
        "strategies": len([*ROOT.glob("dsgd/strategies/train_*.py")]),
        "labs": len([*ROOT.glob("docs/labs/*.yaml")]),
        "experiments": len([*ROOT.glob("experiments/*.yaml")]),
        "closed forms": theory.count("% |\n"),
    }


def with_counts(page: str) -> str:
    """Return the text of README with today's numbers: those before the names of `counts`."""
    return re.sub(rf"\b\d+ ({'|'.join(counts())})\b", lambda match: f"{counts()[match[1]]} {match[1]}", page)


if __name__ == "__main__":
    README.write_text(with_counts(with_tree(README.read_text(encoding="utf-8"))), encoding="utf-8")
