"""Byte-pair encoding, learned from the text itself (Sennrich et al. 2016, arXiv 1508.07909).

Tables of others would have to be downloaded. It is on bytes, as GPT-2's, so every text has an encoding.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np

from dsgd.datasets.blocks import evenly_spread
from dsgd.datasets.fetched import cache_folder
from dsgd.datasets.local_files import DataError
from dsgd.datasets.mapped import Array
from dsgd.datasets.splits import Split
from dsgd.datasets.token_files import BYTES, Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PIECE = 2**16  # characters that are encoded together
_AT_ONCE = 64  # pieces
_LEARNED_FROM = 256  # pieces


def byte_pairs(text: Split[Tokens], vocabulary: int) -> Split[Tokens]:
    """Return a text of bytes as byte pairs, learned from the part to train on; ids (N,) uint16.

    It is a function of the text, the vocabulary (257 to 65,536) and the version of `tokenizers`. It takes
    some 10 s for 5 MB, so it is kept, in $XDG_CACHE_HOME/dsgd, by default ~/.cache/dsgd. The ids are in
    memory. Pairs of a longer text are learned from 16 MiB of it, evenly spread; of a short one there may be
    fewer than asked for. Raises DataError, also for text that is not UTF-8.
    """
    if not BYTES < vocabulary <= 2**16:
        raise DataError(f"byte pairs: a vocabulary of {vocabulary} does not lie in [257, 65536]")
    if not all(part.are_bytes for part in text):
        raise DataError("byte pairs: need text as bytes; it is of token ids")
    try:
        import tokenizers
    except ModuleNotFoundError:
        raise DataError(
            "byte pairs: the package tokenizers is not installed; uv sync --extra tokenizers"
        ) from None
    key = hashlib.sha256(f"{tokenizers.__version__} {vocabulary} {len(text.train)} ".encode())
    for part in text:
        key.update(part.ids.tobytes())
    kept = cache_folder("byte-pairs") / f"{key.hexdigest()}.npz"
    if not kept.exists():
        tokenizer = _learned(text.train, vocabulary)
        ids = {name: _encoded(part, tokenizer) for name, part in text._asdict().items()}
        partial = kept.with_suffix(f".{os.getpid()}.npz")
        np.savez(partial, allow_pickle=False, tokenizer=np.array(tokenizer.to_str()), **ids)
        partial.replace(kept)
    with np.load(kept) as found:
        json = str(found["tokenizer"])
        size = tokenizers.Tokenizer.from_str(json).get_vocab_size()
        return Split(
            *(
                Tokens(ids=ids, vocabulary=size, bytes_per_token=len(part) / len(ids), tokenizer=json)
                for part, ids in ((text.train, found["train"]), (text.test, found["test"]))
            )
        )


def _learned(text: Tokens, vocabulary: int) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    pieces = _pieces(text)
    tokenizer.train_from_iterator((pieces[k] for k in evenly_spread(len(pieces), _LEARNED_FROM)), trainer)
    return tokenizer


def _encoded(text: Tokens, tokenizer: Tokenizer) -> Array:
    pieces, ids = _pieces(text), list[Array]()
    for start in range(0, len(pieces), _AT_ONCE):
        found = tokenizer.encode_batch_fast(pieces[start : start + _AT_ONCE])
        ids += [np.array(piece.ids, np.uint16) for piece in found]
    return np.concatenate(ids)


def _pieces(text: Tokens) -> list[str]:
    """Return a text in pieces, which end with a line where there is one."""
    try:
        content = text.ids.tobytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"byte pairs: the text is not UTF-8 ({error.reason} at byte {error.start})") from None
    pieces, start = [], 0
    while start < len(content):
        end = content.rfind("\n", start, start + _PIECE) + 1 or start + _PIECE
        pieces.append(content[start:end])
        start = end
    return pieces
