"""The laws of majority: those of all strategies, and its own. Run them with `pytest test_majority.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsgd.conformance import LawCheck, checks_of
from dsgd.running.quick_run import run

FILE = str(Path(__file__).with_name("train_majority.py"))


@pytest.mark.parametrize("check", checks_of(FILE), ids=str)
def test_it_keeps(check: LawCheck) -> None:
    """It keeps the laws of all strategies that concern it; LAWS in its file says which do."""
    check()


@pytest.mark.parametrize("quorum", [1, 3])
def test_the_majority_decides(quorum: int) -> None:
    """Each weight moves by lr against the sum of the signs, if that is at least the quorum."""
    (update,) = run("majority", strategy_file=FILE, quorum=quorum, num_workers=3, steps=1, lr=0.25).updates
    votes = np.sum([done.value for done in update.dones], axis=0)
    assert set(abs(votes)) <= {0, 1, 2, 3}
    needed = update.dones[0].origin.vector - 0.25 * np.where(abs(votes) >= quorum, np.sign(votes), 0)
    np.testing.assert_allclose(update.weights.vector, needed, rtol=1e-6)
