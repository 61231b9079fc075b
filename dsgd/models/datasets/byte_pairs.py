"""Tokens of several bytes: byte-pair encoding, learned from the training text itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsgd.models.datasets.mapped import evenly_spread
from dsgd.models.datasets.user_files import DataError, cache_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_AT_ONCE = 1 << 16  # bytes encoded in one piece, cut at the end of a line
_PIECES_AT_ONCE = 64
_LEARNED_FROM = 256  # pieces


class BytePairs:
    """Byte-pair encoding (Sennrich et al. 2016, arXiv 1508.07909) of a vocabulary that begins with all bytes.

    Text comes back from its tokens unchanged, so bits a byte compare with those of any other tokenizer. The
    pairs of a text above 16 MiB are learned from 16 MiB of it, evenly spread. What is learned and encoded is
    kept in $XDG_CACHE_HOME/dsgd, by default ~/.cache/dsgd, under the digest of the text.

    >>> pairs = BytePairs(b"the cat and the hat " * 50, 270)
    >>> ids = pairs.encode(b"the cat")
    >>> len(ids), pairs.text_of(ids.tolist())
    (2, 'the cat')
    """

    def __init__(self, text: bytes, vocabulary: int) -> None:
        """Learn from a text, in UTF-8. Raises DataError where the package is missing, or for other text."""
        try:
            from tokenizers import Tokenizer, __version__
        except ModuleNotFoundError:
            raise DataError("tokenizers: is not installed; run uv sync --extra tokenizers") from None
        learned = _kept(
            f"{__version__} {vocabulary}", text, lambda: np.frombuffer(_learned(text, vocabulary), np.uint8)
        )
        self._json = learned.tobytes().decode()
        self._tokenizer: Tokenizer = Tokenizer.from_str(self._json)
        written = self._tokenizer.get_vocab()
        self.lengths: NDArray[Any] = np.zeros(len(written), np.int64)
        """Bytes of each token (V,)."""
        for token, number in written.items():
            self.lengths[number] = len(token)  # the tokenizer writes each byte as one letter

    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the ids of a text (N,)."""
        return _kept(self._json, text, lambda: self._encoded(text))

    def _encoded(self, text: bytes) -> NDArray[Any]:
        pieces, kind = _pieces(text), np.uint16 if len(self.lengths) <= 1 << 16 else np.uint32
        ids = []
        for start in range(0, len(pieces), _PIECES_AT_ONCE):  # what the package returns takes much memory
            found = self._tokenizer.encode_batch_fast(pieces[start : start + _PIECES_AT_ONCE])
            ids += [np.array(one.ids, kind) for one in found]
        return np.concatenate(ids)

    def ids_of(self, text: str) -> list[int]:
        """Return the ids of a short text, like a prompt."""
        return list(self._tokenizer.encode(text).ids)

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text of ids; what is no whole letter at its ends becomes a mark."""
        return str(self._tokenizer.decode(list(ids)))


def _kept(how: str, text: bytes, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Return what `make` makes of a text, which takes seconds for each MB, made once for each user."""
    digest = hashlib.sha256(f"{len(how)} {how}".encode() + text).hexdigest()
    path = cache_folder("byte-pairs") / f"{digest}.npy"
    if not path.exists():
        partial = path.with_suffix(f".{os.getpid()}.npy")
        np.save(partial, make())
        partial.replace(path)
    kept: NDArray[Any] = np.load(path)
    return kept


def _learned(text: bytes, vocabulary: int) -> bytes:
    """Return the byte pairs of a text, as the JSON of `tokenizers`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pieces = _pieces(text)
    tokenizer.train_from_iterator((pieces[k] for k in evenly_spread(len(pieces), _LEARNED_FROM)), trainer)
    return bytes(tokenizer.to_str().encode())


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
