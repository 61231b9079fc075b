"""Processes that simulate at the same time, each many runs, one after another.

By hand, because the executors of concurrent.futures and loky give up all work when one process dies: here the
death of a process costs only the run it was making.
"""

from __future__ import annotations

import os
import pickle
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from dsgd.compare.experiment import PlannedRun
from dsgd.compare.worker import Outcome
from dsgd.core.option_rules import options
from dsgd.core.protocol import ClusterError
from dsgd.process.environment import of_python

_WORK = "import sys; from dsgd.compare.worker import work; work(sys.argv[1:])"
# The workers' own threads in numpy and torch would only get in each other's way.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    answers: IO[bytes]
    ready: bool = False
    run: PlannedRun | None = None


class Pool:
    """Runs simulations in at most `processes` processes; a context manager.

    lock: a file descriptor that they inherit, so that what it locks stays locked until they have ended.
    """

    def __init__(self, processes: int, lock: int | None = None) -> None:
        self._processes, self._lock = processes, lock
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._modules: list[str] = []

    def grow(self, runs: Sequence[PlannedRun]) -> None:
        """Have as many processes as the runs can use; new ones begin at once to import what these need."""
        datasets = {run.cfg.data.dataset for run in runs}
        self._modules = [
            "dsgd.running.execute",
            "dsgd.records.writer",
            *(["torch"] if datasets - {"none"} else []),
            *(["sklearn.datasets"] if "digits" in datasets else []),
        ]
        while len(self._workers) < min(len(runs), self._processes):
            self._spawn()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._selector.close()

    def end(self) -> None:
        """End all processes; `grow` starts new ones."""
        while self._workers:
            worker = self._workers.pop()
            worker.process.kill()  # what it may be running is run again next time
            self._selector.unregister(worker.answers)
            worker.process.communicate()

    def wait(self) -> float:
        """Wait until all processes are ready, and return when they were, by time.perf_counter."""
        while not all(worker.ready for worker in self._workers):
            for key, _ in self._selector.select():
                self._answer(key.data)
        return time.perf_counter()

    def outcomes(self, runs: Iterable[PlannedRun]) -> Iterator[tuple[PlannedRun, Outcome]]:
        """Run all, and yield each as it ends, in whatever order they do.

        A run whose process dies has failed, and another process goes on with the others. Raises ClusterError
        if a process cannot even start.
        """
        waiting = deque(runs)
        while True:
            for worker in self._workers:
                if waiting and worker.ready and not worker.run:
                    _give(worker, waiting.popleft())
            if not waiting and not any(worker.run for worker in self._workers):
                return
            for key, _ in self._selector.select():
                worker = key.data
                run, outcome = worker.run, self._answer(worker)
                if run and outcome:
                    if waiting and worker.ready:
                        _give(worker, waiting.popleft())
                    yield run, outcome

    def _answer(self, worker: _Worker) -> Outcome | None:
        """Return the outcome of the worker's run; None if it had none and has just become ready."""
        try:
            answer: Outcome | None = pickle.load(worker.answers)  # noqa: S301 - of our process
        except (EOFError, pickle.UnpicklingError):
            return self._replace(worker)
        worker.ready, worker.run = True, None
        return answer

    def _replace(self, worker: _Worker) -> Outcome:
        """Start another process for one that has died, and return what that means for its run."""
        self._workers.remove(worker)
        self._selector.unregister(worker.answers)
        worker.process.communicate()
        code = worker.process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if not worker.ready:
            raise ClusterError(
                f"a process for the simulations ended with {how} while it started; "
                "see its output above, or try --processes 1"
            )
        worker.ready = False
        self._spawn()
        return Outcome(
            "failed", f"its process ended with {how}; if memory ran out, lower --processes", "", 0.0, 0.0
        )

    def _spawn(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _WORK, *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=of_python(**_ONE_THREAD),
            pass_fds=() if self._lock is None else (self._lock,),
            process_group=0,  # ctrl-C is for this process, which then ends them
        )
        assert process.stdout
        worker = _Worker(process, process.stdout)
        self._workers.append(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)


def _give(worker: _Worker, run: PlannedRun) -> None:
    assert worker.process.stdin
    worker.run = run
    try:
        pickle.dump(options(run.cfg), worker.process.stdin)
        worker.process.stdin.flush()
    except BrokenPipeError:
        pass  # it has died: the end of its answers will show it
