"""A text as samples: windows of token ids, each with the ids that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsgd.models.datasets.local_files import DataError

Ids = NDArray[np.int64]


class Windows:
    """A map-style dataset of torch: sample i is (x, y), x = ids[i C : (i + 1) C], y the same one id later.

    C is the context. Windows do not overlap, so an epoch sees each token once as a target; what does not fill
    a last window is left out. Being samples like others, they are split among workers, reshuffled each epoch
    and taken up again by a resumed run. ids (N,): whole numbers, in memory or mapped; a window is read when
    it is asked for.

    >>> x, y = Windows(np.arange(10), 3)[1]
    >>> x, y
    (array([3, 4, 5]), array([4, 5, 6]))
    """

    def __init__(self, ids: NDArray[Any], context: int) -> None:
        """Raise DataError if the ids do not fill one window."""
        if len(ids) <= context:
            raise DataError(f"{len(ids)} tokens: a window of {context} needs one more than that; lower it")
        self.ids, self.context = ids, context

    def __len__(self) -> int:
        return (len(self.ids) - 1) // self.context

    def __getitem__(self, i: int) -> tuple[Ids, Ids]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.__getitems__([i])[0]

    def __getitems__(self, rows: list[int]) -> list[tuple[Ids, Ids]]:
        """Return several samples at once, as torch's loaders ask for them."""
        return list(zip(*self.mini_batch(rows), strict=True))

    def mini_batch(self, rows: Sequence[int] | Ids) -> tuple[Ids, Ids]:
        """Return several samples as x and y, both (B, C)."""
        starts = np.asarray(rows, np.int64)[:, None] * self.context
        windows = self.ids[starts + np.arange(self.context + 1)].astype(np.int64)
        return windows[:, :-1].copy(), windows[:, 1:].copy()
