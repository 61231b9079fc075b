"""Arrays from files."""

from __future__ import annotations

from dsgd.datasets.idx_files import is_idx, labels_beside, read_idx
from dsgd.datasets.local_files import DataError, local
from dsgd.datasets.mapped import Array


def arrays(path: str) -> tuple[Array, ...]:
    """Return the labelled samples of a file (x, y). Raises DataError."""
    if is_idx(local(path)):
        return read_idx(path), read_idx(labels_beside(path))
    raise DataError(f"{path}: is of no known format")
