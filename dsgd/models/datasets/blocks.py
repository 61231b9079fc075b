"""Reads an array piece by piece, however large it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dsgd.models.datasets.mapped import Array

_BLOCK = 2**22  # bytes
_MOST = 256  # blocks


def blocks(array: Any) -> Iterator[Array]:
    """Yield the rows of an array (N, ...) in blocks of some 4 MiB; of more than 1 GiB, 256 blocks evenly
    spread.

    So a look at a file of any size takes a second or two, and little memory.
    """
    rows = _rows(array)
    for k in evenly_spread(_number(array), _MOST):
        yield np.asarray(array[k * rows : (k + 1) * rows])


def is_sampled(array: Any) -> bool:
    """Whether `blocks` leaves some of the array out."""
    return _number(array) > _MOST


def evenly_spread(n: int, most: int) -> Sequence[int]:
    """Return all of 0, …, n - 1, or `most` of them, the first and the last among them.

    >>> evenly_spread(5, 9), evenly_spread(10, 4)
    (range(0, 5), [0, 3, 6, 9])
    """
    return range(n) if n <= most else [k * (n - 1) // (most - 1) for k in range(most)]


def _rows(array: Any) -> int:
    """Return the rows of a block."""
    row_bytes: int = math.prod(array.shape[1:]) * array.dtype.itemsize
    return max(1, _BLOCK // max(1, row_bytes))


def _number(array: Any) -> int:
    return math.ceil(len(array) / _rows(array))
