"""What `make test` leaves out, what in it may take long, and which mistakes each tier finds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from conftest import REMEDIES, ROOT
from tiers import PLANTED_MISTAKES, THE_REAL_THING_ONCE


def marks(test: str) -> str:
    """Return the source of all that marks a test: its decorators, its class's and `pytestmark` of its file;
    LookupError if there is no such test.
    """
    path, *names = test.split("::")
    body: Sequence[ast.stmt] = ast.parse((ROOT / path).read_text()).body
    found = [ast.unparse(node) for node in body if ast.unparse(node).startswith("pytestmark")]
    for name in names:
        chosen = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
        if not chosen:
            raise LookupError(test)
        body = chosen[0].body
        found += map(ast.unparse, chosen[0].decorator_list)
    return "\n".join(found)


@pytest.mark.parametrize("test", [*THE_REAL_THING_ONCE, *PLANTED_MISTAKES])
def test_what_is_real_and_what_is_planted_is_in_make_test(test: str) -> None:
    """A test on one of the lists is there, and no mark takes it out of `make test`."""
    assert "pytest.mark.thorough" not in marks(test)


def test_few_tests_may_take_long() -> None:
    """At most fifteen."""
    assert len(THE_REAL_THING_ONCE) <= 15


def test_the_packages_that_tests_need_are_named() -> None:
    """`make packages` installs all that `make setup` does not bring, where Debian has it."""
    command, needed = "apt-get install ", REMEDIES.values()
    (named,) = re.findall(r"^DEBIAN := \$\(BROWSER\) (.+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    packages = {how.removeprefix(command) for how in needed if how.startswith(command)}
    assert ["chromium", *named.split()] == sorted(packages)


def cases(*arguments: str) -> Counter[str]:
    """Return how many cases pytest would run, by test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return Counter(line.partition("[")[0] for line in listed.splitlines() if "::" in line)


@pytest.mark.thorough
def test_the_table_of_mistakes_is_right() -> None:
    """CONTRIBUTING.md says how many of the planted mistakes each tier finds."""
    (quick,) = re.findall("^QUICK := (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    files = sorted({test.partition("::")[0] for test in PLANTED_MISTAKES})
    everything, in_test = cases(*files), cases("-m", "not thorough", *files)
    rows = []
    for test, what in PLANTED_MISTAKES.items():
        in_quick = in_test[test] if any(test.startswith(f"{folder}/") for folder in quick.split()) else 0
        name = test.removeprefix("tests/").partition("::")[0]
        rows.append(f"| {what} | {name} | {in_quick} | {in_test[test]} | {everything[test]} |")
    assert "\n".join(rows) in (ROOT / "CONTRIBUTING.md").read_text()
