"""No change moves the weights by accident: what every mode and variant leaves is kept.

golden_left.py says how, and when the file is rewritten.
"""

from __future__ import annotations

import pytest
from golden_left import moved, read
from golden_variants import RUNS, VARIANTS, made

KEPT = {run: kept for run, kept in read().items() if "--" not in run}


@pytest.mark.parametrize("mode", sorted(VARIANTS))
def test_the_simulator_makes_the_weights_it_always_made(mode: str) -> None:
    """Every variant of every mode ends with the weights in the file, after the same events."""
    found = {run: made(run) for run in RUNS if run.partition(" | ")[0] == mode}
    if not found.keys() & KEPT.keys():
        pytest.skip(f"{mode} is new: `make golden REWRITE=1` keeps its weights")
    changed = {run: moved(one, KEPT[run]) for run, one in found.items()}
    assert not any(changed.values()), {run: what for run, what in changed.items() if what}


def test_the_file_holds_no_run_that_is_not_made() -> None:
    """A run that was renamed or removed leaves nothing in the file."""
    assert KEPT.keys() <= RUNS.keys()
