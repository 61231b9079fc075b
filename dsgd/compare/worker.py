"""A process that runs simulations one after another; pool.py starts it and talks to it.

The options of a run come pickled on standard input, an `Outcome` goes to standard output. It ends with its
input, even in the middle of a run: nothing outlives the process that asked for it.
"""

from __future__ import annotations

import importlib
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
from dsgd.core.protocol import ClusterError
from dsgd.process.endings import END, refuse_early_ends
from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import StoppedBy, one_line
from dsgd.records.reader import read_brief_summary
from dsgd.strategies import configured

if TYPE_CHECKING:
    from dsgd.running.keeper import Watcher


class Outcome(NamedTuple):
    """How a run of an experiment ended."""

    stopped_by: StoppedBy
    """`failed` also if it could not begin."""
    error: str
    """One line, or empty."""
    traceback: str
    """Where a mistake was made, or empty."""
    seconds: float
    """Wall seconds it took, its start included."""
    cpu_s: float
    """Seconds of computing it took in this process."""
    notes: Sequence[str] = ()
    """What went wrong on the way, or did not happen, in a line each."""


def execute_recorded(
    cfg: TrainConfig, interruptions: Interruptions, watchers: Sequence[Watcher] = ()
) -> Outcome:
    """Run one configuration in this process, with its record; nothing that ends it may end the other runs.

    A record that is there goes on from its newest checkpoint.
    """
    from dsgd.records.writer import RunRecord
    from dsgd.running.execute import execute

    began_s, began_cpu_s = time.monotonic(), time.process_time()
    stopped_by: StoppedBy = "failed"
    said, where = "", ""
    notes: Sequence[str] = ()
    try:
        path = cfg.output.folder / str(cfg.output.run_name)
        was_ended = (path / "summary.json").exists()
        resume = (read_brief_summary(path).stopped_by if was_ended else "killed") if path.exists() else None
        record = RunRecord(cfg, resume=resume is not None)
        ended = execute(
            cfg, watchers, record=record, interruptions=interruptions, started=began_s, resume=resume
        )
        stopped_by, said, where = ended.stopped_by, ended.error or "", ended.traceback
        notes = (*ended.not_kept, *ended.notes)
    except (ValueError, ClusterError, OSError) as error:
        said = one_line(error)
    except Exception as error:
        said, where = one_line(error), traceback.format_exc()
    return Outcome(
        stopped_by, said, where, time.monotonic() - began_s, time.process_time() - began_cpu_s, notes
    )


def work(modules: Sequence[str]) -> None:
    """Answer until the input ends; the first answer, None, says that all modules are imported."""
    refuse_early_ends()
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
            answer = Outcome("failed", str(error), "", 0.0, 0.0)
        else:
            answer = execute_recorded(cfg, Interruptions())


def _listen(asked: SimpleQueue[dict[str, Any]]) -> None:
    while True:
        try:
            asked.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - of the process that started this one
        except EOFError:
            END(0)
