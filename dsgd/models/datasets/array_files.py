"""Labelled samples from files of numbers: numpy's .npy and .npz (numpy.lib.format), idx, tables in Parquet.

idx is the format of MNIST and its relatives (LeCun et al., yann.lecun.com/exdb/mnist): two zero bytes, the
code of the type, the number of dimensions, each of them as a big-endian uint32, the data. A Parquet file has
a column of labels, and one or more of features.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from tokenize import TokenError
from typing import IO
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np

from dsgd.models.datasets.mapped import Array, Mapped
from dsgd.models.datasets.splits import Samples, Split, split_samples
from dsgd.models.datasets.user_files import DataError, Part, inside, is_label, local, part_of, reading

# What numpy raises for a header that is none.
NOT_NPY = (ArithmeticError, EOFError, RecursionError, SyntaxError, TokenError, ValueError)


def read_npy(path: str) -> Array:
    """Return the array of an .npy file, mapped. Raises DataError."""
    with reading(path, *NOT_NPY), local(path).open("rb") as file:
        return _mapped(path, file)


def read_npz(path: str) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of an .npz file with their names; those that are not compressed are mapped.

    Raises DataError.
    """
    with reading(path, BadZipFile, zlib.error, *NOT_NPY), ZipFile(local(path)) as archive:
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
        raise DataError(f"{path}: holds {found:,} bytes, its header asks for {asked:,}; copy it again")
    return Mapped(path, dtype, shape, offset, "F" if transposed else "C") if asked else np.empty(shape, dtype)


_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str) -> Array:
    """Return the array of an idx file: mapped; in memory if it is compressed, or of numbers of several bytes,
    which are big-endian there.

    Raises DataError for a file that is none, or is cut off.
    """
    compressed = path.endswith(".gz")
    opened = gzip.open if compressed else open
    with reading(path, EOFError, zlib.error, ValueError), opened(local(path), "rb") as file:
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
        raise DataError(f"{path}: holds {found:,} bytes, its header asks for {asked:,}; copy it again")
    if mapped:
        return Mapped(path, dtype, shape, offset)
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_parquet(path: str) -> Iterator[tuple[str, Array]]:
    """Yield the features x and the labels y of a table, in memory.

    y: the column of that name (or label, target, class), else the last one. x (N, F) float32: the others; if
    that is one column of lists of equal lengths or of arrays, (N, ...) as it is. Raises DataError.
    """
    import polars
    from polars.exceptions import PolarsError

    with reading(path, PolarsError):
        table = polars.read_parquet(local(path), glob=False, hive_partitioning=False)
    if len(table.columns) < 2:
        raise DataError(f"{path}: has {len(table.columns)} column; a table needs features and a label")
    if empty := [column.name for column in table if column.null_count()]:
        raise DataError(f"{path}: column {empty[0]} has rows without a value")
    label = next((name for name in table.columns if is_label(name)), table.columns[-1])
    features = table.drop(label)
    (first, *more) = features
    if isinstance(first.dtype, polars.List) and not more:
        lengths = first.list.len().unique()
        if len(lengths) != 1:
            raise DataError(f"{path}: the lists of column {first.name} differ in length")
        first = first.list.to_array(lengths[0])
    if isinstance(first.dtype, polars.Array) and not more:
        x = first.to_numpy()
    else:
        for column in features:
            if not (column.dtype.is_numeric() or column.dtype == polars.Boolean):
                raise DataError(f"{path}: column {column.name} is of {column.dtype}; give numbers")
        x = features.to_numpy().astype(np.float32)
    yield "x", x
    yield "y", table[label].to_numpy()


def arrays(path: str) -> tuple[Array, ...]:
    """Return the samples of a file or folder, as (x, y): arrays with a row for each sample, labels last.

    Arrays stay in their file, mapped, except those of compressed files and tables, which are read. Of data in
    parts, it is the one to train on (see `labelled`).

    path, or the URL of an object in S3: .npy (one array), .npz (all of its arrays), .parquet (a table, see
    `read_parquet`), an idx file of images next to that of their labels, or a folder of such files. Raises
    DataError.
    """
    parts = _parts(path)
    return parts.get("train") or next(iter(parts.values()))


def labelled(path: str) -> Split[Samples]:
    """Return the labelled samples (x, y) of a file or folder, those to train on and those to test.

    Parts go by their names: `x_train` and `y_test` in an .npz file; train-images-idx3-ubyte and
    t10k-labels-idx1-ubyte, or train.parquet and test.parquet, in a folder. Without a part to test, the one to
    validate is taken, and without that a tenth of the samples, drawn. y (N,) int64, classes from 0 on.
    Raises DataError.
    """
    parts = {part: _with_classes(path, samples) for part, samples in _parts(path).items()}
    test = parts.get("test") or parts.get("validation")
    if "train" not in parts or test is None:
        return split_samples(next(iter(parts.values())))
    most, known = test[-1].max(), parts["train"][-1].max()
    if most > known:
        raise DataError(f"{path}: the test part has class {most}, those to train on end at {known}")
    return Split(parts["train"], test)


def _parts(path: str) -> dict[Part, tuple[Array, ...]]:
    """Return the arrays of each part, labels last."""
    found: dict[Part, tuple[dict[str, Array], dict[str, Array]]] = {}
    for file, name, array in _named(path):
        samples, labels = found.setdefault(part_of(f"{file} {name}"), ({}, {}))
        (labels if is_label(name) else samples)[f"{file} {name}" if name != file else name] = array
    if not found:
        raise DataError(f"{path}: holds no file of a known kind: .npy, .npz, .parquet, idx, or idx.gz")
    return {part: _matched(path, *arrays_of_part) for part, arrays_of_part in found.items()}


def _matched(path: str, samples: dict[str, Array], labels: dict[str, Array]) -> tuple[Array, ...]:
    """Return arrays that belong together; raise DataError if they do not."""
    if len(labels) > 1:
        raise DataError(f"{path}: has labels twice, in {' and '.join(labels)}; leave one")
    rows = {name: array.shape[0] if array.ndim else 0 for name, array in (samples | labels).items()}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name} {n:,}" for name, n in rows.items())
        raise DataError(f"{path}: the arrays differ in rows: {listed}; give each sample a row in all of them")
    if empty := [name for name, n in rows.items() if not n]:
        raise DataError(f"{path}: {empty[0]} holds no samples")
    for name, array in (samples | labels).items():
        if array.dtype.kind not in "biuf":
            raise DataError(f"{path}: {name} is of {array.dtype}; give numbers")
    return *samples.values(), *labels.values()


def _named(path: str) -> Iterator[tuple[str, str, Array]]:
    """Yield the arrays of a file or folder: its file's name, its name, the array."""
    where = local(path)
    if where.is_dir():
        for file in inside(path):
            if _is_known(file):
                yield from _in_file(file)
        return
    if not _is_known(path):
        raise DataError(f"{path}: is of no known kind: .npy, .npz, .parquet, idx, or idx.gz")
    yield from _in_file(path)
    if _is_idx(where.name):
        yield from _in_file(_labels_beside(path))


def _in_file(path: str) -> Iterator[tuple[str, str, Array]]:
    file = local(path).name
    if path.endswith((".npz", ".parquet")):
        for name, array in (read_npz if path.endswith(".npz") else read_parquet)(path):
            yield file, name, array
    else:
        yield file, file, (read_npy if path.endswith(".npy") else read_idx)(path)


def _is_known(path: str) -> bool:
    return path.endswith((".npy", ".npz", ".parquet")) or _is_idx(path.rpartition("/")[2])


def _is_idx(name: str) -> bool:
    """Whether a file is named as those of idx are, like train-images-idx3-ubyte.gz or digits.idx."""
    return "idx" in name


def _labels_beside(images: str) -> str:
    """Return where the labels of a file of images are, by its name."""
    folder, slash, name = images.rpartition("/")
    labels = name.replace("images", "labels").replace("idx3", "idx1")
    if labels == name:
        raise DataError(f"{images}: needs labels; give the folder, or a file with `images` in its name")
    return f"{folder}{slash}{labels}"


def _with_classes(path: str, samples: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return samples with their labels as classes (N,) int64; raise DataError if they are none."""
    if len(samples) < 2:
        raise DataError(f"{path}: has samples without labels; give them as y, or in a file named labels")
    *x, labels = samples
    y = np.asarray(labels)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise DataError(f"{path}: the labels have shape {labels.shape}; give a whole number for each sample")
    if len(wrong := np.flatnonzero(~((y >= 0) & (y == np.floor(y))))):
        raise DataError(f"{path}: label {y[wrong[0]]} of row {wrong[0]} is no class; give 0, 1, 2, …")
    return *x, y.astype(np.int64)
