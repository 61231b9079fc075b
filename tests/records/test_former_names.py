"""Former names of modules: a workload's file that an old record keeps can still be read."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dsgd import Problem
from dsgd.core import option_rules, protocol, rules
from dsgd.core.traits import Traits
from dsgd.models.datasets import token_files
from dsgd.process.user_code import _MODULES, know_former_names, load_code
from dsgd.strategies import config_of

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


STRATEGY_OF_BEFORE = """
from dataclasses import dataclass
from typing import Annotated

from dsgd.config import Ge, LocalConfig, Must, matches, require, whole_or_inf
from dsgd.core.tasks import gradient


@dataclass(frozen=True, kw_only=True)
class Config(LocalConfig):
    mode: str = "before"
    bound: Annotated[float, whole_or_inf(0)] = 1.0
    sends = "weights"

    @property
    def waits_for_all(self) -> bool:
        return self.bound == 0


def train(cluster, w, cfg):
    yield
"""


def test_a_strategy_from_before_says_its_traits(tmp_path: Path) -> None:
    """It imports rules from dsgd.config, and what it said attribute by attribute is in its `traits`."""
    file = tmp_path / "train_before.py"
    file.write_text(STRATEGY_OF_BEFORE)
    for _ in range(2):
        config_type: Any = config_of("before", str(file))
        assert config_type(strategy_file=str(file)).traits == Traits(sends="steps")
        assert config_type(strategy_file=str(file), bound=0).traits == Traits(
            sends="steps", waits_for_all=True
        )


@pytest.mark.parametrize(
    ("traits", "says"),
    [
        ('"weights"', "must be a value like Traits"),
        ('Traits(sends="grads")', "sends='grads': must be gradients"),
    ],
)
def test_traits_are_checked(traits: str, says: str, tmp_path: Path) -> None:
    """A Config whose traits are none, or not of the words, is refused in one line."""
    file = tmp_path / "train_before.py"
    text = STRATEGY_OF_BEFORE.replace('sends = "weights"', f"traits = {traits}").replace(
        "waits_for", "wait_for"
    )
    file.write_text("from dsgd.strategy import Traits\n" + text)
    with pytest.raises(ValueError, match=says):
        config_of("before", str(file))


def test_every_former_name_leads_to_a_file() -> None:
    """A module that moves again takes its former names along."""
    know_former_names()
    for former, now in _MODULES.items():
        found = import_module(former)
        assert found is import_module(now) or hasattr(found, "__path__"), former
