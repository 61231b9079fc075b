"""Files of hashes in golden/, one for each kind of processor, on which the last bits depend.

What was kept on this kind is compared bit for bit, what was kept on another by its losses.
`DSGD_REWRITE_GOLDEN=1 python -m pytest tests/strategies/test_golden.py
tests/records/test_golden_lattice.py` rewrites the files of this kind, or begins them: for a new kind at a
commit whose losses hold, and for a change that is meant to move results, in a separate commit that says why
and removes the files of other kinds, or makes null in them what it moves.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

REWRITE = bool(os.environ.get("DSGD_REWRITE_GOLDEN"))
FOLDER = Path(__file__).parent / "golden"


def made_on() -> dict[str, str]:
    """Return all that the bits of a result depend on: processor features and versions."""
    supported = importlib.import_module("numpy._core._multiarray_umath").__cpu_features__
    features = " ".join(sorted(name for name, there in supported.items() if there))
    return {
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "features": hashlib.sha256(features.encode()).hexdigest()[:16],
        "torch": torch.__version__.partition("+")[0],
        "numpy": np.__version__,
    }


class GoldenFiles:
    """The files of one sort; what is kept of a run is a JSON value, by the run's name."""

    def __init__(self, sort: str) -> None:
        self._made_on = made_on()
        kind = f"{self._made_on['processor'].lower()}-{self._made_on['features'][:8]}"
        self._file = FOLDER / f"{sort}-{kind}.json"
        here = self._read(self._file)
        others = [self._read(file)["runs"] for file in sorted(FOLDER.glob(f"{sort}-*.json"))]
        self.here: Mapping[str, Any] = here["runs"] if here["made_on"] == self._made_on else {}
        """Made on a machine like this."""
        self.runs: Mapping[str, Any] = {
            name: run for runs in (*others, here["runs"]) for name, run in runs.items()
        }
        """Of this kind if possible, else of another."""

    def _read(self, file: Path) -> Any:
        return json.loads(file.read_text()) if file.exists() else {"made_on": self._made_on, "runs": {}}

    def rewrite(self, found: Mapping[str, Any]) -> None:
        """Keep what was found on this kind of processor."""
        runs = {**self._read(self._file)["runs"], **found}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs))
        self._file.write_text(f'{{"made_on": {json.dumps(self._made_on)}, "runs": {{\n{lines}\n}}}}\n')
