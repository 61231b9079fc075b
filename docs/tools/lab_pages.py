"""Makes the parts of the labs' pages that repeat what a lab's file says, and the pages' experiments.

    python docs/tools/lab_pages.py docs/labs/*.md        # or make labs

The page 01-synchronous.md belongs to the lab 01.yaml beside it. A part stands between a comment, like
`<!-- predictions of the lab -->`, and `<!-- end -->`; the kinds are the names of PARTS. What the lab has
under `experiment:` goes into experiments/lab1.yaml. A copy of a lab in another folder is made the same way.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from dsgd.process.outcomes import UsageError
from dsgd.teach.labs.answers import exercise_lines, goal_sentences, prediction_lines
from dsgd.teach.labs.lab_file import Lab, read_lab

ROOT = Path(__file__).parents[2]
LABS = ROOT / "docs" / "labs"
_PART = re.compile(r"<!-- (?P<kind>\w+) of the lab -->\n.*?<!-- end -->", re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>\.\.[^)#]*)")


def lab_of(page: Path) -> Path:
    """Return the file of a page's lab."""
    return page.with_name(f"{page.stem.partition('-')[0]}.yaml")


def experiment_of(page: Path) -> Path:
    """Return the file of a page's experiment."""
    number = page.stem.partition("-")[0]
    return page.parent / "experiments" / f"lab{number.lstrip('0')}.yaml"


def predictions(lab: Lab, page: Path) -> str:
    """Return the list of names to copy."""
    return f"```yaml\n{prediction_lines(lab)}```\n"


def commands(lab: Lab, page: Path) -> str:
    """Return the runs that the predictions are about, and those beside them, each once."""
    runs = [*(prediction.options for prediction in lab.predictions.values()), *lab.more_runs]
    return "".join(f"    {line}\n" for line in dict.fromkeys(map(command, runs)))


def exercise(lab: Lab, page: Path) -> str:
    """Return what the exercise asks for, what has to hold, and the names to copy."""
    assert lab.exercise
    goals = "".join(_filled(goal, "- ") for goal in goal_sentences(lab))
    return (
        f"{_filled(lab.exercise.text)}\n{goals}\nThe lab fixes all other options. "
        f"Add to `my/{lab_of(page).name}`:\n\n```yaml\n{exercise_lines(lab)}```\n"
    )


def experiment(lab: Lab, page: Path) -> str:
    """Return the command of the page's experiment."""
    return f"    uv run python main.py compare {_shown(experiment_of(page))}\n"


def check(lab: Lab, page: Path) -> str:
    """Return the command that checks the answers."""
    file = lab_of(page)
    return f"    uv run python main.py lab {_shown(file)} my/{file.name}\n"


PARTS: Mapping[str, Callable[[Lab, Path], str]] = {
    made.__name__: made for made in (predictions, commands, exercise, experiment, check)
}


def command(options: Mapping[str, Any]) -> str:
    """Return the command of a run.

    >>> command({"mode": "asgd", "num_workers": 8, "compute_time": "constant:1"})
    'uv run python main.py --engine sim --mode asgd --num-workers 8 --compute-time constant:1'
    """
    given = " ".join(f"--{name.replace('_', '-')} {shlex.quote(_value(v))}" for name, v in options.items())
    return f"uv run python main.py --engine sim {given}"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def refreshed(page: Path) -> str:
    """Return a page with its parts made again.

    Raises ValueError for a part that is not known, and UsageError for a lab that is wrong.
    """
    lab, text = read_lab(lab_of(page)), page.read_text(encoding="utf-8")

    def made(match: re.Match[str]) -> str:
        kind = match["kind"]
        if kind not in PARTS:
            raise ValueError(f"{page}: there is no part '{kind} of the lab'; choose from {', '.join(PARTS)}")
        return f"<!-- {kind} of the lab -->\n\n{PARTS[kind](lab, page)}\n<!-- end -->"

    return linked(_PART.sub(made, text), page)


def linked(text: str, page: Path) -> str:
    """Return a page's text with the links out of its folder leading to where they do in docs/labs.

    A copy of docs/labs may lie elsewhere, so that `../faults.md` finds nothing there.
    """

    def link(match: re.Match[str]) -> str:
        meant = LABS / match["target"]
        if (page.parent / match["target"]).exists() or not meant.exists():
            return match[0]
        return f"]({os.path.relpath(meant.resolve(), page.resolve().parent)}"

    return _LINK.sub(link, text)


def experiment_text(page: Path) -> str:
    """Return the content of the file of the page's experiment; empty if the lab has none."""
    content = read_lab(lab_of(page)).experiment
    if not content:
        return ""
    text = yaml.safe_dump(content, sort_keys=False, width=110, allow_unicode=True)
    return f"# Made from {lab_of(page).name} by `make labs`.\n{text}"


def refresh(page: Path) -> None:
    """Make a page's parts, and its experiment, again."""
    text, experiment_file = experiment_text(page), experiment_of(page)
    page.write_text(refreshed(page), encoding="utf-8")
    if text:
        experiment_file.parent.mkdir(exist_ok=True)
        experiment_file.write_text(text, encoding="utf-8")


def _filled(text: str, begin: str = "") -> str:
    rest = " " * len(begin)
    return textwrap.fill(text, 118, initial_indent=begin, subsequent_indent=rest) + "\n"


def _shown(path: Path) -> str:
    """Return a file as a command in the repository names it."""
    path = path.resolve()
    return os.path.relpath(path, ROOT) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        try:
            if lab_of(page).exists():
                refresh(page)
            else:
                page.write_text(linked(page.read_text(encoding="utf-8"), page), encoding="utf-8")
        except (OSError, ValueError, UsageError) as error:
            sys.exit(f"lab_pages.py: {error}")
