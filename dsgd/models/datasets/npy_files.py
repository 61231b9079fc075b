"""The formats of numpy: an array in .npy, several by name in .npz (numpy.lib.format)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import IO
from zipfile import ZIP_STORED, BadZipFile, ZipFile
from zlib import error as ZlibError

import numpy as np

from dsgd.models.datasets.local_files import DataError, local, reading
from dsgd.models.datasets.mapped import Array, Mapped


def read_npy(path: str) -> Array:
    """Return the array of an .npy file, mapped. Raises DataError."""
    with reading(path, ValueError), local(path).open("rb") as file:
        return _mapped(path, file)


def read_npz(path: str) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of an .npz file with their names; those that are not compressed are mapped.

    Raises DataError.
    """
    with reading(path, BadZipFile, ZlibError, ValueError), ZipFile(local(path)) as archive:
        for entry in archive.infolist():
            if entry.compress_type == ZIP_STORED:
                with local(path).open("rb") as file:
                    file.seek(entry.header_offset)
                    _, name, extra = struct.unpack("<26sHH", file.read(30))
                    file.seek(name + extra, 1)
                    array = _mapped(path, file)
            else:
                with archive.open(entry) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
            yield entry.filename.removesuffix(".npy"), array


def _mapped(path: str, file: IO[bytes]) -> Array:
    """Return the array whose header is next in a file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    shape, transposed, dtype = read(file)
    if dtype.hasobject:
        raise DataError(f"{path}: holds Python objects; save an array of numbers")
    offset, asked = file.tell(), math.prod(shape) * dtype.itemsize
    if (found := local(path).stat().st_size - offset) < asked:
        raise DataError(
            f"{path}: holds {found:,} bytes of data, its header asks for {asked:,}; copy it again"
        )
    return Mapped(path, dtype, shape, offset, "F" if transposed else "C") if asked else np.empty(shape, dtype)
