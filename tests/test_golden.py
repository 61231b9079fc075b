"""No change moves the weights by accident: those of every mode and variant are kept, as hashes.

`DSGD_REWRITE_GOLDEN=1 python -m pytest tests/test_golden.py` rewrites golden/weights.json: only for a
change that is meant to move results, in a separate commit that says why.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from golden_runs import VARIANTS, Golden, made_on, real, simulated

FILE = Path(__file__).parent / "golden" / "weights.json"
REWRITE = bool(os.environ.get("DSGD_REWRITE_GOLDEN"))


def kept() -> dict[str, Any]:
    there: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"made_on": {}, "runs": {}}
    return there


def modes_kept() -> set[str]:
    return {run.removeprefix("ray | ").partition(" | ")[0] for run in kept()["runs"]}


def hold(found: dict[str, Golden]) -> None:
    """Compare with the file: hashes where it was made on a machine like this, else losses."""
    file = kept()
    if REWRITE:
        runs = file["runs"] | {name: list(one) for name, one in found.items()}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs))
        FILE.write_text(f'{{"made_on": {json.dumps(made_on())}, "runs": {{\n{lines}\n}}}}\n')
        return
    alike = file["made_on"] == made_on()
    moved = []
    for name, one in found.items():
        weights, events, loss = file["runs"][name]
        if alike and (one.weights, one.events) != (weights, events):
            moved.append(f"{name}: {'the order of events' if one.events != events else 'the weights'}")
        elif one.loss != pytest.approx(loss, rel=1e-4, abs=1e-4):
            moved.append(f"{name}: the loss is {one.loss}, was {loss}")
    assert not moved, "these runs have changed:\n" + "\n".join(moved)


@pytest.mark.parametrize("mode", sorted(VARIANTS))
def test_the_simulator_makes_the_weights_it_always_made(mode: str) -> None:
    """Every variant of every mode ends with the weights in the file, after the same events, bit for bit."""
    if not REWRITE and mode not in modes_kept():
        pytest.skip(f"{mode} is new: DSGD_REWRITE_GOLDEN=1 pytest tests/test_golden.py keeps its weights")
    hold(simulated(mode))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_ray_makes_the_weights_it_always_made() -> None:
    """Where workers wait for each other, real workers end with the weights in the file, bit for bit."""
    hold(real())


def test_the_file_holds_no_run_that_is_not_made() -> None:
    """A run that was renamed or removed leaves nothing in the file."""
    assert modes_kept() <= set(VARIANTS)
