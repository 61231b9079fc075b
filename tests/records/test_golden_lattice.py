"""No change moves what runs leave by accident: records, checkpoints and replays are kept.

golden_left.py says how, and when the file is rewritten.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_lattice import ROWS, Witness, attempted, command, made
from golden_left import digest, moved, read


@pytest.mark.parametrize("row", ROWS)
def test_a_run_leaves_the_record_it_always_left(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files, what its watchers saw, how it ended, its replay: bit for bit where no sum depends on the
    processor.
    """
    monkeypatch.chdir(tmp_path)
    assert not moved(made(command(row)), read()[row])


def test_the_file_holds_the_rows_that_are_made() -> None:
    """A row that was renamed or removed leaves nothing in the file."""
    assert sorted(row for row in read() if "--" in row) == sorted(ROWS)


SYNCHRONOUS = {"ssgd", "localsgd", "diloco", "streaming"}
# What is about a record, and what takes as long as it says there.
NOT_ON_RAY = ("|", "--faults", "bytes-per-s", "--checkpoint-every", "--on-divergence", "--lr 1e", "--lr 32")
ON_RAY = [
    row for row in ROWS if row.split()[1] in SYNCHRONOUS and not any(option in row for option in NOT_ON_RAY)
]


@pytest.mark.ray
@pytest.mark.thorough
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("row", ON_RAY)
def test_real_workers_make_the_simulated_weights(row: str) -> None:
    """Where all workers wait for each other, weights do not depend on the engine, bit for bit."""
    found = []
    for how in ("", "--engine ray --compute-time none --slowdown ''"):
        ended = attempted(f"{command(row)} {how}", Witness(""), None, has_record=False)
        found.append((digest(ended.weights.vector.tobytes()), ended.evaluations[-1].found.loss))
    assert found[0] == found[1]
