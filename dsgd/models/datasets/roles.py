"""What an array or file is for, by its name: to train on or to test; samples or their labels."""

from __future__ import annotations

import re
from typing import Literal

Part = Literal["train", "validation", "test"]

_LABEL = re.compile(r"(^|[^a-z])(y|labels?|targets?|class(es)?)([^a-z]|$)", re.IGNORECASE)
_TEST = re.compile(r"(^|[^a-z])(test|t10k)", re.IGNORECASE)
_VALIDATION = re.compile(r"(^|[^a-z])val(id|idation)?([^a-z]|$)", re.IGNORECASE)


def is_label(name: str) -> bool:
    """Whether an array or column of this name holds labels.

    >>> [name for name in ("y_train", "train-labels-idx1", "image", "class", "y2k") if is_label(name)]
    ['y_train', 'train-labels-idx1', 'class', 'y2k']
    """
    return bool(_LABEL.search(name))


def part_of(name: str) -> Part:
    """Return which part of the data an array or file of this name is.

    >>> [part_of(name) for name in ("x_test", "t10k-images", "val.bin", "latest_values.npy")]
    ['test', 'test', 'validation', 'train']
    """
    if _TEST.search(name):
        return "test"
    return "validation" if _VALIDATION.search(name) else "train"
