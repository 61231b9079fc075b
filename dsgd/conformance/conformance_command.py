"""The command `check`: a strategy held to the laws of all strategies."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated

from dsgd.conformance.law_checks import checks_of, laws_of_a_checkout, unclaimed
from dsgd.conformance.strategy_on_trial import LawBroken, Subject
from dsgd.core.option_rules import Checked
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import EXIT_FAILED, UsageError
from dsgd.show.terminal.command_options import Positional, options_of_command


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Checked):
    """Hold a strategy to the laws of all strategies that concern it; LAWS in its file says which do. Exit
    codes: 0 all hold, 1 one is broken, 2 the file is not a strategy.
    """

    strategy: Annotated[str, Positional("FILE")]
    """Your train_NAME.py, or a mode of this package."""

    ray: bool = True
    """Check the law that starts real workers too, which takes about ten seconds."""


def check(arguments: Sequence[str], _: Interruptions) -> int:
    """Hold a strategy to every law that concerns it, print what holds, and return the exit code.

    Raises UsageError, in one line, for a file that is not a strategy.
    """
    given = options_of_command(CheckOptions, "check", arguments)
    try:
        subject = Subject.of(given.strategy)
    except ValueError as error:
        reason = str(error).partition(": ")[2]  # without the option that a run would have
        raise UsageError(f"check {given.strategy}: {reason}") from None
    checks = [check for check in checks_of(subject) if given.ray or not check.needs_ray]
    print(f"{subject.mode}: {subject.path}")
    broken, shown = 0, set[str]()
    for _law, group in groupby(checks, key=lambda check: check.law):
        cases = list(group)
        failures = []
        for check in cases:
            try:
                check()
            except LawBroken as error:
                failures.append(str(error))
        several = f" ({len(cases)} cases)" if len(cases) > 1 else ""
        print(_wrapped("FAILS" if failures else "holds", cases[0].sentence + several), flush=True)
        again = 0
        for failure in failures:
            if (crash := _crash(failure)) in shown:
                again += 1
                continue
            if crash:
                shown.add(crash)
            print(textwrap.indent(failure.partition("\n")[2], " " * 5), flush=True)
        if again:
            print(f"       seen:    the error above again, in {again} of {len(failures)} cases", flush=True)
        broken += len(failures)
    print(f"\n{len(checks) - broken} of {len(checks)} checks hold" + (f", {broken} fail" if broken else ""))
    if not laws_of_a_checkout():
        print("random faults not checked: a checkout has their law, in tests/dst")
    if names := unclaimed(subject):
        print(f"not claimed in LAWS, so not checked: {', '.join(names)}")
    return EXIT_FAILED if broken else 0


def _crash(failure: str) -> str:
    """Return the error that ended a run, if that is how a law was broken; else an empty text."""
    _, _, error = failure.partition("the run failed: ")
    return error.partition("\n")[0]


def _wrapped(mark: str, sentence: str) -> str:
    width = min(110, shutil.get_terminal_size().columns)
    return textwrap.fill(f"  {mark}  {sentence}", width, subsequent_indent=" " * 9, break_on_hyphens=False)
