"""The idx format of MNIST and its relatives (LeCun et al., yann.lecun.com/exdb/mnist).

Two zero bytes, the code of the type, the number of dimensions, each of them as a big-endian uint32, the data.
"""

from __future__ import annotations

import gzip
import math
import zlib

import numpy as np

from dsgd.models.datasets.local_files import DataError, local, reading
from dsgd.models.datasets.mapped import Array, Mapped

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str) -> Array:
    """Return the array of an idx file: mapped; in memory if it is compressed, or of numbers of several bytes,
    which are big-endian there.

    Raises DataError for a file that is none, or is cut off.
    """
    compressed = path.endswith(".gz")
    with (
        reading(path, EOFError, zlib.error, ValueError),
        (gzip.open if compressed else open)(local(path), "rb") as file,
    ):
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES:
            raise DataError(f"{path}: is no idx file; it begins with {start.hex(' ')}")
        dtype = np.dtype(_TYPES[start[2]])
        shape = tuple(np.frombuffer(file.read(4 * start[3]), ">u4").tolist())
        offset, asked = 4 + 4 * start[3], math.prod(shape) * dtype.itemsize
        mapped = not compressed and dtype.itemsize == 1 and asked > 0
        content = b"" if mapped else file.read()
        found = local(path).stat().st_size - offset if mapped else len(content)
    if found != asked:
        raise DataError(
            f"{path}: holds {found:,} bytes of data, its header asks for {asked:,}; copy it again"
        )
    if mapped:
        return Mapped(path, dtype, shape, offset)
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
