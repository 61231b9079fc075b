"""No change moves the weights by accident: those of every mode and variant are kept, as hashes.

The last bits depend on the kind of processor, so golden/ has a file for each kind; the losses of another
kind hold too. `DSGD_REWRITE_GOLDEN=1 python -m pytest tests/test_golden.py` rewrites the file of this
machine's kind, or begins it: for a new kind, and for a change that is meant to move results, in a separate
commit that says why and removes the files of other kinds.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from golden_runs import VARIANTS, Golden, made_on, real, simulated

REWRITE = bool(os.environ.get("DSGD_REWRITE_GOLDEN"))
FOLDER = Path(__file__).parent / "golden"
HERE = made_on()
FILE = FOLDER / f"weights-{HERE['processor'].lower()}-{HERE['features'][:8]}.json"


def read(file: Path) -> dict[str, Any]:
    there: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"made_on": HERE, "runs": {}}
    return there


def kept() -> dict[str, Any]:
    """Return what is kept of each run, by its name: on this kind of processor if possible."""
    runs: dict[str, Any] = {}
    for file in (*sorted(FOLDER.glob("weights-*.json")), FILE):
        runs |= read(file)["runs"]
    return runs


def modes_kept() -> set[str]:
    return {run.removeprefix("ray | ").partition(" | ")[0] for run in kept()}


def hold(found: dict[str, Golden]) -> None:
    """Compare with the files: hashes where they were made on a machine like this, else losses."""
    here, before = read(FILE), kept()
    if REWRITE:
        runs = here["runs"] | {name: list(one) for name, one in found.items()}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs))
        FILE.write_text(f'{{"made_on": {json.dumps(HERE)}, "runs": {{\n{lines}\n}}}}\n')
        return
    moved = []
    for name, one in found.items():
        weights, events, loss = before[name]
        alike = name in here["runs"] and here["made_on"] == HERE
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
