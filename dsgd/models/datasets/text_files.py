"""A text of a user, to train on and to test."""

from __future__ import annotations

from dsgd.models.datasets.local_files import DataError, inside, local
from dsgd.models.datasets.roles import Part, part_of
from dsgd.models.datasets.splits import Split, split_text
from dsgd.models.datasets.token_files import GPT2, Tokens, tokens


def texts(path: str, vocabulary: int = GPT2) -> Split[Tokens]:
    """Return a text, or a file of token ids, or a folder of such, in a part to train on and one to test.

    Files in a folder are parts by their names, like train.bin and val.bin. A file that is alone is split: its
    end is the test. path, vocabulary: see `tokens`. Raises DataError.
    """
    if not local(path).is_dir():
        return split_text(tokens(path, vocabulary))
    parts: dict[Part, str] = {}
    for file in inside(path):
        if file.endswith((".txt", ".bin")):
            part = part_of(file.rpartition("/")[2])
            if part in parts:
                raise DataError(f"{path}: has two files to {_USE[part]}, {parts[part]} and {file}; leave one")
            parts[part] = file
    if not parts:
        raise DataError(f"{path}: holds no .txt or .bin file")
    train, test = parts.get("train"), parts.get("test") or parts.get("validation")
    if train is None or test is None:
        return split_text(tokens(next(iter(parts.values())), vocabulary))
    if train[-4:] != test[-4:]:
        raise DataError(f"{path}: {train} and {test} differ in kind; give both as text or both as ids")
    return Split(tokens(train, vocabulary), tokens(test, vocabulary))


_USE = {"train": "train on", "test": "test", "validation": "validate"}
