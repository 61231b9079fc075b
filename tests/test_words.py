"""Plain English: turns of phrase that no document may contain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Files whose prose is held to the law; to add docstrings, add their globs and give `prose` their suffix.
GLOBS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md"]
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
}
FILES = sorted({path.relative_to(ROOT).as_posix() for glob in GLOBS for path in ROOT.glob(glob)})


def prose(text: str) -> str:
    """Return a Markdown text without its code and without what it quotes, on as many lines."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]+", " ", match[0])

    fenced = r"^(?P<fence>```|~~~).*?^(?P=fence)$"
    indented = r"(?<=\n\n) {4,}[^\n]*(?:\n+ {4,}[^\n]*)*"
    inline = r"(?P<ticks>`+)(?:(?!\n\n).)+?(?P=ticks)"
    quoted = r"\"(?:(?!\n\n)[^\"])*\"|“(?:(?!\n\n)[^”])*”"
    for code in (fenced, indented, inline, quoted):
        text = re.sub(code, blank, text, flags=re.MULTILINE | re.DOTALL)
    return text


def banned(text: str) -> list[str]:
    """Return each banned turn in a text, with its line, though it may run on into the next."""
    found = []
    for turn, pattern in BANNED.items():
        spread = pattern.replace(" ", r"\s+")
        for match in re.finditer(rf"\b{spread}\b", text, re.IGNORECASE):
            line = 1 + text[: match.start()].count("\n")
            found.append(f"line {line}: {turn!r}")
    return found


@pytest.mark.parametrize("name", FILES)
def test_a_document_is_in_plain_english(name: str) -> None:
    """The prose of a document has none of the banned turns; say it with a common verb instead."""
    assert banned(prose((ROOT / name).read_text())) == []


@pytest.mark.parametrize("turn", BANNED)
def test_a_banned_turn_is_found(turn: str) -> None:
    """Each turn is found across a line's end and in capitals, but neither in code, nor quoted, nor inside a word."""
    first, _, rest = turn.partition(" ")
    broken = f"A line.\nAnother {first.upper()}\n{rest}.\n" if rest else f"A line.\nAnother {turn.upper()}.\n"
    assert banned(prose(broken)) == [f"line 2: {turn!r}"]
    for kept in (
        f"`{turn}`",
        f'"{turn}"',
        f"“{turn}”",
        f"```\n{turn}\n```",
        f"x\n\n    {turn}\n",
        f"re{turn}ation",
    ):
        assert banned(prose(kept)) == []
