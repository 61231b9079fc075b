"""The command line of the labs: `main.py --check LAB ANSWERS`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsgd.labs import goals, quantities, strategy_laws
from dsgd.labs.lab_file import (
    Answers,
    Exercise,
    Finding,
    Lab,
    Prediction,
    StrategyTask,
    function,
    read_answers,
    read_lab,
)
from dsgd.labs.quantities import Value, shown
from dsgd.labs.student import Work
from dsgd.labs.trial import Trial
from dsgd.records.outcomes import EXIT_FAILED
from dsgd.terminal.cli import UsageError
from dsgd.terminal.interruptions import Interruptions
from dsgd.terminal.usage import Parser


def check(arguments: Sequence[str], _: Interruptions) -> int:
    """Check the answers that the command line names, print what holds, and return the exit code.

    Raises UsageError in one line for anything that is wrong with the command or the files.
    """
    parser = Parser(
        "--check",
        "Check the answers to a lab of docs/labs: predictions, options and strategies are held "
        "to simulated runs and to theory. Exit codes: 0 all holds, 1 something does not, 2 the answers "
        "cannot be read.",
    )
    parser.add_argument(
        "--check",
        nargs=2,
        metavar=("LAB", "ANSWERS"),
        required=True,
        type=Path,
        help="a lab's file, like docs/labs/01.yaml, and your answers, written as on the lab's page",
    )
    given = parser.parse(arguments)
    lab = read_lab(given.check[0])
    answers = read_answers(given.check[1], lab)
    work = None
    if lab.strategy and answers.strategy:  # its errors come before anything is printed
        work = Work(answers.strategy, lab.strategy.options, lab.strategy.scenarios)
    print(lab.title)
    count: Counter[str] = Counter()
    try:
        for line in _lines(lab, answers, work):
            if isinstance(line, str):
                print(f"\n{line}", flush=True)
                continue
            text, finding = line
            finding = finding or Finding(None, "not answered yet")
            mark = "open" if finding.holds is None else "holds" if finding.holds else "FAILS"
            seen = finding.seen
            print(f"  {mark:<5}  {text}\n         {seen}", flush=True)
            count[mark] += 1
    except ValueError as error:  # options that conflict, or a law that does not exist
        raise UsageError(f"--check {given.check[0]}: {error}") from None
    print(
        f"\n{count['holds']} of {count.total()} hold"
        + (f", {count['FAILS']} fail" if count["FAILS"] else "")
        + (f", {count['open']} open" if count["open"] else "")
    )
    return 0 if count["holds"] == count.total() else EXIT_FAILED


_Line = str | tuple[str, Finding | None]


def _lines(lab: Lab, answers: Answers, work: Work | None) -> Iterator[_Line]:
    """Yield headings, and sentences with what was found; None where there is no answer."""
    if lab.predictions:
        yield "predictions"
        trials: dict[str, Trial] = {}
        for name, prediction in lab.predictions.items():
            said = answers.predictions.get(name)
            trial = trials.setdefault(repr(sorted(prediction.options.items())), Trial(prediction.options))
            yield prediction.text, None if said is None else _predicted(prediction, said, trial)
    if lab.exercise:
        yield from _exercise(lab.exercise, answers)
    if lab.strategy:
        yield from _strategy(lab.strategy, work)


def _predicted(prediction: Prediction, said: float, trial: Trial) -> Finding:
    quantity = function(quantities, prediction.quantity.name)
    found: Value = quantity(trial.run(), **prediction.quantity.parameters)
    holds = all(abs(said - x) <= prediction.within * abs(x) for x in found.known)
    return Finding(
        holds, f"you said {said:g}; {shown(found)}; needed: within {prediction.within:.0%} of both"
    )


def _exercise(exercise: Exercise, answers: Answers) -> Iterator[_Line]:
    if answers.exercise is None:
        yield "exercise"
        yield from ((law.text, None) for law in exercise.laws)
        return
    yield "exercise: " + ", ".join(f"{option} {value:g}" for option, value in answers.exercise.items())
    trial = Trial({**exercise.options, **answers.exercise})
    for law in exercise.laws:
        yield law.text, function(goals, law.name)(trial, **law.parameters)


def _strategy(task: StrategyTask, work: Work | None) -> Iterator[_Line]:
    if work is None:
        yield "strategy"
        yield from ((law.text, None) for law in task.laws)
        return
    yield f"strategy: {work.path}"
    for law in task.laws:
        yield law.text, function(strategy_laws, law.name)(work, **law.parameters)
