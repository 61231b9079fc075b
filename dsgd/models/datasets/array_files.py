"""Labelled samples from files of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dsgd.models.datasets.idx_files import read_idx
from dsgd.models.datasets.local_files import DataError, inside, local
from dsgd.models.datasets.mapped import Array
from dsgd.models.datasets.npy_files import read_npy, read_npz
from dsgd.models.datasets.parquet_files import read_parquet
from dsgd.models.datasets.roles import Part, is_label, part_of
from dsgd.models.datasets.splits import Samples, Split, split_samples


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
