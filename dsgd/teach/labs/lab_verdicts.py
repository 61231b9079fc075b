"""Holds a student's answers to what a lab requires: one verdict for each question. For a lecturer who has
changed the options: whether the exercise has an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dsgd.teach.labs import goals, predicted, strategy_laws
from dsgd.teach.labs.answers import Answers
from dsgd.teach.labs.lab_file import Exercise, Lab, Prediction, StrategyTask
from dsgd.teach.labs.lab_run import Trial
from dsgd.teach.labs.quantities import Value
from dsgd.teach.labs.student_strategy import Work
from dsgd.teach.labs.wording import Finding, function

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


_OPEN = Finding(None, "not answered yet")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found of one prediction or law."""

    part: str
    """predictions, exercise or strategy."""
    name: str
    """Of the prediction, or of the law."""
    text: str
    finding: Finding
    said: float | None = None
    """The student's number, for a prediction."""
    cause: str = ""
    """The sentence of the failing law that this failure probably follows from."""

    @property
    def mark(self) -> str:
        holds = self.finding.holds
        return "open" if holds is None else "holds" if holds else "FAILS"


def verdicts(
    lab: Lab, answers: Answers, values: Mapping[str, Value], work: Work | None
) -> Iterator[Sequence[Verdict]]:
    """Yield the verdicts of each part that the lab has, as soon as they are found.

    values: what each prediction is held to. Raises ValueError, in one line, for laws and options that do not
    go together.
    """
    if lab.predictions:
        yield [_predicted(name, p, answers, values[name]) for name, p in lab.predictions.items()]
    if lab.exercise:
        yield exercise_verdicts(lab.exercise, answers.exercise)
    if lab.strategy:
        yield _strategy(lab.strategy, work)


def _predicted(name: str, prediction: Prediction, answers: Answers, value: Value) -> Verdict:
    said = answers.predictions.get(name)
    finding = _OPEN if said is None else predicted.judged(prediction, said, value)
    return Verdict(part="predictions", name=name, text=prediction.text, finding=finding, said=said)


def exercise_verdicts(exercise: Exercise, chosen: Mapping[str, float] | None) -> list[Verdict]:
    """Return the verdicts on the options of an exercise, if any were chosen."""
    trial = Trial({**exercise.options, **(chosen or {})})
    return [
        Verdict(
            part="exercise",
            name=law.name,
            text=law.text,
            finding=function(goals, law.name)(trial, **law.parameters) if chosen else _OPEN,
        )
        for law in exercise.laws
    ]


def _strategy(task: StrategyTask, work: Work | None) -> list[Verdict]:
    """Return the verdicts, failures first. That the weights are others than needed follows from them."""
    found = []
    for law in task.laws:
        holds = function(strategy_laws, law.name)
        of_all = holds in strategy_laws.OF_ALL_STRATEGIES
        finding = work.held(holds, of_all, law.parameters) if work else _OPEN
        found.append(Verdict(part="strategy", name=law.name, text=law.text, finding=finding))
    causes = [v for v in found if v.finding.holds is False and v.name != "equals"]
    follow = [v for v in found if v.finding.holds is False and v.name == "equals"]
    if causes:
        follow = [replace(v, cause=causes[0].text) for v in follow]
    rest = [*(v for v in found if v.finding.holds is None), *(v for v in found if v.finding.holds)]
    return [*causes, *follow, *rest]
