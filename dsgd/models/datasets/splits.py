"""What is trained on, and what is kept for the test."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from dsgd.core.problem import part
from dsgd.models.datasets.token_files import Tokens

T = TypeVar("T")
Samples = tuple[Any, ...]
"""Arrays with a row for each sample, in memory or in a file, like (x, y)."""

_TEST = 0.1
_ORDER = 20201  # one test part for all seeds: runs are compared on it


class Split(NamedTuple, Generic[T]):
    """Data to train on, and others of the same form to test."""

    train: T
    test: T


def split_text(whole: Tokens) -> Split[Tokens]:
    """Hold out the last tenth of a text; a character of UTF-8 stays whole."""
    cut = len(whole) - round(_TEST * len(whole))
    while whole.are_bytes and 0 < cut < len(whole) and whole.ids[cut] & 0xC0 == 0x80:
        cut -= 1
    return Split(whole.part(slice(None, cut)), whole.part(slice(cut, None)))


def split_samples(whole: Samples) -> Split[Samples]:
    """Hold out a tenth of the samples, drawn by a permutation that no seed changes."""
    order = np.random.Generator(np.random.PCG64(_ORDER)).permutation(len(whole[0]))
    cut = len(order) - round(_TEST * len(order))
    return Split(*(tuple(part(array, rows) for array in whole) for rows in (order[:cut], order[cut:])))
