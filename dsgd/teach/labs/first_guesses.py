"""The first guesses of a student: kept beside the answers, each written once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from dsgd.show.terminal.cli import UsageError
from dsgd.teach.labs.lab_file import mapping, read_yaml

_HEADER = "# First guesses: --check adds a line for each new one, and never changes what is here.\n"


def path_of(answers: Path) -> Path:
    """Return the file of the first guesses: my/01.first.yaml for my/01.yaml."""
    return answers.with_name(f"{answers.stem}.first.yaml")


def read(answers: Path) -> dict[str, float]:
    """Return the first guess of each prediction that has one.

    Raises UsageError, in one line, for a file that is there and cannot be read.
    """
    path = path_of(answers)
    if not path.exists():
        return {}
    where, remedy = f"first guesses {path}", "move it away to begin anew"
    content = mapping(read_yaml(path, where, remedy), where)
    try:
        return {name: float(entry["guess"]) for name, entry in content.items()}
    except (TypeError, KeyError, ValueError):
        raise UsageError(f"{where}: is not as --check wrote it; {remedy}") from None


def keep(answers: Path, predictions: Mapping[str, float], at: datetime) -> Path | None:
    """Write the predictions that have no first guess yet; return the file if anything was written.

    at: the time that stands beside them, with its zone. Raises UsageError if the file cannot be written.
    """
    path, known = path_of(answers), read(answers)
    new = {name: value for name, value in predictions.items() if name not in known}
    if not new:
        return None
    when = at.strftime("%Y-%m-%d %H:%M:%S %z")
    lines = [f'{name}: {{guess: {value!r}, at: "{when}"}}\n' for name, value in new.items()]
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(("" if known else _HEADER) + "".join(lines))
    except OSError as error:
        raise UsageError(
            f"first guesses {path}: cannot be written ({error.strerror}); make its folder writable"
        ) from None
    return path
