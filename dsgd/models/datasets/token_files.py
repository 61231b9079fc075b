"""Text as token ids: the bytes of a text, and the files of ids that nanoGPT and its relatives write. Samples
are windows of ids, each with the ids that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsgd.models.datasets.mapped import Array, Mapped, blocks
from dsgd.models.datasets.user_files import DataError, local, reading

Ids = NDArray[np.int64]


class Windows:
    """A map-style dataset of torch: sample i is (x, y), x = ids[i C : (i + 1) C], y the same one id later.

    C is the context. Windows do not overlap, so an epoch sees each token once as a target; what does not fill
    a last window is left out. Being samples like others, they are split among workers, reshuffled each epoch
    and taken up again by a resumed run. ids (N,): whole numbers, in memory or mapped; a window is read when
    it is asked for. rows: of the windows that are samples; None: all.

    >>> x, y = Windows(np.arange(10), 3)[1]
    >>> x, y
    (array([3, 4, 5]), array([4, 5, 6]))
    """

    def __init__(self, ids: NDArray[Any], context: int, rows: Ids | None = None) -> None:
        """Raise DataError if the ids do not fill one window."""
        if len(ids) <= context:
            raise DataError(f"{len(ids)} tokens: a window of {context} needs one more than that; lower it")
        self.ids, self.context, self.rows = ids, context, rows

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context if self.rows is None else len(self.rows)

    def __getitem__(self, i: int) -> tuple[Ids, Ids]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.__getitems__([i])[0]

    def __getitems__(self, rows: list[int]) -> list[tuple[Ids, Ids]]:
        """Return several samples at once, as torch's loaders ask for them."""
        return list(zip(*self.mini_batch(rows), strict=True))

    def mini_batch(self, rows: Sequence[int] | Ids) -> tuple[Ids, Ids]:
        """Return several samples as x and y, both (B, C)."""
        rows = np.asarray(rows, np.int64)
        starts = (rows if self.rows is None else self.rows[rows])[:, None] * self.context
        windows = self.ids[starts + np.arange(self.context + 1)].astype(np.int64)
        return windows[:, :-1].copy(), windows[:, 1:].copy()


BYTES = 256
GPT2 = 50257
_MAGIC, _VERSION = 20240520, 1  # of modded-nanogpt's and llm.c's files
_HEADER_BYTES = 256 * 4


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A text as whole numbers."""

    ids: Array
    """(N,), each at least 0 and below the vocabulary; mapped if they are a file's."""
    vocabulary: int = BYTES
    """How many different ids there may be."""
    bytes_per_token: float | None = 1.0
    """Bytes of the text, divided by N; None if the text is not known."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def are_bytes(self) -> bool:
        return self.vocabulary == BYTES and self.bytes_per_token == 1

    def part(self, tokens: slice) -> Tokens:
        """Return some of the text."""
        return replace(self, ids=self.ids[tokens])


def tokens(path: str, vocabulary: int = GPT2) -> Tokens:
    """Return a text (.txt), as its bytes, or a file of token ids (.bin), which are uint16.

    A .bin file is nanoGPT's, ids alone, or that of modded-nanogpt, with a header of 256 int32. It does not
    say of which vocabulary its ids are: vocabulary is that size, by default GPT-2's. path may be a URL in S3.
    Raises DataError, for ids that are not below the vocabulary too; of a file above a gigabyte, a sample is
    looked at.
    """
    size = local(path).stat().st_size
    if path.endswith(".txt"):
        return Tokens(ids=Mapped(path, np.dtype(np.uint8), (size,)))
    if not path.endswith(".bin"):
        raise DataError(f"{path}: is no text; give a .txt file, or a .bin file of token ids")
    with reading(path):
        header = np.fromfile(local(path), "<i4", 256)
    offset = 0
    if len(header) == 256 and header[0] == _MAGIC:
        offset = _HEADER_BYTES
        asked = offset + 2 * int(header[2])
        if header[1] != _VERSION or size != asked:
            form = f"version {header[1]} and {size:,} bytes"
            raise DataError(f"{path}: is of {form}; its header needs version {_VERSION} and {asked:,} bytes")
    if size <= offset:
        raise DataError(f"{path}: holds no ids")
    if size % 2:
        raise DataError(f"{path}: has {size:,} bytes, an odd number; ids have two each, so it is cut off")
    ids = Mapped(path, np.dtype("<u2"), ((size - offset) // 2,), offset)
    if (most := max(int(block.max()) for block in blocks(ids))) >= vocabulary:
        raise DataError(f"{path}: has id {most}, which is not below the vocabulary, {vocabulary}")
    return Tokens(ids=ids, vocabulary=vocabulary, bytes_per_token=None)
