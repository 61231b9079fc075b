"""The pages: short, few, and each link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT
from test_rooms import rounded_up

_WHERE = ("*.md", "benchmarks/*.md", "docs/**/*.md")
PAGES = sorted(page for pattern in _WHERE for page in ROOT.glob(pattern))

LONG_PAGES = {"docs/record.md", "docs/theory.md"}
"""More than 150 lines: they are made from tables."""

MOST_WORDS = 44_000


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Each link and figure of a page that names no other site is a file here, and its anchor a heading."""
    for target in re.findall(r"\]\((?!\w+://|mailto:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_pages_are_short() -> None:
    """Pages of more than 150 lines are those of the list."""
    long = {str(page.relative_to(ROOT)) for page in PAGES if len(page.read_text().splitlines()) > 150}
    assert long == LONG_PAGES


def test_pages_do_not_grow() -> None:
    """All pages together have as many words as the number above says, rounded up to thousands."""
    assert (
        rounded_up(sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES), 1000) == MOST_WORDS
    )


def test_every_figure_is_on_a_page() -> None:
    """No figure is left of a page that no longer shows it."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    figures = {path.name for path in (ROOT / "docs/images").iterdir()}
    assert not {name for name in figures if name not in text}
