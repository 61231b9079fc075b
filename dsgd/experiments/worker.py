"""A process that runs simulations one after another; pool.py starts it and talks to it.

The options of a run come pickled on standard input, an `Outcome` goes to standard output. It ends with its
input, also in the middle of a run: nothing goes on after the process that asked for it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from dsgd.config import TrainConfig
from dsgd.records.outcomes import EXIT_FAILED, EXIT_USAGE
from dsgd.strategies import configured
from dsgd.terminal.cli import UsageError
from dsgd.terminal.interruptions import Interruptions

if TYPE_CHECKING:
    from dsgd.live.observers import Observers


class Outcome(NamedTuple):
    """How a run ended."""

    code: int
    """The exit code that main.py would give."""
    error: str
    """One line, or empty."""
    printed: str
    """What else it had to say, like a traceback."""
    seconds: float
    """Wall seconds it took, its start included."""
    cpu_s: float
    """Seconds of computing it took in this process."""


def run_quietly(
    cfg: TrainConfig, interruptions: Interruptions, observers: Observers | None = None
) -> Outcome:
    """Run one configuration in this process, and return what it would have printed."""
    from dsgd.cluster import ClusterError
    from dsgd.run.run import run

    began_s, began_cpu_s = time.time(), time.process_time()
    said, code = io.StringIO(), EXIT_FAILED
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            code = run(cfg, began_s, interruptions, observers)
        except UsageError as mistake:
            code = EXIT_USAGE
            print(mistake, file=sys.stderr)
        except (ClusterError, OSError) as failure:
            print(failure, file=sys.stderr)
        except Exception:  # it must not stop the other runs
            traceback.print_exc()  # its last line names the error
    printed = said.getvalue().strip().splitlines()
    error = printed.pop().removeprefix("main.py: ") if code and printed else ""
    return Outcome(code, error, "\n".join(printed), time.time() - began_s, time.process_time() - began_cpu_s)


def work(modules: Sequence[str]) -> None:
    """Answer until the input ends; the first answer, None, says that all modules are imported."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a strategy prints must not get between the answers
    asked: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    for module in modules:
        importlib.import_module(module)
    answer: Outcome | None = None
    while True:
        pickle.dump(answer, answers)
        answers.flush()
        try:
            cfg = configured(asked.get())
        except ValueError as error:  # a strategy's own file has changed since the experiment began
            answer = Outcome(EXIT_USAGE, str(error), "", 0.0, 0.0)
        else:
            answer = run_quietly(cfg, Interruptions())


def _listen(asked: SimpleQueue[dict[str, Any]]) -> None:
    while True:
        try:
            asked.put(pickle.load(sys.stdin.buffer))
        except EOFError:
            os._exit(0)
