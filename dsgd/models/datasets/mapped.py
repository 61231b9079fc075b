"""Arrays that stay in their file: rows are read when they are asked for, a whole array block by block. Only
the path is pickled.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from dsgd.core.shards import Indices
from dsgd.models.datasets.user_files import DataError, local

_BLOCK = 2**22  # bytes
_MOST = 256  # blocks


def blocks(array: Any) -> Iterator[Array]:
    """Yield the rows of an array (N, ...) in blocks of some 4 MiB; above 1 GiB, 256 of them, evenly spread.

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


Array = NDArray[Any]


class Mapped(np.memmap[Any, Any]):
    """An array in a file, memory-mapped and read-only.

    Its views that lie in one piece are mapped, too. What is pickled of it is where it lies: a worker opens
    the file at the same path, instead of getting gigabytes. Results of arithmetic are ordinary arrays.
    """

    _mmap: Any
    source: str
    """Its whole path, or its URL in S3."""
    _first: int
    """The address of the first element that was mapped."""

    def __new__(
        cls,
        source: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        offset: int = 0,
        order: Literal["C", "F"] = "C",
    ) -> Mapped:
        """Map part of a file, which the caller has found to be long enough.

        offset: bytes before the first element. Raises DataError if the file cannot be opened.
        """
        file, where = local(source), (offset, shape, order)
        try:
            try:
                self: Any = super().__new__(cls, file, dtype, "r", *where)
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
                self = super().__new__(cls, file, dtype, "c", *where)  # as file systems in user space can
                self.flags.writeable = False
        except OSError as error:
            raise DataError(f"{source}: cannot be read ({error.strerror})") from None
        self.source = source if source.startswith("s3://") else str(local(source))
        self._first = self.ctypes.data
        mapped: Mapped = self
        return mapped

    def __array_finalize__(self, obj: Any) -> None:
        super().__array_finalize__(obj)
        self.source, self._first = getattr(obj, "source", ""), getattr(obj, "_first", 0)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        result = np.asarray(array)
        return result[()] if return_scalar else result

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        in_memory = isinstance(found, Mapped) and found._mmap is None
        return found.view(np.ndarray) if in_memory else found

    def part(self, rows: Indices) -> Rows:
        """Return some rows, not read yet."""
        return Rows(self, rows)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if self._mmap is None or not (self.flags.c_contiguous or self.flags.f_contiguous):
            return np.array(self).__reduce_ex__(protocol)
        offset = self.offset + self.ctypes.data - self._first
        order = "C" if self.flags.c_contiguous else "F"
        size = local(self.source).stat().st_size
        return _opened, (size, self.source, self.dtype, self.shape, offset, order)


def _opened(size: int, source: str, *where: Any) -> Mapped:
    """Return a mapped array that was pickled elsewhere; raise DataError if its file is another here."""
    found = local(source).stat().st_size
    if found != size:
        raise DataError(f"{source}: has {found:,} bytes here and {size:,} where the run was started; copy it")
    return Mapped(source, *where)


class Rows:
    """Some rows of an array, in an order that may differ: `array[rows]`, read when it is asked for."""

    def __init__(self, array: Array, rows: Indices) -> None:
        self.array, self.rows = array, rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        rows = self.rows[index]
        return Rows(self.array, rows) if isinstance(index, slice) else self.array[rows]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.array[self.rows], dtype)

    def part(self, rows: Indices) -> Rows:
        """Return some of these rows, not read yet."""
        return Rows(self.array, self.rows[rows])
