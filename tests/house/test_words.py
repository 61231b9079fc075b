"""Plain English: turns of phrase that no document may contain."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Files whose prose is held to the law: Markdown, the labs' texts, and of Python docstrings and comments.
GLOBS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**/*.md",
    "docs/labs/**/*.yaml",
    "experiments/*.yaml",
    "*.py",
    "dsgd/**/*.py",
    "deploy/**/*.py",
    "benchmarks/*.py",
    "tests/**/*.py",
]
BANNED = {
    "tells": r"tells",
    "is told": r"(?:is|are|was|were|be|been) told",
    "but for": r"but for",
    "goes before": r"go(?:es)? before",
    "who looks on": r"who looks? on",
    "mend": r"mend(?:s|ed|ing)?",
    "parted": r"parted",
    "for nothing": r"for nothing",
    "in sight": r"in sight",
    "come about": r"(?:comes?|came|coming) about",
    "such a one": r"such a one",
    "go the way of": r"go(?:es)? the way of",
    "torn apart": r"torn apart",
}
FILES = sorted({path.relative_to(ROOT).as_posix() for glob in GLOBS for path in ROOT.glob(glob)})

CODE = [
    r"^(?P<fence>```|~~~).*?^(?P=fence)$",
    r"(?<=\n\n) {4,}[^\n]*(?:\n+ {4,}[^\n]*)*",  # indented after an empty line
    r"(?P<ticks>`+)(?:(?!\n\n).)+?(?P=ticks)",
]
QUOTED = [r"\"(?:(?!\n\n)[^\"])*\"", r"“(?:(?!\n\n)[^”])*”"]


def prose(text: str, suffix: str) -> str:
    """Return a text without its code and without what it quotes, each line where it was."""
    if suffix == ".py":
        text = docstrings_and_comments(text)
    for pattern in [*(CODE if suffix != ".yaml" else []), *QUOTED]:
        text = re.sub(pattern, lambda m: re.sub(r"[^\n]+", " ", m[0]), text, flags=re.MULTILINE | re.DOTALL)
    return text


def docstrings_and_comments(text: str) -> str:
    """Return the docstrings and comments of a Python file, each line where it was."""
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number, line in enumerate(str(node.value.value).split("\n"), node.lineno - 1):
                lines[number] = line.removeprefix(" " * node.col_offset)
    return "\n".join(lines)


def banned(text: str) -> list[str]:
    """Return each banned turn in a text with its line, also where a line ends within it."""
    found = []
    for turn, pattern in BANNED.items():
        spread = pattern.replace(" ", r"\s+")
        for match in re.finditer(rf"\b{spread}\b", text, re.IGNORECASE):
            line = 1 + text[: match.start()].count("\n")
            found.append(f"line {line}: {turn!r}")
    return found


@pytest.mark.parametrize("glob", GLOBS)
def test_documents_are_in_plain_english(glob: str) -> None:
    """No document has one of the banned turns; say it with a common verb instead."""
    found = {str(path): banned(prose(path.read_text(), path.suffix)) for path in ROOT.glob(glob)}
    assert {name: turns for name, turns in found.items() if turns} == {}


def test_no_file_has_the_marks_of_a_merge() -> None:
    """No document and no code has a line that git writes where two changes meet."""
    marks = re.compile(r"^(?:<{7} |>{7} )", re.MULTILINE)
    assert not [name for name in FILES if marks.search((ROOT / name).read_text())]


@pytest.mark.parametrize("turn", BANNED)
def test_a_banned_turn_is_found(turn: str) -> None:
    """A turn is found across a line's end and in capitals, but not in code, in quotes or inside a word."""
    broken = turn.upper().replace(" ", "\n", 1)
    assert banned(prose(f"A line.\nAnother {broken}.\n", ".md")) == [f"line 2: {turn!r}"]
    for kept in (f"`{turn}`", f'"{turn}"', f"“{turn}”", f"```\n{turn}\n```", f"x\n\n    {turn}\n"):
        assert banned(prose(kept, ".md")) == []
    assert banned(prose(f"un{turn}ed", ".md")) == []


@pytest.mark.parametrize("turn", BANNED)
def test_a_banned_turn_is_found_in_python(turn: str) -> None:
    """A turn is found in a docstring and in a comment, not in code: a string or a name."""
    source = f'def f():\n    """Do it.\n\n    It {turn}.\n    """\n    return "{turn}"  # it {turn}\n'
    assert banned(prose(source, ".py")) == [f"line 4: {turn!r}", f"line 6: {turn!r}"]
