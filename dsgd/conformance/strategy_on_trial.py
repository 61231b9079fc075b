"""A strategy that is held to the laws of all strategies, and how a law says that it is broken."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dsgd.config import TrainConfig
from dsgd.core.protocol import Engine, TimeUp, Update
from dsgd.metrics import Tally
from dsgd.process.user_code import located
from dsgd.running.quick_run import QuickRun, Workers, config, run
from dsgd.strategies import Strategy, load, mode_of, modes
from dsgd.strategies.conformance import Laws

_MOST_VIRTUAL_S = 5e3  # the runs of the laws end in half of it; one that does not never makes an update


class LawBroken(AssertionError):
    """A strategy broke a law; the text names the law, the first difference and the command that shows it."""


class Broken(Exception):
    """What a law has seen, in one line, and the options of the run in which it was seen."""

    def __init__(self, seen: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(seen)
        self.options = options


class Stopped(Broken):
    """A run broke off, or ended before its budget was spent: laws about its weights could not be seen."""

    def __init__(self, seen: str, options: Mapping[str, Any], *, broke_off: bool = True) -> None:
        super().__init__(seen, options)
        self.broke_off = broke_off


class Subject(NamedTuple):
    """A strategy that is held to the laws: a mode of this package, or a user's file."""

    mode: str
    file: str | None = None

    @classmethod
    def of(cls, strategy: str | Path) -> Subject:
        """Return the subject that a mode or a file `train_<mode>.py` is.

        Raises ValueError, in one line, for a file that is not a strategy and a mode that does not exist.
        """
        if str(strategy) in modes():
            return cls(str(strategy))
        if Path(strategy).suffix != ".py":
            load(str(strategy))  # raises: it is neither
        subject = cls(mode_of(strategy), str(strategy))
        _ = subject.strategy
        return subject

    @property
    def strategy(self) -> Strategy:
        return load(self.mode, self.file)

    @property
    def path(self) -> Path:
        """Where its source is."""
        return Path(str(self.strategy.__file__))

    @property
    def laws(self) -> Laws:
        laws: Laws = getattr(self.strategy, "LAWS", Laws())
        return laws

    def config(self, **options: Any) -> TrainConfig:
        return config(self.mode, **self._whole(options))

    def _whole(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"strategy_file": self.file, "max_seconds": _MOST_VIRTUAL_S, **self.possible(options)}

    def possible(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as they are without a server, if the strategy has none."""
        renamed: Mapping[str, str | None] = {}
        if not config(self.mode, strategy_file=self.file).traits.has_server:
            renamed = {"server_time": None, "server_bytes_per_s": "bytes_per_s"}
        return {new: x for name, x in options.items() if (new := renamed.get(name, name)) is not None}

    def run(
        self,
        workers: Workers | None = None,
        on_update: Callable[[Engine, Update], None] | None = None,
        /,
        **options: Any,
    ) -> QuickRun:
        """Run it to the end of its budget; raises Broken if it does not get there.

        workers: who compute, if they have been started already.
        """
        with self.may_break(options):
            outcome = (workers.run if workers else run)(self.mode, on_update, **self._whole(options))
        require_spent(outcome.cfg, outcome.tally, options)
        return outcome

    @contextmanager
    def may_break(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Turn an error of the strategy, with the line it came from, into Broken."""
        try:
            yield
        except Broken:
            raise
        except TimeUp:
            most_s = options.get("max_seconds", _MOST_VIRTUAL_S)
            raise Stopped(f"the run has not ended after {most_s:g} virtual s", options) from None
        except (Exception, SystemExit) as error:
            raise Stopped(f"the run failed: {located(error, self.path)}", options) from error

    def command(self, options: Mapping[str, Any]) -> str:
        """Return the command that repeats a run."""
        chosen = ["--mode", self.file or self.mode]
        return shlex.join(["main.py", *chosen, *as_arguments({"engine": "sim", **options})])


def require_spent(cfg: TrainConfig, tally: Tally, options: Mapping[str, Any]) -> None:
    """Raise Broken if a run has ended before its budget was spent."""
    if tally.gradients < cfg.budget:
        spent = f"{tally.gradients} of {cfg.budget} mini-batches"
        seen = f"{spent} are in updates when train ends, or virtual time"
        raise Stopped(seen, options, broke_off=False)


def as_arguments(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield options, named as in config.yaml, as they stand on the command line.

    >>> list(as_arguments({"num_workers": 3, "adaptive": False}))
    ['--num-workers', '3', '--no-adaptive']
    """
    for name, value in options.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{dashed}" if value else f"--no-{dashed}"
        elif value is not None:
            yield from (f"--{dashed}", str(value))
