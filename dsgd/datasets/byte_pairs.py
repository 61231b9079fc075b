"""Tokens of several bytes: byte-pair encoding, learned from the training text itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsgd.datasets.local_files import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_AT_ONCE = 1 << 16  # bytes encoded in one call, cut at the end of a line


class BytePairs:
    """Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909) of a vocabulary that begins with all bytes.

    Text comes back from its tokens unchanged, so bits a byte compare with those of any other tokenizer.

    >>> pairs = BytePairs(b"the cat and the hat " * 50, 270)
    >>> ids = pairs.encode(b"the cat")
    >>> len(ids), pairs.text_of(ids.tolist())
    (2, 'the cat')
    """

    def __init__(self, text: bytes, vocabulary: int) -> None:
        """Learn from a text, in UTF-8. Raises DataError where the package is missing, or for other text."""
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ModuleNotFoundError:
            raise DataError("tokenizers: is not installed; run uv sync --extra tokenizers") from None
        self._tokenizer: Tokenizer = Tokenizer(models.BPE())
        self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        self._tokenizer.train_from_iterator(_pieces(text), trainer)
        written = self._tokenizer.get_vocab()
        self.lengths: NDArray[Any] = np.zeros(len(written), np.int64)
        """Bytes of each token (V,)."""
        for token, number in written.items():
            self.lengths[number] = len(token)  # the tokenizer writes each byte as one letter

    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the ids of a text (N,)."""
        found = self._tokenizer.encode_batch(_pieces(text))
        kind = np.uint16 if len(self.lengths) <= 1 << 16 else np.uint32
        return np.concatenate([np.array(one.ids, kind) for one in found])

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of a short text, like a prompt."""
        return list(self._tokenizer.encode(text).ids)

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of ids; what is no whole letter at its ends becomes a mark."""
        return str(self._tokenizer.decode(list(ids)))


def _pieces(text: bytes) -> list[str]:
    """Return a text in pieces that end with lines: for encoding in parallel."""
    pieces, start = [], 0
    try:
        while start < len(text):
            end = text.find(b"\n", start + _AT_ONCE) + 1 or len(text)
            pieces.append(text[start:end].decode())
            start = end
    except UnicodeDecodeError as error:
        raise DataError(f"text: byte {start + error.start} is not UTF-8; train on its bytes") from None
    return pieces
