"""What is trained on, and what is kept for the test."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

import numpy as np

from dsgd.datasets.mapped import Array, Rows
from dsgd.datasets.token_files import Tokens
from dsgd.work.problem import part

T = TypeVar("T")

_ORDER = 20201  # one test part for all seeds: runs are compared on it


class Split(NamedTuple, Generic[T]):
    """Data to train on and held-out ones of the same form."""

    train: T
    test: T


def split_text(whole: Tokens, test: float = 0.1) -> Split[Tokens]:
    """Hold out the end of a text: the share `test` of its tokens."""
    cut = len(whole.ids) - round(test * len(whole.ids))
    return Split(whole.part(slice(None, cut)), whole.part(slice(cut, None)))


def split_samples(whole: tuple[Array, ...], test: float = 0.1) -> Split[tuple[Array | Rows, ...]]:
    """Hold out the share `test` of labelled samples, drawn by a permutation that no seed changes."""
    order = np.random.Generator(np.random.PCG64(_ORDER)).permutation(len(whole[0]))
    cut = len(order) - round(test * len(order))
    return Split(*(tuple(part(array, rows) for array in whole) for rows in (order[:cut], order[cut:])))
