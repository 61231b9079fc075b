"""The idx format of MNIST and its relatives (LeCun et al., yann.lecun.com/exdb/mnist).

Two zero bytes, the code of the type, the number of dimensions, each of them as a big-endian uint32, the data.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from dsgd.datasets.local_files import DataError, local
from dsgd.datasets.mapped import Array, Mapped

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def is_idx(path: Path) -> bool:
    """Whether a file is named as these files are: train-images-idx3-ubyte.gz, digits.idx."""
    return "idx" in path.name


def read_idx(path: str) -> Array:
    """Return the array of an idx file, mapped; in memory if the file is compressed or has big-endian numbers.

    Raises DataError for a file that is none, or is cut off.
    """
    if path.endswith(".gz"):
        try:
            content = gzip.decompress(local(path).read_bytes())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: cannot be decompressed ({error})") from None
        size = len(content)
    else:
        with local(path).open("rb") as file:
            content = file.read(4 + 4 * 255)
        size = local(path).stat().st_size
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataError(f"{path}: is no idx file; it begins with {content[:4].hex(' ')}")
    kind, offset = np.dtype(_TYPES[content[2]]), 4 + 4 * content[3]
    shape = tuple(int(n) for n in np.frombuffer(content[:offset], ">u4", offset=4))
    expected = offset + math.prod(shape) * kind.itemsize
    if size != expected:
        raise DataError(f"{path}: has {size:,} bytes, its header asks for {expected:,}; copy it again")
    if not path.endswith(".gz") and kind.itemsize == 1 and size > offset:
        return Mapped(path, kind, shape, offset)
    if not path.endswith(".gz"):
        content = local(path).read_bytes()
    read = np.frombuffer(content, kind, offset=offset).reshape(shape)
    return read.astype(kind.newbyteorder("="), copy=False)


def labels_beside(images: str) -> str:
    """Return where the labels of a file of images lie, by its name."""
    folder, slash, name = images.rpartition("/")
    labels = name.replace("images", "labels").replace("idx3", "idx1")
    if labels == name:
        raise DataError(f"{images}: holds samples without labels; give the folder, or its ...images... file")
    return f"{folder}{slash}{labels}"
