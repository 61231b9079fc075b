"""Former names of modules: a workload's file that an old record keeps can still be read."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from dsgd import Problem
from dsgd.core import option_rules, protocol, rules
from dsgd.models.datasets import token_files
from dsgd.process.user_code import _MODULES, know_former_names, load_code

WRITTEN_BEFORE = """
import dsgd.models.transformer
from dsgd.cluster import Update
from dsgd.core.constraints import Must
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
    assert code.Windows is token_files.Windows
    assert code.rules is rules
    assert code.Must is option_rules.Must


def test_every_former_name_leads_to_a_file() -> None:
    """A module that moves again takes its former names along."""
    know_former_names()
    for former, now in _MODULES.items():
        found = import_module(former)
        assert found is import_module(now) or hasattr(found, "__path__"), former
