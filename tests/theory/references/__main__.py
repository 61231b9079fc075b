"""Compares a strategy with its reference, over several seeds, and draws the figure of its page.

    PYTHONPATH=tests/theory uv run python -m references ssp

Several modes may be given; without any, all are compared. A figure goes to docs/images.
"""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import dsgd
from references.compare import Curves, compare, modes
from references.figures import draw_curves
from references.problem import Problem
from references.published import SEEDS

ROOT = Path(__file__).parents[3]
_KEEP = "\xa0"  # a space at which no line is broken


def main() -> None:
    """Compare the modes on the command line."""
    parser = argparse.ArgumentParser(prog="python -m references", description=__doc__.partition("\n")[0])
    parser.add_argument("modes", nargs="*", metavar="MODE", help=f"{', '.join(modes())}; without any: all")
    asked = parser.parse_args().modes or modes()
    if unknown := sorted(set(asked) - set(modes())):
        parser.error(f"{unknown[0]}: there is no such reference; choose among {', '.join(modes())}")
    torch.set_num_threads(1)  # the operations are small
    for number, mode in enumerate(asked):
        print(("\n" if number else "") + report(mode), flush=True)


def report(mode: str) -> str:
    """Compare a mode with its reference and with formulas, draw its figure; return what is printed."""
    curves = compare(mode, SEEDS)
    rows = rows_of(mode, curves)
    reference = importlib.import_module(f"references.{mode}")
    if hasattr(reference, "published"):
        published = reference.published(partial(dsgd.run, mode, engine="sim"))
        rows.append(("formula", f"{published.title}: {published.words}"))
    figure = f"docs/images/reference-{mode}.svg"
    (ROOT / figure).write_text(draw_curves(mode, curves), encoding="utf-8")
    rows.append(("drawn", figure))
    return "\n".join(_wrapped(*row) for row in rows)


def rows_of(mode: str, curves: Sequence[Curves]) -> list[tuple[str, str]]:
    """Return names and texts: what was compared, the losses at the end, and the largest differences."""
    reference = importlib.import_module(f"references.{mode}")
    problem = Problem(curves[0].seed)
    size = {"num_workers": problem.num_workers, "steps": problem.steps}
    apart = {
        "loss": max(c.loss for c in curves),
        "weights": max(c.weights for c in curves),
        "times": max(c.seconds for c in curves),
    }
    said = ", ".join(
        f"{value:.0e} of the {name}" if value else f"0 of the {name}" for name, value in apart.items()
    )
    return [
        ("strategy", f"--mode {mode}, seeds {curves[0].seed} to {curves[-1].seed}"),
        ("reference", f"tests/theory/references/{mode}.py, the same seeds"),
        ("options", _options({**size, **problem.options, **reference.OPTIONS})),
        ("last loss", f"strategy {_spread([c.strategy[-1] for c in curves])}, median (range)"),
        ("", f"reference {_spread([c.reference[-1] for c in curves])}"),
        ("difference", f"at most {said}"),
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def _options(options: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')}{_KEEP}{value}" for name, value in options.items())


def _wrapped(name: str, text: str) -> str:
    lines = textwrap.wrap(text, 79 - 13, break_on_hyphens=False, break_long_words=False)
    return "\n".join(f"{name if not n else '':13}{line}" for n, line in enumerate(lines)).replace(_KEEP, " ")


if __name__ == "__main__":
    main()
