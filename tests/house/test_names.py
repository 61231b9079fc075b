"""Names in prose exist: a file, a module or a function that a docstring or comment points at is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from conftest import ROOT

TOPS = ("benchmarks", "deploy", "docs", "dsgd", "experiments", "tests")
TREE = [path for top in (".", *TOPS) for path in (ROOT / top).glob("*" if top == "." else "**/*")]
CODE = [path for path in TREE if path.suffix == ".py" and not path.is_symlink()]
PLACES = {path.relative_to(ROOT).as_posix() for path in TREE}

OF_OTHERS = {"exogym/utils.py", "local_sgd.py", "sparse_optimizer_c.py", "dgc/memory.py", "memory.py"}
"""Files of other projects that ours are compared with."""

FILE = re.compile(r"(?<![\w/.*])(?:\w[\w-]*/)*\w[\w-]*\.(?:py|md)\b")
DOTTED = re.compile(r"`((?:[A-Za-z_]\w*)(?:\.\w+)+)`")
WORD = re.compile(r"`([A-Za-z_]\w*)`")
PROSE = re.compile(r'"""(?:.|\n)*?"""|(?<!["\'])#.*')
TEXT = re.compile(r'"[^"\n]*[^"\w][^"\n]*"')  # of more than one word


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names that a file's code defines or uses, and its texts of one word."""
    return frozenset(re.findall(r"\w+", TEXT.sub("", PROSE.sub("", path.read_text(encoding="utf-8")))))


@cache
def names() -> frozenset[str]:
    """Return the names of all files' code, and of files and folders."""
    stems = {part.partition(".")[0] for place in PLACES for part in place.split("/")}
    return frozenset(stems.union(*(names_in(path) for path in TREE if path.suffix in (".py", ".yaml"))))


def exists(dotted: str) -> bool:
    """Whether a name that begins with a room of dsgd/ is a module, or in one; True for names of others."""
    parts = dotted.removeprefix("dsgd.").split(".")
    if not (ROOT / "dsgd" / parts[0]).is_dir():
        return True
    for n in range(len(parts), 0, -1):
        here = ROOT / "dsgd" / "/".join(parts[:n])
        if (module := here.with_suffix(".py")).exists() or (module := here / "__init__.py").exists():
            return {*parts[n:]} <= names_in(module)
    return False


def files_not_there(text: str) -> Iterator[str]:
    """Yield the files that a text names and that are nowhere; NAME, FOLDER, mine and my stand for others."""
    for file in FILE.findall(text):
        stands_for = re.search(r"NAME|FOLDER|mine|\bmy/", file) or file in OF_OTHERS
        if not stands_for and not any(f"/{place}".endswith(f"/{file}") for place in PLACES):
            yield file


def not_there(text: str) -> Iterator[str]:
    """Yield the files, and the names in backticks, that are nowhere."""
    yield from files_not_there(text)
    yield from (name for name in DOTTED.findall(text) if not exists(name))
    yield from (name for name in WORD.findall(text) if "NAME" not in name and name not in names())


def test_what_prose_names_is_there() -> None:
    """Files, and names in backticks, of docstrings and comments."""
    found = {path: [*not_there(" ".join(PROSE.findall(path.read_text(encoding="utf-8"))))] for path in CODE}
    assert len(found) > 300
    assert not {path: names for path, names in found.items() if names}


def test_the_files_that_pages_name_are_there() -> None:
    """Each Python or Markdown file that a page names is in the repository, or in a record."""
    pages = [
        page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if page.stem != "CHANGELOG"
    ]
    wrong = {
        page.name: found
        for page in pages
        if (found := {*files_not_there(page.read_text(encoding="utf-8"))} - {"workload.py"})
    }
    assert len(pages) > 40
    assert not wrong


def test_a_name_that_is_gone_is_found() -> None:
    """A module, a function in one, a file and a word are each seen."""
    gone = "`engines.ray.driver.ray`, `core.weights.nowhere`, records/nowhere.py, `no_such_word_at_all`"
    here = (
        "`engines.ray.driver.cluster`, `core.weights.Weights`, records/writer.py, `replaced`, train_mine.py"
    )
    assert len([*not_there(gone)]) == 4
    assert not [*not_there(here)]
