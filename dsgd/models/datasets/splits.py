"""What is trained on, what is kept for the test, and their digests and statistics for the record."""

from __future__ import annotations

import hashlib
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dsgd.core.problem import labels, length, part
from dsgd.models.datasets.mapped import blocks, is_sampled
from dsgd.models.datasets.token_files import GPT2, Tokens, Windows, tokens
from dsgd.models.datasets.user_files import DataError, Part, inside, local, part_of


def texts(path: str, vocabulary: int = GPT2) -> Split[Tokens]:
    """Return a text, or a file of token ids, or a folder of such, in a part to train on and one to test.

    Files in a folder are parts by their names, like train.bin and val.bin. A file that is alone is split: its
    end is the test. path, vocabulary: see `tokens`. Raises DataError.
    """
    if not local(path).is_dir():
        return split_text(tokens(path, vocabulary))
    parts: dict[Part, str] = {}
    for file in inside(path):
        if file.endswith((".txt", ".bin")):
            part = part_of(file.rpartition("/")[2])
            if part in parts:
                raise DataError(f"{path}: has two files to {_USE[part]}, {parts[part]} and {file}; leave one")
            parts[part] = file
    if not parts:
        raise DataError(f"{path}: holds no .txt or .bin file")
    train, test = parts.get("train"), parts.get("test") or parts.get("validation")
    if train is None or test is None:
        return split_text(tokens(next(iter(parts.values())), vocabulary))
    if train[-4:] != test[-4:]:
        raise DataError(f"{path}: {train} and {test} differ in kind; give both as text or both as ids")
    return Split(tokens(train, vocabulary), tokens(test, vocabulary))


_USE = {"train": "train on", "test": "test", "validation": "validate"}


def about(data: Any) -> dict[str, Any]:
    """Return what can be said of data, in any form that a `Problem` takes, as JSON has it.

    `samples`; the `context` of windows; `arrays`, of which they are made: shape, dtype, min, max and mean;
    `sha256`, the digest of the arrays' bytes, one after the other; with labels below `samples` `classes`, how
    many are of each. `sampled`: of an array above 1 GiB, digest and statistics are of 1 GiB that is spread
    evenly over it. A dataset whose items are computed has `samples` alone.

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
    if (y := labels(data)) is not None and 0 <= y.min() <= y.max() < len(y):
        found["classes"] = np.bincount(y).tolist()
    return found


def _statistics(array: Any, digest: Any) -> dict[str, Any]:
    """Return an array's shape, type and statistics; add its bytes to the digest."""
    least, most, total, count = [], [], 0.0, 0
    if array.dtype.kind in "USO":  # text
        digest.update("\0".join(map(str, array.ravel())).encode())
        return {"shape": list(array.shape), "dtype": str(array.dtype)}
    for block in blocks(array):
        digest.update(np.ascontiguousarray(block))
        least.append(block.min())
        most.append(block.max())
        total += float(block.sum(dtype=np.float64))
        count += block.size
    found = {"min": np.min(least).item(), "max": np.max(most).item(), "mean": total / count}
    return {"shape": list(array.shape), "dtype": str(array.dtype), **found}


T = TypeVar("T")
Samples = tuple[Any, ...]
"""Arrays with a row for each sample, in memory or in a file, like (x, y)."""

_TEST = 0.1
_ORDER = 20201  # one test part for all seeds: runs are compared on it


class Split(NamedTuple, Generic[T]):
    """Data to train on, and others of the same form to test."""

    train: T
    test: T


def split_text(whole: Tokens) -> Split[Tokens]:
    """Hold out the last tenth of a text; a character of UTF-8 stays whole."""
    cut = len(whole) - round(_TEST * len(whole))
    while whole.are_bytes and 0 < cut < len(whole) and whole.ids[cut] & 0xC0 == 0x80:
        cut -= 1
    return Split(whole.part(slice(None, cut)), whole.part(slice(cut, None)))


def split_samples(whole: Samples) -> Split[Samples]:
    """Hold out a tenth of the samples, drawn by a permutation that no seed changes."""
    order = np.random.Generator(np.random.PCG64(_ORDER)).permutation(len(whole[0]))
    cut = len(order) - round(_TEST * len(order))
    return Split(*(tuple(part(array, rows) for array in whole) for rows in (order[:cut], order[cut:])))
