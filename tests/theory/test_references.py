"""Strategies against their reference implementations: what the pages' figures show."""

from __future__ import annotations

import ast
import importlib
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from references.compare import Curves, compare, modes, set_beside, train_reference, train_strategy
from references.problem import Problem

import dsgd
from docs.tools.examples import REFERENCE
from dsgd.strategies import modes as shipped

FOLDER = ROOT / "tests/theory/references"
SEEDS = (3, 4)
REFERENCES = {mode: importlib.import_module(f"references.{mode}") for mode in modes()}
IN_PROCESSES = [mode for mode in modes() if hasattr(REFERENCES[mode], "PROCESSES")]
HERE = [mode for mode in modes() if mode not in IN_PROCESSES]
CASES = [
    pytest.param(mode, options, id=" ".join([mode, *(f"{k}={v}" for k, v in options.items())]))
    for mode in HERE
    for options in [{}, *getattr(REFERENCES[mode], "VARIANTS", [])]
]


def assert_agree(curves: list[Curves]) -> None:
    """Assert that strategy and reference differ by rounding, and that the strategy learns at all."""
    for c in curves:
        assert c.loss < 1e-5
        assert c.weights < 1e-4  # AdamW divides by roots of squares near 0
        assert c.seconds < 1e-12
        assert c.strategy[-1] < 0.9 * c.strategy[0]


@pytest.mark.parametrize(("mode", "options"), CASES)
def test_a_strategy_is_its_reference(mode: str, options: dict[str, Any]) -> None:
    """A strategy makes the updates of its reference at the same times, and the same loss, to rounding."""
    assert_agree(compare(mode, SEEDS, {**REFERENCES[mode].OPTIONS, **options}, num_workers=4, steps=50))


@pytest.mark.crossing(one_in=2)
@pytest.mark.parametrize("mode", IN_PROCESSES)
def test_a_strategy_is_that_of_torch_distributed(mode: str) -> None:
    """DistributedDataParallel and PostLocalSGDOptimizer, in real processes, make the strategy's loss."""
    assert_agree(compare(mode, SEEDS, num_workers=2, steps=50))


@pytest.mark.parametrize("mode", HERE)
def test_another_algorithm_is_noticed(mode: str) -> None:
    """A reference with another option makes other updates, or a loss that differs far beyond rounding."""
    problem, options = Problem(3), REFERENCES[mode].OPTIONS
    result = train_strategy(mode, problem, options)
    (versions,) = train_reference(mode, [problem], {**options, **REFERENCES[mode].OTHER})
    try:
        difference = set_beside(problem, result, versions).loss
    except ValueError:  # other updates
        difference = math.inf
    assert difference > 1e-4


@pytest.mark.parametrize("mode", ["adacomm", "rennala", "ringmaster"])
def test_a_formula_without_chance_holds(mode: str) -> None:
    """Where nothing is random, measurements equal the paper's formula, or keep below its bound."""
    published = REFERENCES[mode].published(partial(dsgd.run, mode, engine="sim"))
    measured = [(series.bound, g) for series in published.series for g in series.groups if g.measured]
    assert len(measured) >= 7
    for bound, group in measured:
        for value in group.measured:
            assert value <= group.law * (1 + 1e-9)
            assert bound or value == pytest.approx(group.law, rel=1e-9)


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports from this repository."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    return {name for name in found if name.split(".")[0] in {"dsgd", "references", "main", "config", "data"}}


@pytest.mark.parametrize("mode", modes())
def test_a_reference_is_independent(mode: str) -> None:
    """A reference shares with its strategy the problem only: data, initial weights, compute times, graphs."""
    assert imported(FOLDER / f"{mode}.py") <= {
        "references.problem",
        "references.published",  # values to be drawn
    }
    assert imported(FOLDER / "problem.py") == {
        "dsgd.config", "dsgd.core.timing", "dsgd.data", "dsgd.scenario.graphs",
        "dsgd.scenario.timing_options",
    }  # fmt: skip


def test_references_are_of_strategies() -> None:
    """Each reference has the name of a mode, and the first thirteen modes have one."""
    assert set(modes()) <= set(shipped())
    assert len(modes()) >= 13


@pytest.mark.parametrize("mode", modes())
def test_a_page_ends_in_the_comparison(mode: str) -> None:
    """A page has the command, what it prints, and its figures: small, and of both looks."""
    page = (ROOT / f"docs/strategies/{mode}.md").read_text(encoding="utf-8")
    (shown,) = REFERENCE.finditer(page)
    assert shown["mode"] == mode
    printed = shown[0].rpartition("```\n")[2]
    assert max(map(len, printed.splitlines())) < 80
    (loss,) = re.findall(r"at most (\S+) of the loss", printed)
    assert float(loss) < 1e-5
    figures = re.findall(r"docs/images/(\S+\.svg)", printed)
    assert f"reference-{mode}.svg" in figures
    for figure in figures:
        assert f"](../images/{figure})" in page[shown.end() :]
        svg = (ROOT / "docs/images" / figure).read_text(encoding="utf-8")
        assert len(svg) < 60_000
        assert "prefers-color-scheme:dark" in svg
