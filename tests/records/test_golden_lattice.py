"""No change moves what runs leave by accident: records, checkpoints and replays are kept, as hashes.

golden_files.py says how, and when the files are rewritten.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_files import REWRITE, GoldenFiles
from golden_lattice import COMMON, ROWS, Left, Witness, attempted, digest, made

FILES = GoldenFiles("lattice")


@pytest.mark.parametrize("row", ROWS)
def test_a_run_leaves_the_record_it_always_left(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files, what its watchers saw, how it ended and its replay are those in the file, bit for bit."""
    monkeypatch.chdir(tmp_path)
    left = made(row)
    if REWRITE:
        FILES.rewrite({row: left})
        return
    kept = Left(*FILES.runs[row])
    assert left.ended == kept.ended
    if row in FILES.here:
        files = left.hashes.keys() | kept.hashes.keys()
        # null: meant to move by a commit that was made on another kind of processor
        moved = [file for file in files if kept.hashes.get(file, "") not in (None, left.hashes.get(file))]
        assert not moved, f"these have changed: {', '.join(sorted(moved))}"
    assert left.loss == (kept.loss and pytest.approx(kept.loss, rel=1e-3, abs=1e-3))


def test_the_file_holds_the_rows_that_are_made() -> None:
    """A row that was renamed or removed leaves nothing in the file."""
    assert sorted(FILES.runs) == sorted(ROWS)


SYNCHRONOUS = {"ssgd", "localsgd", "diloco", "streaming"}
# What is about a record, and what takes as long as it says there.
NOT_ON_RAY = ("|", "--faults", "bytes-per-s", "--checkpoint-every", "--on-divergence", "--lr 1e", "--lr 30")
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
        ended = attempted(f"{COMMON} {row} {how}", Witness(""), None, has_record=False)
        found.append((digest(ended.weights.vector.tobytes()), ended.evaluations[-1].found.loss))
    assert found[0] == found[1]
