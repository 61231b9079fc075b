"""Former names of modules: a workload's file that an old record keeps can still be read."""

from __future__ import annotations

from pathlib import Path

from dsgd import Problem
from dsgd.core import protocol, rules
from dsgd.models.datasets import windows
from dsgd.process.user_code import load_code

WRITTEN_BEFORE = """
import dsgd.models.transformer
from dsgd.cluster import Update
from dsgd.datasets import labelled
from dsgd.datasets.windows import Windows
from dsgd.work import rules
from dsgd.work.problem import Problem
from dsgd.workloads._images import *
"""


def test_a_file_from_before_the_move_gets_the_very_modules(tmp_path: Path) -> None:
    """What it imports by a former name is the module itself, so a Problem is a Problem."""
    file = tmp_path / "before.py"
    file.write_text(WRITTEN_BEFORE)
    code = load_code(file, "workload")
    assert code.Problem is Problem
    assert code.Update is protocol.Update
    assert code.Windows is windows.Windows
    assert code.rules is rules
