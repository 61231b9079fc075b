"""No change moves the weights by accident: those of every mode and variant are kept, as hashes.

golden_files.py says how, and when the files are rewritten.
"""

from __future__ import annotations

import pytest
from golden_files import REWRITE, GoldenFiles
from golden_runs import VARIANTS, Golden, simulated

FILES = GoldenFiles("weights")


def modes_kept() -> set[str]:
    return {run.partition(" | ")[0] for run in FILES.runs}


def hold(found: dict[str, Golden]) -> None:
    """Compare with the files: hashes where they were made on a machine like this, else losses."""
    if REWRITE:
        FILES.rewrite(found)
        return
    moved = []
    for name, one in found.items():
        kept = Golden(*FILES.runs[name])
        if name in FILES.here and (one.weights, one.events) != (kept.weights, kept.events):
            moved.append(f"{name}: {'the order of events' if one.events != kept.events else 'the weights'}")
        elif one.loss != pytest.approx(kept.loss, rel=1e-4, abs=1e-4):
            moved.append(f"{name}: the loss is {one.loss}, was {kept.loss}")
    assert not moved, "these runs have changed:\n" + "\n".join(moved)


@pytest.mark.parametrize("mode", sorted(VARIANTS))
def test_the_simulator_makes_the_weights_it_always_made(mode: str) -> None:
    """Every variant of every mode ends with the weights in the file, after the same events, bit for bit."""
    if not REWRITE and mode not in modes_kept():
        pytest.skip(
            f"{mode} is new: DSGD_REWRITE_GOLDEN=1 pytest tests/strategies/test_golden.py keeps its weights"
        )
    hold(simulated(mode))


def test_the_file_holds_no_run_that_is_not_made() -> None:
    """A run that was renamed or removed leaves nothing in the file."""
    assert modes_kept() <= set(VARIANTS)
