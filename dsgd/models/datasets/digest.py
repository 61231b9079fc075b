"""What data are, for the record of a run: their digest and statistics."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from dsgd.core.problem import labels, length
from dsgd.models.datasets.blocks import blocks, is_sampled
from dsgd.models.datasets.windows import Windows


def about(data: Any) -> dict[str, Any]:
    """Return what can be said of data, in any form that a `Problem` takes, as JSON has it.

    `samples`; the `context` of windows; `arrays`, of which they are made: shape, dtype, min, max and mean;
    `sha256`, the digest of the arrays' bytes, one after the other; with labels `classes`, how many samples
    are of each. `sampled`: of an array above 1 GiB, digest and statistics are of 1 GiB that is spread evenly
    over it. A dataset whose items are computed has `samples` alone.

    >>> found = about((np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 1])))
    >>> found["arrays"][0], found["classes"], found["sha256"][:8]
    ({'shape': [3, 2], 'dtype': 'uint8', 'min': 0, 'max': 5, 'mean': 2.5}, [1, 2], '67e0a809')
    """
    found: dict[str, Any] = {"samples": length(data)}
    arrays: Any = getattr(data, "tensors", data)
    if isinstance(data, Windows):
        found["context"], arrays = data.context, (data.ids,)
    if isinstance(arrays, tuple):
        arrays = tuple(array.numpy() if hasattr(array, "numpy") else array for array in arrays)
        digest = hashlib.sha256()
        found["arrays"] = [_statistics(array, digest) for array in arrays]
        found["sha256"], found["sampled"] = digest.hexdigest(), any(map(is_sampled, arrays))
    if (classes := labels(data)) is not None and classes.min() >= 0:
        found["classes"] = np.bincount(classes).tolist()
    return found


def _statistics(array: Any, digest: Any) -> dict[str, Any]:
    """Return an array's shape, type and statistics; add its bytes to the digest."""
    least, most, total, count = [], [], 0.0, 0
    for block in blocks(array):
        digest.update(np.ascontiguousarray(block))
        least.append(block.min())
        most.append(block.max())
        total += float(block.sum(dtype=np.float64))
        count += block.size
    found = {"min": np.min(least).item(), "max": np.max(most).item(), "mean": total / count}
    return {"shape": list(array.shape), "dtype": str(array.dtype), **found}
