"""How big the house is: every number here may only shrink, and one that grows is a line in the diff.

Read from the source alone. A table that is too high by now is as wrong as one that is too low: lower it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT

SOURCE = sorted(
    path
    for top in (".", "benchmarks", "deploy", "docs", "dsgd")
    for path in (ROOT / top).glob("*.py" if top == "." else "**/*.py")
    if not path.is_symlink()
)

LINES = {
    ".": 1_400,
    "benchmarks": 1_800,
    "deploy": 5_000,
    "docs": 700,
    "dsgd": 700,
    "dsgd/compare": 2_000,
    "dsgd/conformance": 1_000,
    "dsgd/core": 5_700,
    "dsgd/engines": 9_100,
    "dsgd/models": 6_300,
    "dsgd/process": 1_600,
    "dsgd/records": 4_000,
    "dsgd/running": 4_700,
    "dsgd/scenario": 2_800,
    "dsgd/serve": 1_300,
    "dsgd/show": 10_800,
    "dsgd/strategies": 2_400,
    "dsgd/teach": 2_500,
    "dsgd/theory": 3_100,
    "dsgd/transforms": 1_900,
    "tests": 51_200,
}
"""Lines of source in each room, and of tests, rounded up to hundreds."""

LONG_FILES = {
    "dsgd/api.py",
    "dsgd/core/aggregators.py",
    "dsgd/core/rules.py",
    "dsgd/engines/ray/driver/cluster.py",
    "dsgd/engines/ray/driver/sent_tasks.py",
    "dsgd/engines/ray/worker/group.py",
    "dsgd/engines/ray/worker/host.py",
    "dsgd/engines/replay.py",
    "dsgd/engines/sim/sim_with_faults.py",
    "dsgd/models/objectives/module_objective.py",
    "dsgd/records/schema.py",
    "dsgd/records/writer.py",
    "dsgd/show/report/tables.py",
    "dsgd/transforms/codecs.py",
}
"""Source files of more than 400 lines."""

LONG_CLASSES = {
    "FollowedRun",
    "Host",
    "HostedCluster",
    "ModuleObjective",
    "RayAllReduce",
    "RayCluster",
    "ReplayCluster",
    "RunKeeper",
    "RunRecord",
    "SentTasks",
}
"""Classes of more than 250 lines."""

WORDS = {
    "expert": (("dsgd/models", "dsgd/theory"), 160),
    "rank": (("dsgd/engines", "dsgd/models"), 210),
    "codec": (("dsgd/transforms",), 30),
    "s3": (("dsgd/process", "dsgd/records"), 100),
    "prometheus": (("deploy", "dsgd/serve", "dsgd/show"), 10),
}
"""Words of a capability: the rooms where they belong, and on how many lines elsewhere they stand, to tens."""


def room(path: Path) -> str:
    """Return the folder of a file in dsgd/, a folder at the top, or `.` for the files there."""
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[: 2 if folders[:1] == ("dsgd",) else 1]) or "."


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def rounded_up(count: int, to: int) -> int:
    return -(-count // to) * to


def test_rooms_do_not_grow() -> None:
    """The lines of each room, and of all tests, are what the table says."""
    count = Counter[str]()
    for path in [*SOURCE, *(ROOT / "tests").rglob("*.py")]:
        count[room(path)] += len(lines(path))
    assert {name: rounded_up(n, 100) for name, n in sorted(count.items())} == LINES


def test_no_more_files_grow_long() -> None:
    """Files of more than 400 lines are those of the list."""
    assert {str(path.relative_to(ROOT)) for path in SOURCE if len(lines(path)) > 400} == LONG_FILES


def test_no_more_classes_grow_long() -> None:
    """Classes of more than 250 lines are those of the list."""
    found = set()
    for path in SOURCE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= 250:
                found.add(node.name)
    assert found == LONG_CLASSES


@pytest.mark.parametrize("word", WORDS)
def test_a_capability_stays_in_its_rooms(word: str) -> None:
    """Lines outside a capability's rooms that speak of it are as many as the table says."""
    homes, most = WORDS[word]
    outside = [path for path in SOURCE if not room(path).startswith(homes)]
    rule = re.compile(r"noqa: S\d+")  # S301 is no S3
    count = sum(word in rule.sub("", line).lower() for path in outside for line in lines(path))
    assert rounded_up(count, 10) == most
