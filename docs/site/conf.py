"""The documents as a site: `make site`. Pages stay where they are and as they are; here is what joins them.

docs/design.md says why it is Sphinx with MyST.
"""

from __future__ import annotations

import inspect
import re
import shutil
import tomllib
from pathlib import Path

from docutils.nodes import document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

from dsgd.api import Comparison, Result
from dsgd.core.option_rules import Checked

ROOT = Path(__file__).parents[2]

project = "dsgd-lab"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
copyright = "the maintainers of dsgd-lab, Apache License 2.0"
html_title = f"{project} {release}"
html_theme = "furo"
html_show_sphinx = html_copy_source = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
root_doc = "README"
include_patterns = ["*.md", "benchmarks/*.md", "docs/*.md", "docs/**/*.md", "docs/site/*.rst"]
myst_heading_anchors = 4  # as GitHub names them
highlight_language = "text"
default_role = "literal"  # `x` in a docstring
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 90
linkcheck_ignore = [r"http://127\.0\.0\.1", r"http://localhost", r"https://example\.org"]

_GUIDES = "workloads experiments network faults checkpoints observing serving deploy runbook"
_REFERENCE = "site/api record theory design prior-art log"
CONTENTS = {
    "Guides": [f"docs/{name}" for name in _GUIDES.split()],
    "Strategies": [f"{p.stem} <docs/strategies/{p.stem}>" for p in sorted(ROOT.glob("docs/strategies/*.md"))],
    "Labs": ["docs/labs/README", "docs/labs/*"],
    "Reference": [*(f"docs/{name}" for name in _REFERENCE.split()), "benchmarks/README"],
    "Project": ["CHANGELOG", "CONTRIBUTING", "docs/CODE_OF_CONDUCT", "docs/SECURITY"],
}


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the table of contents, which the sidebar shows, to the first page."""
    if page == root_doc:
        for caption, pages in CONTENTS.items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{listed}\n```\n"


def as_plain_text(app: Sphinx, kind: str, name: str, found: object, _: object, lines: list[str]) -> None:
    """Show a docstring as it is written: text with `code`, and indented blocks with their lines. What it says
    of arguments, `argument: what it is`, becomes a list.
    """
    text = re.sub(r"\n\n(?= {4})", "\n\n::\n\n", "\n".join(lines))
    text = re.sub(r"(?m)(^(?: |>>>).*|`[^`]+`)|([*|_])", lambda m: m[1] or f"\\{m[2]}", text)
    if inspect.isfunction(found) and (arguments := "|".join(inspect.signature(found).parameters)):
        text = re.sub(rf"(?<=\.) ({arguments}): ", r"\n\1: ", text)
        argument = rf"(?ms)^({arguments}): (.*?)(?=\n(?:{arguments}): |\n\n|\Z)"
        text = re.sub(argument, lambda m: f":param {m[1]}: " + m[2].replace("\n", "\n    "), text)
    lines[:] = text.split("\n")


def without_options(app: Sphinx, kind: str, name: str, found: object, *_: object) -> tuple[str, None] | None:
    """Leave out the arguments of options, which are many (`--help` has them), and of what only runs make."""
    hidden = isinstance(found, type) and issubclass(found, (Checked, Result, Comparison))
    return ("", None) if hidden else None


def without_folders(app: Sphinx, page: document) -> None:
    """Leave the text alone of links to folders, which GitHub lists and a site does not have."""
    here = (ROOT / app.env.docname).parent
    for link in [*page.findall(pending_xref)]:
        if link["reftype"] == "myst" and (here / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def add_first_page(app: Sphinx, error: Exception | None) -> None:
    """Copy the first page to index.html, which servers look for."""
    first = app.outdir / f"{root_doc}.html"
    if first.exists():
        shutil.copy(first, app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect all of these."""
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", as_plain_text)
    app.connect("autodoc-process-signature", without_options)
    app.connect("doctree-read", without_folders)
    app.connect("build-finished", add_first_page)
