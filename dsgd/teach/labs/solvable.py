"""Whether an exercise has an answer: for its lecturer, who has changed the options."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.teach.labs.lab_file import Exercise
from dsgd.teach.labs.lab_verdicts import exercise_verdicts

MOST_TRIED = 64


def solvable(exercise: Exercise) -> bool | None:
    """Return whether an allowed value satisfies all laws; None if there are too many to try all.

    An exercise with one option that is a whole number, of at most MOST_TRIED values, is tried; the middle
    first. Raises ValueError, in one line, for laws and options that do not go together.
    """
    (option, choice), *others = exercise.choose.items()
    if others or not choice.whole or choice.most - choice.least >= MOST_TRIED:
        return None
    return any(
        all(v.finding.holds for v in exercise_verdicts(exercise, {option: value}))
        for value in _spread(int(choice.least), int(choice.most))
    )


def _spread(low: int, high: int) -> Iterator[int]:
    """Yield all whole numbers from low to high, each half as far from those before it.

    >>> list(_spread(1, 7))
    [4, 2, 6, 1, 3, 5, 7]
    """
    intervals = [(low, high)]
    for first, last in intervals:
        if first <= last:
            middle = (first + last) // 2
            yield middle
            intervals += [(first, middle - 1), (middle + 1, last)]
