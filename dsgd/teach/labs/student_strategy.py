"""A student's strategy: held to laws as any other is, each within a time limit."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from dsgd.conformance.strategy_on_trial import Broken, Stopped, Subject
from dsgd.core.option_rules import option_fields
from dsgd.core.option_rules import options as flat
from dsgd.core.protocol import Engine, Update
from dsgd.process.outcomes import UsageError
from dsgd.running.quick_run import QuickRun, run
from dsgd.teach.labs.lab_run import floats
from dsgd.teach.labs.wording import Finding

_PATIENCE_S = 20.0  # from the first attempt to break something off to the end of the whole process


class LabRun(NamedTuple):
    """A run that the lab asks for."""

    options: Mapping[str, Any]
    run: QuickRun
    idle: Sequence[Sequence[int]]
    """After each update: the workers without a task."""


class Work:
    """A student's strategy, and its runs in the lab's scenarios."""

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any],
        scenarios: Sequence[Mapping[str, Any]],
        time_limit_s: float = 10.0,
        again_s: float = 1.0,
    ) -> None:
        """Load the file, and see that it takes the options of the lab in each scenario; it is not run yet.

        time_limit_s: wall seconds after which what does not come back is broken off: a law, or the import.
            No other law is held then.
        again_s: seconds between one attempt to break it off and the next.
        Raises UsageError, in one line, for a file that is not a strategy.
        """
        self._time_limit_s, self._again_s, self._never_ends = time_limit_s, again_s, ""
        if not path.is_file():
            raise UsageError(f"strategy {path}: is no file; its path is relative to the answers file")
        try:
            with self._within_the_limit("the import"):
                self.subject = Subject.of(path)
            with self._within_the_limit("its Config"):
                self._scenarios = [self._accepted({**options, **scenario}) for scenario in scenarios]
        except (ValueError, NeverEnds) as error:
            reason = str(error).removeprefix(f"--mode {path}: ")
            raise UsageError(f"strategy {path}: {reason}") from None
        run("asgd", num_workers=1, steps=1)  # loads torch, which may take longer than a student's law may

    def held(self, law: Callable[..., Any], of_all: bool, parameters: Mapping[str, Any]) -> Finding:
        """Return whether a law holds; of_all: it is one of all strategies.

        It is open where the strategy stops before that can be seen, unless it is the law about stopping.
        """
        looked = 0
        try:
            if self._never_ends:
                raise NeverEnds(self._never_ends)
            with self._within_the_limit("train"):
                looked = law(self.subject if of_all else self, **parameters)
        except NeverEnds as error:
            self._never_ends = str(error)
            is_about_that = law.__name__ == "ends"
            return Finding(False, str(error)) if is_about_that else Finding(None, f"not tested: {error}")
        except Broken as broken:
            seen, command = str(broken), self.subject.command(broken.options) if broken.options else ""
            if isinstance(broken, Stopped):
                about = "ends" if broken.broke_off else "spends_the_budget"
                if law.__name__ != about:
                    return Finding(None, f"not tested: {seen}")
            return Finding(False, seen, command=command)
        return Finding(None, "not tested: the lab has no run for this") if looked == 0 else Finding(True, "")

    @cached_property
    def runs(self) -> list[LabRun]:
        """Its run in each scenario; raises Broken where one breaks off."""
        return [self._run(options) for options in self._scenarios]

    def _run(self, options: Mapping[str, Any]) -> LabRun:
        idle: list[list[int]] = []

        def see(engine: Engine, _: Update) -> None:
            idle.append([worker for worker in engine.workers if worker not in engine.in_flight])

        return LabRun(options, self.subject.run(None, see, **options), idle)

    def _accepted(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a scenario as they are on the command line."""
        config_type = self.subject.strategy.Config
        for option in options:
            if option not in option_fields(config_type):
                raise ValueError(f"its Config has no option {option}; add that field, see the page")
        options = floats(options, config_type)
        what = "its own defaults, and each option needs one"  # laws of all strategies give few options
        try:
            self.subject.config()
            what = "the lab's options"
            cfg = self.subject.config(**options)
        except (Exception, SystemExit) as error:
            raise ValueError(f"its Config refuses {what}: {' '.join(str(error).split())}") from None
        wanted = {"engine": "sim", **options}
        changed = [option for option, value in wanted.items() if flat(cfg)[option] != value]
        if cfg.budget != cfg.num_workers * cfg.steps:
            changed.append("budget")
        if changed:
            raise ValueError(f"its Config changes {changed[0]}, which the lab has set; take that out")
        return options

    @contextmanager
    def _within_the_limit(self, what: str) -> Iterator[None]:
        with _time_limit(self._time_limit_s, self._again_s, what):
            yield


class NeverEnds(BaseException):
    """Something of the student's did not come back in time.

    No Exception: a student's `except Exception` must not keep it.
    """


@contextmanager
def _time_limit(seconds: float, again_s: float, what: str) -> Iterator[None]:
    """Break off what runs for so many wall seconds: a loop that never asks for a finished task.

    Again every `again_s`, for a bare `except` may have caught it. What cannot be broken off so, because no
    Python code is run (`sum(itertools.count())`) or because all is caught, ends the process with exit code 1
    soon after, and the place is printed.
    """
    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread only
        yield
        return

    def break_off(number: int, frame: FrameType | None) -> None:
        raise NeverEnds(f"{what} did not come back within {seconds:g} s; look for a loop that never ends")

    before = signal.signal(signal.SIGALRM, break_off)
    signal.setitimer(signal.ITIMER_REAL, seconds, again_s)
    faulthandler.dump_traceback_later(seconds + _PATIENCE_S, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
