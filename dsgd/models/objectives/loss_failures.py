"""What a user's loss, module or data raise, in one line: where, with which samples, and the remedy."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsgd.core.problem import ProblemError
from dsgd.core.shards import Indices
from dsgd.process.user_code import located, raised_by_user

_WHOLE = "(Byte|Long|Int|Short|Char|Bool)"
NOT_FLOAT32 = (
    rf"(same|mixed|weight) dtype|expected scalar type|Input type \(|for '{_WHOLE}'|[Gg]ot:? {_WHOLE}"
)
"""What torch says of data in another type than parameters."""
_REMEDIES = {
    "more than 1 value per channel": "; batch normalization needs two samples in each part of a mini-batch: "
    "raise --batch-size, or lower --accumulate",
    r"(to be|scalar type) Long": "; class labels are whole numbers: give y.long()",
    rf"({NOT_FLOAT32}).*\(with (\{{\w+: )?uint8": "; parameters are float32, and images of whole numbers are "
    "not: give x.float() / 255",
    r"no attribute '(module|_orig_mod)'": "; the module comes without its wrapper: use it as it is",
    NOT_FLOAT32: "; parameters are float32: give x.float()",
}
_MOST_PARTS = 6
"""Arrays of a mini-batch that are described."""


def is_of_users_code(error: BaseException) -> bool:
    """Whether an error is one of a user's code; an exit too, unless a signal has asked for it."""
    if isinstance(error, ProblemError | MemoryError | torch.OutOfMemoryError):
        return False
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return False
    return isinstance(error, Exception) or raised_by_user(error)


def failure_of(error: BaseException, function: Any, before: str, *, named: bool = False) -> ProblemError:
    """Return an error of a user's function, module or data as one line, after `before`.

    named: whether its file is.
    """
    code = getattr(function, "__code__", None)
    file = Path(code.co_filename) if code else Path()
    said, notes = located(error, file), getattr(error, "__notes__", ())
    given = f" ({'; '.join(notes)})" if notes else ""
    remedies = (remedy for words, remedy in _REMEDIES.items() if re.search(words, said + given))
    said = f"{file.name}, {said}" if named and said.startswith("line ") else said
    return ProblemError(before + said + next(remedies, "") + given)


@contextmanager
def failures_of(function: Any, before: str, *passed: type[Exception]) -> Iterator[None]:
    """Raise ProblemError in one line, after `before`, for an error of a user's function, module or data."""
    try:
        yield
    except BaseException as error:  # a user's code may call sys.exit()
        if isinstance(error, (KeyboardInterrupt, ProblemError, *passed)):
            raise
        raise failure_of(error, function, before) from error


def called(compute: Callable[..., Any], module: torch.nn.Module, batch: Sequence[Any]) -> Any:
    """Return what a user's loss or score returns; an error has a note of what it was given."""
    try:
        return compute(module, *batch)
    except BaseException as error:  # a user's code may call sys.exit()
        error.add_note(f"with {', '.join(map(described, batch[:_MOST_PARTS]))}")
        raise


def described(value: Any) -> str:
    """Return the type and shape of a part of a mini-batch.

    >>> described({"x": np.zeros((8, 4), np.float32), "name": ["a", "b"]})
    '{x: float32 [8, 4], name: list of 2}'
    """
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {described(value[key])}' for key in [*value][:_MOST_PARTS])}}}"
    length = f" of {len(value)}" if isinstance(value, list | tuple | str) else ""
    return f"{type(value).__name__}{length}"


def of_samples(rows: Indices, attempt: Callable[[Indices], Any], name: str = "sample") -> Any:
    """Return what `attempt` returns for the samples of these numbers; an error has a note of the sample."""
    try:
        return attempt(rows)
    except BaseException as error:
        note_sample(error, rows, attempt, lambda row: f"{name} {row}")
        raise


def note_sample(
    error: BaseException, rows: Indices, attempt: Callable[[Indices], object], name: Callable[[int], str]
) -> None:
    """Add to an error of a user's code a note of the sample that is to blame, if a single one is."""
    if is_of_users_code(error) and (row := _culprit(rows, error, attempt)) is not None:
        error.add_note(f"{name(row)} fails alone too")


def _culprit(rows: Indices, error: BaseException, attempt: Callable[[Indices], object]) -> int | None:
    """Return a sample that fails alone, as these did together; None if that is not due to single samples."""

    def fails(some: Indices) -> bool:
        try:
            attempt(some)
        except BaseException as own:
            if not is_of_users_code(own):
                raise
            return type(own) is type(error)
        return False

    left = rows
    while len(left) > 1:
        left = next((half for half in np.array_split(left, 2) if fails(half)), left[:0])
    some_are_well = not (fails(rows[:1]) and fails(rows[-1:]))
    return int(left[0]) if len(left) and some_are_well else None
