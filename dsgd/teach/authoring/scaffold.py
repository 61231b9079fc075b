"""The command `new`: it writes a strategy that works."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from dsgd.core.option_rules import Checked
from dsgd.process.environment import ROOT, of_python
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError, program
from dsgd.show.terminal.command_options import Positional, options_of_command
from dsgd.strategies import modes

_NAME = re.compile(r"(?!train_)[a-z][a-z0-9_]{0,29}")
_RULE = (
    "a name has lower-case letters a to z, digits and _, 30 at most, without train_ and .py, like signvote"
)


@dataclass(frozen=True, kw_only=True)
class NewOptions(Checked):
    """Write a strategy that works, to be changed into yours: train_NAME.py, its page NAME.md and its test
    test_NAME.py. In a clone of the repository they go where those of the other modes are; elsewhere, and
    with --into, into one folder.
    """

    name: Annotated[str, Positional("NAME")]
    """Lower-case letters a to z, digits and _, 30 at most, without train_ and .py, like signvote."""

    into: str | None = None
    """The folder; it is made if it is not there."""


def new(arguments: Sequence[str], _: Interruptions) -> int:
    """Write a strategy's file, page and test, say where they are and what to run next; return the exit code.

    Raises UsageError, in one line, for a bad name and a file that is there already; nothing is written then.
    """
    given = options_of_command(NewOptions, "new", arguments)
    name = given.name
    shipped = given.into is None and Path.cwd().is_relative_to(ROOT) and _is_repository(ROOT)
    paths = _in_repository(name) if shipped else _in_folder(name, Path(given.into or ""))
    _refuse(name, paths)
    texts = rendered(name, shipped=shipped)
    for template, path in paths.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(texts[template])
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UsageError(f"new {name}: {path} cannot be written ({reason})") from None
    if shipped:  # the page begins with what the file says, as those of the other modes do
        tool = [sys.executable, "docs/tools/strategy_pages.py", f"docs/strategies/{name}.md"]
        subprocess.run(tool, cwd=ROOT, check=True, env=of_python())
    print("\n".join([*(str(path) for path in paths.values()), "", "next:", *_next(name, paths, shipped)]))
    return 0


def rendered(name: str, *, shipped: bool) -> Mapping[str, str]:
    """Return the texts of a new strategy by template; `shipped` ones are modes of the repository."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - Python and Markdown, no page
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True
    )
    return {
        template: environment.get_template(f"{template}.j2").render(name=name, shipped=shipped)
        for template in ("train.py", "page.md", "test.py")
    }


def _is_repository(root: Path) -> bool:
    return all((root / folder).is_dir() for folder in ("dsgd/strategies", "docs/strategies", "tests"))


def _in_repository(name: str) -> dict[str, Path]:
    root = Path() if Path.cwd() == ROOT else ROOT
    return {
        "train.py": root / "dsgd" / "strategies" / f"train_{name}.py",
        "page.md": root / "docs" / "strategies" / f"{name}.md",
        "test.py": root / "tests" / f"test_{name}.py",
    }


def _in_folder(name: str, folder: Path) -> dict[str, Path]:
    return {
        "train.py": folder / f"train_{name}.py",
        "page.md": folder / f"{name}.md",
        "test.py": folder / f"test_{name}.py",
    }


def _refuse(name: str, paths: Mapping[str, Path]) -> None:
    """Raise UsageError for a bad name, one of a mode, and one of which a file is there."""
    option = f"new {name}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{option}: {_RULE}")
    if name in modes():
        raise UsageError(f"{option}: there is a mode {name} already; choose another name, like my{name}")
    for path in paths.values():
        if path.exists() or path.is_symlink():
            raise UsageError(
                f"{option}: there is a file {path} already; choose another name, or move that file"
            )


def _next(name: str, paths: Mapping[str, Path], shipped: bool) -> list[str]:
    """Return the commands that run a new strategy and hold it to the laws."""
    call = "dsgd" if program() == "dsgd" else "python main.py"
    file, test = paths["train.py"], paths["test.py"]
    chosen = f"--mode {name if shipped else file}"
    return [
        f"  {call} {chosen} --engine sim",
        f"  {call} check {name if shipped else file}",
        f"  pytest {test}" if not shipped else f"  make quick MODE={name}",
    ]
