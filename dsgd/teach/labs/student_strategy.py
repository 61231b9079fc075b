"""A student's strategy: loaded from its file, run in the simulator, and watched."""

from __future__ import annotations

import ast
import faulthandler
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple, cast

from dsgd.config import TrainConfig, option_fields
from dsgd.config import options as flat
from dsgd.core.clocks import Clocks
from dsgd.core.option_rules import from_options
from dsgd.core.protocol import Cluster, Done, Update
from dsgd.core.tasks import Task
from dsgd.core.weights import Weights
from dsgd.process.outcomes import UsageError
from dsgd.process.user_code import UserCodeError, located
from dsgd.running.execute import execute
from dsgd.running.quick_run import run
from dsgd.strategies import Strategy, from_file
from dsgd.teach.labs.lab_run import floats
from dsgd.transforms.wrapped_engine import WrappedCluster

_MOST_FOR_NOTHING = 4  # in budgets: a strategy that took so many tasks without spending one never will
_PATIENCE_S = 20.0  # from the first attempt to break something off to the end of the whole process


class Start(NamedTuple):
    """A strategy gave a worker a task."""

    worker: int
    read: int
    """The version of the weights that it was given."""
    taken: int
    """How many finished tasks the strategy had taken."""
    ahead: int
    """How many mini-batches the worker was ahead of the slowest."""


@dataclass(kw_only=True)
class Attempt:
    """A run of a student's strategy, recorded while it goes on."""

    number: int
    """Of its scenario, from 0."""
    scenario: Mapping[str, Any]
    """The options in which it differs from the other runs."""
    options: Mapping[str, Any]
    """All that the lab has set, those among them."""
    cfg: TrainConfig
    first: Weights = field(init=False)
    """The weights that it began with."""
    starts: list[Start] = field(default_factory=list)
    taken: list[Done] = field(default_factory=list)
    """The finished tasks, as they came."""
    updates: list[Update] = field(default_factory=list)
    idle: list[dict[int, int]] = field(default_factory=list)
    """After each update: the workers without a task, and how many mini-batches each was ahead."""
    gradients: int = 0
    """Mini-batches that the updates say they have applied."""
    broke_off: str = ""
    """Why, if the run did."""
    was_run: bool = True
    """False if an earlier run of the strategy never came back, so that no other was tried."""

    def __str__(self) -> str:
        return ", ".join(f"{option} {value}" for option, value in self.scenario.items()).replace("_", " ")


class Work:
    """A student's strategy and its runs: what the laws look at."""

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any],
        scenarios: Sequence[Mapping[str, Any]],
        time_limit_s: float = 10.0,
        again_s: float = 1.0,
    ) -> None:
        """Load the file, and see that it takes the options of the lab in each scenario; nothing is run yet.

        time_limit_s: wall seconds after which what does not come back is broken off: a run, or the import.
            No other run follows.
        again_s: seconds between one attempt to break it off and the next.
        Raises UsageError, in one line, for a file that is not a strategy.
        """
        self.path = path
        self._options = {"engine": "sim", **options}
        self._time_limit_s, self._again_s = time_limit_s, again_s
        self._scenarios = scenarios
        self._never_ends = False
        with self._must_come_back("the import"):
            self.tree, self._strategy = _load(path)
        for scenario in scenarios:
            self._prepared(scenario)

    @cached_property
    def attempts(self) -> list[Attempt]:
        """Its run in each scenario."""
        run("asgd", num_workers=1, steps=1)  # loads torch, which may take longer than a student's run may
        return [self.attempt(scenario, number) for number, scenario in enumerate(self._scenarios)]

    def attempt(self, scenario: Mapping[str, Any], number: int) -> Attempt:
        """Run the strategy once, to the end of its budget or to where it breaks off.

        Once a run did not come back in time, no other is made: it would take as long, and say the same.
        """
        options, cfg = self._prepared(scenario)
        attempt = Attempt(number=number, scenario=scenario, options=options, cfg=cfg)
        if self._never_ends:
            attempt.was_run, attempt.broke_off = False, "not run: an earlier run did not come back"
            return attempt
        try:
            with _time_limit(self._time_limit_s, self._again_s, "train"):
                ended = execute(cfg, strategy=_Noted(self._strategy, attempt), evaluate=False)
            if isinstance(ended.exception, _BreaksOff):
                raise ended.exception
        except _BreaksOff as error:
            attempt.broke_off, self._never_ends = str(error), isinstance(error, _TimeUp)
        else:
            if ended.exception:
                attempt.broke_off = located(ended.exception, self.path)
            elif ended.error:
                attempt.broke_off = ended.error
        return attempt

    def _prepared(self, scenario: Mapping[str, Any]) -> tuple[dict[str, Any], TrainConfig]:
        """Return all options of a scenario, and the file's Config of them."""
        options = floats({**self._options, **scenario}, self._strategy.Config)
        with self._must_come_back("its Config"):
            return options, self._configured(options)

    @contextmanager
    def _must_come_back(self, what: str) -> Iterator[None]:
        """Refuse the file if a part of it that comes before a run never ends."""
        try:
            with _time_limit(self._time_limit_s, self._again_s, what):
                yield
        except _BreaksOff as error:
            raise UsageError(f"strategy {self.path}: {error}") from None

    def _configured(self, options: Mapping[str, Any]) -> TrainConfig:
        where, config_type = f"strategy {self.path}", self._strategy.Config
        known = option_fields(config_type)
        for option in options:
            if option not in known:
                raise UsageError(f"{where}: its Config has no option {option}; add that field, see the page")
        mode = self.path.stem.removeprefix("train_")
        try:
            cfg = from_options(config_type, {"mode": mode, **options})
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"{where}: its Config refuses the lab's options: {reason}") from None
        changed = [option for option, value in options.items() if flat(cfg)[option] != value]
        if cfg.budget != cfg.num_workers * cfg.steps:
            changed.append("budget")
        if changed:
            raise UsageError(
                f"{where}: its Config changes {changed[0]}, which the lab has set; take that out"
            )
        return cfg


class _Noted:
    """A student's strategy as a run calls it; notes and checks what it does."""

    def __init__(self, strategy: Strategy, attempt: Attempt) -> None:
        self._strategy, self._attempt = strategy, attempt
        self.Config, self.__file__ = strategy.Config, strategy.__file__

    def train(self, cluster: Cluster, w: Weights, cfg: TrainConfig) -> Iterator[Update]:
        attempt, watched = self._attempt, Watched(cluster, self._attempt)
        attempt.first = w
        for update in self._strategy.train(watched, w, cfg):
            if not isinstance(update, Update) or not isinstance(update.weights, Weights):
                raise _BreaksOff(
                    f"train yielded a {type(update).__name__}; needed: Update(w, [done]) with the new weights"
                )
            attempt.updates.append(update)
            attempt.gradients += sum(done.batches for done in update.dones)
            attempt.idle.append(watched.waiting())
            yield update
            if len(attempt.updates) > cfg.budget:
                raise _BreaksOff(
                    f"{len(attempt.updates)} updates had {attempt.gradients} mini-batches in all"
                )


class Watched(WrappedCluster):
    """The workers as a strategy sees them; notes what it does with them."""

    def __init__(self, cluster: Cluster, attempt: Attempt) -> None:
        super().__init__(cluster)
        self._attempt, self._clocks = attempt, Clocks(cluster.workers)

    @property
    def in_flight(self) -> Mapping[int, float]:
        return MappingProxyType(dict(self.inner.in_flight))

    def start(self, worker: int, task: Task, w: Weights) -> None:
        if worker not in self.workers:
            raise _BreaksOff(f"worker {worker} was started; there are 0 to {len(self.workers) - 1}")
        if worker in self.inner.in_flight:
            raise _BreaksOff(f"worker {worker} was started while it still had a task")
        self._attempt.starts.append(Start(worker, w.version, len(self._attempt.taken), self._ahead(worker)))
        self.inner.start(worker, task, w)

    def cancel(self, worker: int) -> None:
        if worker not in self.inner.in_flight:
            raise _BreaksOff(f"worker {worker} was cancelled, but it had no task")
        self.inner.cancel(worker)

    def next_done(self) -> Done:
        if not self.inner.in_flight:
            clocks = ", ".join(str(self._clocks[worker]) for worker in self.workers)
            raise _BreaksOff(
                f"no worker has a task, so nothing can finish (clocks of the workers: {clocks}); "
                "needed: at least one worker with a task"
            )
        if len(self._attempt.taken) > _MOST_FOR_NOTHING * self._attempt.cfg.budget:
            raise _BreaksOff(
                f"{len(self._attempt.taken)} tasks were taken and made {len(self._attempt.updates)} updates"
            )
        done = self.inner.next_done()
        assert done, "the members of a lab's cluster do not change"
        self._attempt.taken.append(done)
        self._clocks.tick(done.worker, done.batches)
        return done

    def waiting(self) -> dict[int, int]:
        """Return the workers without a task, and how many mini-batches each is ahead of the slowest."""
        busy = self.inner.in_flight
        return {worker: self._ahead(worker) for worker in self.workers if worker not in busy}

    def _ahead(self, worker: int) -> int:
        return self._clocks[worker] - self._clocks.slowest


class _BreaksOff(BaseException):
    """A run cannot go on; the message says what was seen.

    No Exception: a student's `except Exception` must not keep it.
    """


class _TimeUp(_BreaksOff):
    """Something of the student's did not come back in time."""


def _load(path: Path) -> tuple[ast.Module, Strategy]:
    try:
        strategy = cast(Strategy, from_file(path))
    except UserCodeError as error:
        if isinstance(error.__cause__, _BreaksOff):
            raise error.__cause__ from None
        hint = "" if path.exists() else "; its path is relative to the answers file"
        raise UsageError(f"strategy {path}: {error}{hint}") from None
    return ast.parse(path.read_text(encoding="utf-8")), strategy


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
        raise _TimeUp(f"{what} did not come back within {seconds:g} s; look for a loop that never ends")

    before = signal.signal(signal.SIGALRM, break_off)
    signal.setitimer(signal.ITIMER_REAL, seconds, again_s)
    faulthandler.dump_traceback_later(seconds + _PATIENCE_S, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
