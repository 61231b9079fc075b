"""The laws of all strategies that are read from the file itself."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path

from dsgd.conformance.strategy_on_trial import Broken, Subject
from dsgd.core.option_rules import options as flat
from dsgd.strategies import configured

# Clocks, randomness, metrics and engines are not a strategy's: the run has them.
NOT_A_STRATEGYS = ("time", "random", "ray", "dsgd.metrics", "dsgd.engines.ray.driver.cluster",
                   "dsgd.engines.sim.sim", "dsgd.core.timing", "dsgd.core.rng")  # fmt: skip
MOST_LINES = 25  # of code in train: it fits a slide
PARTS = ("Source:", "Limits:", "How this differs from the paper")


def is_only_its_algorithm(subject: Subject) -> None:
    """It imports no engine, clock, randomness or metrics, and torch at most inside a task.

    The run has these: a strategy that seems to need one asks the cluster. torch makes --help slow; import it
    in the task's __call__.
    """
    tree = ast.parse(subject.path.read_text())
    forbidden = _imports(ast.walk(tree), NOT_A_STRATEGYS) + _imports(tree.body, ("torch",))
    for line, module in sorted(forbidden):
        raise Broken(f"line {line} imports {module}")


def train_fits_a_slide(subject: Subject) -> None:
    """`train` has at most 25 lines of code.

    Move what is not the algorithm's course into a function, a rule or a task beside it.
    """
    text = subject.path.read_text()
    trains = [
        node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == "train"
    ]
    if not trains:
        raise Broken("train is not a plain function of the file")
    lines = text.splitlines()[trains[0].body[0].lineno - 1 : trains[0].end_lineno]
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    if len(code) > MOST_LINES:
        raise Broken(f"it has {len(code)}")


def says_where_it_comes_from(subject: Subject) -> None:
    """Its text cites its source, its limiting cases and its differences from the paper, and it has a page.

    The text at the top of the file has `Source:`, `Limits:` and `How this differs from the paper`; the page
    is <mode>.md, beside a file of yours and in docs/strategies for a mode of the repository.
    """
    for part in PARTS:
        if part not in (subject.strategy.__doc__ or ""):
            raise Broken(f"its text has no '{part}'")
    root = Path(__file__).parents[2]
    folder = subject.path.parent if subject.file else root / "docs" / "strategies"
    if folder.is_dir() and not (folder / f"{subject.mode}.md").exists():
        raise Broken(f"there is no page {subject.mode}.md in {folder}")


def its_options_make_the_same_configuration(subject: Subject) -> None:
    """The options of a run, as config.yaml has them, make the same configuration again; none is there twice.

    Each option is a field of Config with a unique name, and __post_init__ checks it without changing it.
    """
    chosen = {"num_workers": 5, "lr": 0.3, "slowdown": "0=4", "target_loss": 0.1, "run_name": "a"}
    with subject.may_break(chosen):
        cfg = subject.config(**chosen)
        again = configured(flat(cfg))
    for f in fields(cfg):
        if getattr(again, f.name) != getattr(cfg, f.name):
            raise Broken(f"{f.name} becomes {getattr(again, f.name)}, needed {getattr(cfg, f.name)}", chosen)
    seen = set[str]()
    for f in fields(cfg):
        value = getattr(cfg, f.name)
        for name in [g.name for g in fields(value)] if is_dataclass(value) else [f.name]:
            if name in seen:
                raise Broken(f"there are two options {name}")
            seen.add(name)


def _imports(nodes: Iterable[ast.AST], modules: Iterable[str]) -> list[tuple[int, str]]:
    """Return which of some modules statements import, and in which lines."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, node.module or ""))
    return [(line, name) for line, name in found if name in modules]
