"""A lab's questions, made from its options: for the lecturer who changed them, and for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from dsgd.teach.labs.lab_file import Lab


def predictions(lab: Lab) -> str:
    """Return the list that students copy: names to fill in, each below its question."""
    lines = [_comment(p.text, "  # ") + f"  {name}:\n" for name, p in lab.predictions.items()]
    return "predictions:\n" + "".join(lines)


def exercise(lab: Lab) -> str:
    """Return the options that students choose, to fill in."""
    assert lab.exercise
    lines = []
    for option, choice in lab.exercise.choose.items():
        kind = "a whole number" if choice.whole else "a number"
        lines.append(f"  {option}:    # {kind}, {choice.least:g} to {choice.most:g}\n")
    return "exercise:\n" + "".join(lines)


def goals(lab: Lab) -> Iterator[str]:
    """Yield what the options of the exercise must achieve, a sentence each."""
    assert lab.exercise
    yield from (law.text for law in lab.exercise.laws)


def all_of(lab: Lab) -> str:
    """Return a whole lab as an answers file to fill in, each question as a comment."""
    parts = [f"# {lab.title}\n"]
    if lab.predictions:
        parts.append(predictions(lab))
    if lab.exercise:
        parts.append(
            _comment(lab.exercise.text)
            + "".join(_comment(goal, "# - ") for goal in goals(lab))
            + exercise(lab)
        )
    if lab.strategy:
        laws = "".join(_comment(law.text, "# - ") for law in lab.strategy.laws)
        parts.append(f"{laws}strategy:    # a file\n")
    return "\n".join(parts)


def _comment(text: str, begin: str = "# ") -> str:
    """Return a text as comment lines of at most 80 columns."""
    rest = begin.replace("-", " ") if begin.endswith("- ") else begin
    return textwrap.fill(text, 80, initial_indent=begin, subsequent_indent=rest) + "\n"
