"""What `make test` leaves out, and what in it may take long."""

from __future__ import annotations

import ast

import pytest
from conftest import ROOT
from tiers import THE_REAL_THING_ONCE


def decorators(test: str) -> list[str]:
    """Return the source of a test's decorators; LookupError if there is no such test."""
    path, *names = test.split("::")
    body = ast.parse((ROOT / path).read_text()).body
    for name in names:
        found = [
            node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ]
        if not found:
            raise LookupError(test)
        body = found[0].body
    return [ast.unparse(decorator) for decorator in found[0].decorator_list]


@pytest.mark.parametrize("test", THE_REAL_THING_ONCE)
def test_what_is_real_is_in_make_test(test: str) -> None:
    """A test on the list is there, and no mark takes it out of `make test`."""
    assert "pytest.mark.thorough" not in decorators(test)


def test_few_tests_may_take_long() -> None:
    """At most fifteen."""
    assert len(THE_REAL_THING_ONCE) <= 15
