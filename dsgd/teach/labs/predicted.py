"""Predictions, held to what is measured and to what theory says."""

from __future__ import annotations

import math

from dsgd.running.quick_run import QuickRun
from dsgd.teach.labs.lab_file import Lab, Prediction
from dsgd.teach.labs.lab_run import Trial
from dsgd.teach.labs.quantities import Value, shown
from dsgd.teach.labs.wording import Finding

_BY = (
    (0.075, "by less than a tenth"),
    (0.15, "by about a tenth"),
    (0.225, "by about a fifth"),
    (0.29, "by about a quarter"),
    (0.42, "by about a third"),
    (0.58, "by about a half"),
    (0.71, "by about two thirds"),
    (0.8, "by about three quarters"),
)


def values(lab: Lab) -> dict[str, Value]:
    """Run what the lab asks about, and return what each prediction is held to.

    Raises ValueError, in one line, for a prediction that no student can get right, and for a quantity that
    its run does not have.
    """
    runs: dict[str, QuickRun] = {}
    found = {}
    for name, prediction in lab.predictions.items():
        try:
            value = Trial(prediction.options, runs).value(prediction.quantity, prediction.of)
            _answerable(value, prediction.within)
        except ValueError as error:
            raise ValueError(f"predictions: {name}: {error}") from None
        found[name] = value
    return found


def _answerable(value: Value, within: float) -> None:
    """Raise ValueError unless theory's own value, which a student may derive, counts as right."""
    measured, theory = value
    if not math.isfinite(measured):
        raise ValueError(f"its run measures {measured}; change its options, so that there is a number")
    if theory is None or _near(theory, value, within):
        return
    needed = abs(theory - measured) / abs(measured) if measured else math.inf
    widen = f", or set within: to {math.ceil(100 * needed) / 100:g} or more" if needed < 1 else ""
    raise ValueError(
        f"cannot be answered: a student who derives theory's {theory:.4g} would fail, for this run measures "
        f"{measured:.4g} and an answer must be within {100 * within:.4g}% of both; raise steps, choose times "
        f"with a lighter tail{widen}"
    )


def judged(prediction: Prediction, said: float, value: Value) -> Finding:
    """Hold a prediction to what was found."""
    holds = _near(said, value, prediction.within)
    both = "the measured value" if value.theory is None else "both the measured value and theory's"
    needed = f"within {100 * prediction.within:.4g}% of {both}"
    if holds:
        return Finding(True, f"you said {said:g}, {needed}", shown(value))
    return Finding(False, f"you said {said:g}, {off_by(said, _goal(value))}; needed: {needed}", shown(value))


def _near(said: float, value: Value, within: float) -> bool:
    return all(abs(said - x) <= within * abs(x) for x in value.known)


def _goal(value: Value) -> float:
    return value.measured if value.theory is None else value.theory


def off_by(said: float, goal: float) -> str:
    """Return how far a wrong number is from the right one, without giving that away.

    >>> off_by(2.0, 2.72), off_by(7.0, 6.5), off_by(0.7, 70), off_by(5.5, 2.7), off_by(-1, 1), off_by(1, 0)
    ('too low by about a quarter', 'too high by about a tenth', 'too low by a factor of about 100', \
'too high by a factor of about 2', 'of the wrong sign', 'too high')
    """
    if said * goal < 0:
        return "of the wrong sign"
    low = (abs(said) < abs(goal)) if goal else said < 0
    what = f"too {'low' if low == (goal >= 0) else 'high'}"
    if not said or not goal:
        return what
    off = abs(said - goal) / abs(goal)
    for most, words in _BY:
        if off < most:
            return f"{what} {words}"
    factor = max(said / goal, goal / said)
    return f"{what} by a factor of about {float(f'{factor:.1g}'):,.0f}"
