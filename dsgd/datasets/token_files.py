"""Text as token ids: the bytes of a text, and the files of token ids that nanoGPT's tools write."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dsgd.datasets.local_files import DataError, local
from dsgd.datasets.mapped import Array, Mapped

BYTES = 256
_GPT2 = 50257
"""The vocabulary of nanoGPT's and modded-nanogpt's files, unless it is said."""
_MAGIC = 20240520
_HEADER_BYTES = 256 * 4


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A text as whole numbers."""

    ids: Array
    """(N,), each at least 0 and below the vocabulary; mapped where they are a file's."""
    vocabulary: int = BYTES
    """How many different ids there can be."""
    bytes_per_token: float | None = 1.0
    """Of the text that the ids stand for; None where that is not known."""

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, tokens: slice) -> Tokens:
        """Return some of the text."""
        return replace(self, ids=self.ids[tokens])


def tokens(path: str, vocabulary: int | None = None) -> Tokens:
    """Return a text (.txt: its bytes), or a file of uint16 token ids (.bin).

    A .bin file is nanoGPT's, ids alone, or modded-nanogpt's, with a header of 256 int32. It does not say
    which vocabulary its ids are from. vocabulary: None stands for GPT-2's 50,257. Raises DataError.
    """
    size = local(path).stat().st_size
    if path.endswith(".txt"):
        return Tokens(ids=Mapped(path, np.dtype(np.uint8), (size,)))
    if not path.endswith(".bin"):
        raise DataError(f"{path}: is no text; give a .txt file, or a .bin file of token ids")
    header = np.fromfile(local(path), "<i4", min(256, size // 4))
    offset = 0
    if len(header) == 256 and header[0] == _MAGIC:
        offset = _HEADER_BYTES
        if header[1] != 1 or size != offset + 2 * header[2]:
            raise DataError(
                f"{path}: has {size:,} bytes, its header asks for version 1 and {offset + 2 * header[2]:,}"
            )
    if size % 2:
        raise DataError(f"{path}: has {size:,} bytes, and an id has two; it may be cut off")
    ids = Mapped(path, np.dtype("<u2"), ((size - offset) // 2,), offset)
    vocabulary = vocabulary or _GPT2
    if (most := int(ids.max())) >= vocabulary:
        raise DataError(f"{path}: has id {most}, which is not below the vocabulary {vocabulary}")
    return Tokens(ids=ids, vocabulary=vocabulary, bytes_per_token=None)
