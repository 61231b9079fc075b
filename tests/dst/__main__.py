"""Deterministic simulation testing: `PYTHONPATH=tests python -m dst` runs seeded schedules of random faults.

    PYTHONPATH=tests python -m dst --schedules 10000
    PYTHONPATH=tests python -m dst --mode my/train_mine.py --schedules 1000
    PYTHONPATH=tests python -m dst --mode ssp --num-workers 2 --faults "leave:1@t=3; join:1@t=5"

With options of a run, that run alone is held to the invariants. A schedule that breaks one is shrunk and
printed as one command line. Source of the method: FoundationDB's simulation (Zhou et al. 2021, SIGMOD).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NoReturn

from dsgd.conformance.strategy_on_trial import Subject
from dsgd.core.option_rules import options
from dsgd.process.outcomes import EXIT_FAILED, EXIT_USAGE, UsageError, report_error
from dsgd.show.terminal.cli import parse
from dsgd.strategies import modes
from dst.fault_schedule import FaultSchedule, drawn
from dst.many_schedules import Counted, many
from dst.recorded_schedules import drawn_for_a_record
from dst.shrinking import broken_invariant, smallest

_AT_ONCE = 50
_MOST_SHOWN = 3


def reproducer(schedule: FaultSchedule, seen: str) -> str:
    """Return the command line that shows it: a run's, if the run fails by itself."""
    command = schedule.subject.command(schedule.options)
    program = "python" if seen.startswith("the run failed") else "PYTHONPATH=tests python -m dst"
    return f"{program} {command if program == 'python' else command.removeprefix('main.py ')}"


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for and return the exit code."""
    try:
        return _run_many(arguments) if _asks_for_many(arguments) else _run_one(arguments)
    except UsageError as error:
        return report_error(error, EXIT_USAGE)


def _asks_for_many(arguments: Sequence[str]) -> bool:
    of_many = ("--schedules", "--first", "--processes", "-h", "--help")
    return not arguments or any(argument.partition("=")[0] in of_many for argument in arguments)


def schedule_of(arguments: Sequence[str]) -> FaultSchedule:
    """Return the schedule that has the options of a command line; raises UsageError."""
    cfg = parse(arguments)
    default = type(cfg)(mode=cfg.mode, strategy_file=cfg.strategy_file)
    given = {name: value for name, value in options(cfg).items() if value != options(default)[name]}
    for name in ("mode", "strategy_file", "engine"):
        given.pop(name, None)
    return FaultSchedule(Subject(cfg.mode, cfg.strategy_file), given)


def _run_one(arguments: Sequence[str]) -> int:
    schedule = schedule_of(arguments)
    if broken := broken_invariant(schedule):
        return report_error(f"{schedule.subject.mode} breaks an invariant: {broken}", EXIT_FAILED)
    print("all invariants hold")
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "))


def _run_many(arguments: Sequence[str]) -> int:
    parser = _Parser(
        prog="PYTHONPATH=tests python -m dst",
        description="Run schedules of random faults, or with options of a run that run alone, and hold them "
        "to the invariants of all strategies and engines. Exit codes: 0 all hold, 1 one is broken.",
        allow_abbrev=False,
    )
    parser.add_argument("--schedules", type=int, default=10_000, metavar="N", help="how many; default 10000")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="number of the first; default 0")
    parser.add_argument(
        "--mode", action="append", metavar="MODE|FILE", help="of this mode, or your train_NAME.py, alone"
    )
    processes = os.cpu_count() or 1
    parser.add_argument(
        "--processes", type=int, default=processes, metavar="N", help=f"at once; default {processes}"
    )
    given = parser.parse_args(arguments)
    if given.schedules < 1:
        raise UsageError(f"--schedules {given.schedules}: must be 1 or more")
    try:
        subjects = [Subject.of(mode) for mode in given.mode or modes()]
    except ValueError as error:
        raise UsageError(str(error)) from None
    last = given.first + given.schedules
    parts = [range(seed, min(seed + _AT_ONCE, last)) for seed in range(given.first, last, _AT_ONCE)]
    counted, began_s = Counted(), time.perf_counter()
    for part in _computed(parts, subjects, given.processes):
        counted.add(part)
        _show_progress(counted, given.schedules, time.perf_counter() - began_s)
    for line in table(counted):
        print(line)
    for seed, seen in sorted(counted.broken)[:_MOST_SHOWN]:
        of_record = seen.startswith("as a ")
        schedule = drawn_for_a_record(seed, subjects) if of_record else drawn(seed, subjects)
        print(f"\nschedule {seed} of {schedule.subject.mode}: {seen}")
        small, seen = smallest(schedule)
        print(f"  shrunk:  {seen}\n  run:     {reproducer(small, seen)}", flush=True)
    return EXIT_FAILED if counted.broken else 0


def _computed(parts: Sequence[range], subjects: Sequence[Subject], processes: int) -> Iterator[Counted]:
    if processes == 1 or len(parts) == 1:
        yield from (many(part, subjects, records=True) for part in parts)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(many, parts, [subjects] * len(parts), [True] * len(parts))


def _show_progress(counted: Counted, schedules: int, elapsed_s: float) -> None:
    done, shown = counted.schedules.total(), sys.stdout.isatty()
    if shown or done % (_AT_ONCE * 20) == 0 or done == schedules:
        line = (
            f"{done} of {schedules} schedules, {counted.faults.total()} faults, {len(counted.broken)} broken"
        )
        print(f"{line}, {elapsed_s:.0f} s", end="\r" if shown and done < schedules else "\n", flush=True)


def table(counted: Counted) -> Iterator[str]:
    """Yield the lines that say what was run, by mode and by kind of fault."""
    schedules, cpu_s = counted.schedules.total(), sum(counted.cpu_s.values())
    yield f"{'mode':<12}{'schedules':>10}{'updates':>10}{'CPU s':>8}{'ms each':>9}"
    for mode, number in sorted(counted.schedules.items()):
        each = 1e3 * counted.cpu_s[mode] / number
        yield f"{mode:<12}{number:>10}{counted.updates[mode]:>10}{counted.cpu_s[mode]:>8.1f}{each:>9.1f}"
    each = 1e3 * cpu_s / max(1, schedules)
    yield f"{'all':<12}{schedules:>10}{counted.updates.total():>10}{cpu_s:>8.1f}{each:>9.1f}"
    kinds = ", ".join(f"{number} {kind}" for kind, number in counted.faults.most_common())
    yield f"{counted.faults.total()} faults{': ' * bool(kinds)}{kinds}"
    yield f"{counted.restarted} runs started again from a state: the same bytes"
    yield f"{counted.resumed} cut, resumed and replayed: the same record"
    yield f"{counted.compared} runs with the weights of the run without faults, bit for bit"
    yield f"{len(counted.broken)} schedules break an invariant"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
