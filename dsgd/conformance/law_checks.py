"""The laws of all strategies, as checks of one strategy: the same for modes of the repository and user files.

A law is a function: it runs the strategy, and raises `Broken` with what it saw. Of its text, the first
sentence is the law and the rest, if any, the remedy. `main.py check`, the test that `new`
writes and tests/strategies/test_conformance.py all hold a strategy to these.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from dsgd.conformance import laws_of_runs, laws_of_source, restart
from dsgd.conformance.strategy_on_trial import Broken, LawBroken, Subject
from dsgd.strategies.conformance import as_text

Law = Callable[..., None]
TESTS = Path(__file__).parents[2] / "tests"

ALWAYS: tuple[Law, ...] = (
    laws_of_source.is_only_its_algorithm,
    laws_of_source.train_fits_a_slide,
    laws_of_source.says_where_it_comes_from,
    laws_of_source.its_options_make_the_same_configuration,
    laws_of_runs.spends_the_budget,
    laws_of_runs.versions_count_updates,
    laws_of_runs.every_worker_takes_part,
    laws_of_runs.each_task_is_in_one_update,
    laws_of_runs.the_same_seed_gives_the_same_run,
    laws_of_runs.what_theory_bounds_is_never_passed,
    laws_of_runs.no_scenario_breaks_it,
)
"""What concerns every strategy, with its options as they are by default."""

CLAIMED: Mapping[str, Law] = {
    "plain_sgd": laws_of_runs.one_worker_is_plain_sgd,
    "convex": laws_of_runs.reaches_the_loss_of_plain_sgd,
    "deterministic": laws_of_runs.does_not_depend_on_who_is_faster,
}
"""What a strategy claims by options in its LAWS, or does not by None."""


@dataclass(frozen=True)
class LawCheck:
    """One law, held to one strategy in one case. Calling it raises LawBroken if the law does not hold."""

    law: Law
    subject: Subject
    case: Mapping[str, Any] = field(default_factory=dict)
    """The law's other arguments."""
    label: str = ""
    """The case in words."""

    @property
    def sentence(self) -> str:
        """The law."""
        return _paragraphs(self.law)[0]

    @property
    def mode(self) -> str:
        return self.subject.mode

    @property
    def needs_ray(self) -> bool:
        return self.law is laws_of_runs.runs_on_real_workers

    def __str__(self) -> str:
        return " ".join([self.subject.mode, self.law.__name__, self.label]).strip()

    def __call__(self) -> None:
        __tracebackhide__ = True  # pytest then shows the message alone
        try:
            self.law(self.subject, **self.case)
        except Broken as broken:
            case = f" ({self.label})" if self.label else ""
            lines = [f"{self.subject.mode} breaks a law{case}: {self.sentence}", f"  seen:    {broken}"]
            lines += [f"  remedy:  {remedy}" for remedy in _paragraphs(self.law)[1:]]
            if broken.options is not None:
                lines.append(f"  run:     {self.subject.command(broken.options)}")
            raise LawBroken("\n".join(lines)) from broken.__cause__


def checks_of(strategy: str | Subject) -> list[LawCheck]:
    """Return the laws that concern a strategy: a mode, or a file `train_<mode>.py`. The last one needs Ray.

    Raises ValueError, in one line, for a file that is not a strategy and a mode that does not exist.
    """
    subject = strategy if isinstance(strategy, Subject) else Subject.of(strategy)
    laws = subject.laws
    checks = [LawCheck(law, subject) for law in ALWAYS]
    for claim, law in CLAIMED.items():
        if (options := getattr(laws, claim)) is not None:
            checks.append(LawCheck(law, subject, {"options": options}, as_text(options)))
    checks += [
        LawCheck(laws_of_runs.is_another, subject, {"limit": limit}, str(limit)) for limit in laws.limits
    ]
    checks += list(_restarts(subject))
    checks += [LawCheck(law, subject) for law in laws_of_a_checkout()]
    checks.append(LawCheck(laws_of_runs.runs_on_real_workers, subject))
    return checks


def laws_of_a_checkout() -> list[Law]:
    """Return the law of random faults, if tests/dst, which draws them, is beside the package."""
    if not (TESTS / "dst/law.py").is_file():
        return []
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    return [import_module("dst.law").survives_random_faults]


def unclaimed(subject: Subject) -> list[str]:
    """Return what its LAWS do not claim, so that no law is held to it: names of fields."""
    return [claim for claim in CLAIMED if getattr(subject.laws, claim) is None]


def _restarts(subject: Subject) -> Iterator[LawCheck]:
    for options in subject.laws.variants:
        for scenario in restart.SCENARIOS:
            label = f"{as_text(options)} {scenario}".strip()
            case = {"options": options, "scenario": scenario}
            yield LawCheck(restart.goes_on_from_any_update, subject, case, label)


def _paragraphs(law: Law) -> list[str]:
    return [" ".join(part.split()) for part in (law.__doc__ or "").split("\n\n")]
