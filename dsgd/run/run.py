"""One run: a strategy on an engine, followed update by update, and its record."""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from dsgd.cluster import ClusterError, Engine, TimeUp, Update
from dsgd.cluster.open import open_cluster
from dsgd.config import TrainConfig
from dsgd.data import Workload, make_workload
from dsgd.live.observers import Observers
from dsgd.live.prometheus import RunMetrics
from dsgd.metrics import Tally, finite
from dsgd.records.outcomes import EXIT_CODES, StoppedBy
from dsgd.records.writer import RunRecord, default_name, free_path
from dsgd.run.evaluation import Evaluator
from dsgd.strategies import strategy_of
from dsgd.terminal.cli import UsageError
from dsgd.terminal.console import ProgressLine, print_comparison, print_summary
from dsgd.terminal.interruptions import Interruptions
from dsgd.theory.predictions import compare
from dsgd.work.optim import Weights


def run(
    cfg: TrainConfig, started: float, interruptions: Interruptions, observers: Observers | None = None
) -> int:
    """Run one configuration; `started` is the epoch time (s) at which the program did.

    Raises UsageError for what can be seen to be impossible, before anything is written.
    """
    console = Console(highlight=False)
    strategy = strategy_of(cfg)
    with ExitStack() as stack:
        try:
            workload = make_workload(cfg)
            record = RunRecord(cfg)
            line = stack.enter_context(ProgressLine(cfg, console))
            cluster = stack.enter_context(open_cluster(cfg, workload, interruptions))
            run = Run(cfg, workload, cluster, record, observers)
            interruptions.hold()  # a record that is begun will be completed
            record.open(started=started, cluster=cluster)
            if observers:
                observers.show(record.path)
        except ValueError as error:
            raise UsageError(str(error)) from error
        startup_s, began_s = time.time() - started, time.perf_counter()
        updates = strategy.train(cluster, run.weights, cfg)
        run.follow(interruptions.between(updates), line)
        wall_s = time.perf_counter() - began_s
        run.draw_trace()
        summary = record.close(run.weights.vector, run.summary() | {"wall_s": wall_s, "startup_s": startup_s})
    with suppress(BrokenPipeError, UnicodeEncodeError):  # who reads no further, or no such letters
        if cfg.output.quiet:
            print(record.path, flush=True)
        else:
            print_summary(summary, record.path, console)
    return report_error(run.error, EXIT_CODES[run.stopped_by]) if run.error else EXIT_CODES[run.stopped_by]


def run_both(
    cfg: TrainConfig, started: float, interruptions: Interruptions, observers: Observers | None = None
) -> int:
    """Run on Ray, then in the simulator with this machine's overhead, and report where the two differ.

    The records are `ray` and `sim` in the run's folder, beside comparison.json.
    """
    try:
        folder = free_path(cfg.output, default_name(cfg))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if observers:
        observers.show(folder)
    from dsgd.run.comparison import measured_timing, write_comparison

    codes = []
    for engine in ("ray", "sim"):
        output = replace(cfg.output, out=str(folder), run_name=engine)
        one = replace(cfg, engine=engine, output=output, ray=cfg.ray.on(engine))
        if engine == "sim":
            try:
                one = replace(one, timing=measured_timing(cfg.timing, folder / "ray"))
            except ValueError as error:
                raise UsageError(f"{error}; give the run more --steps") from None
        codes.append(run(one, started, interruptions, observers))
        if codes[-1]:
            return codes[-1]
        started = time.time()
    if not cfg.output.quiet:
        print_comparison(write_comparison(folder), Console(highlight=False))
    else:
        write_comparison(folder)
    return max(codes)


class Run:
    """Follows a strategy's updates, has them recorded and evaluated, and knows when and why to stop."""

    def __init__(
        self,
        cfg: TrainConfig,
        workload: Workload,
        cluster: Engine,
        record: RunRecord,
        observers: Observers | None = None,
    ) -> None:
        self.weights = Weights(workload.objective.initial_weights(cfg.seed))
        self.weights.vector.setflags(write=False)
        self.stopped_by: StoppedBy = "budget"
        self.error: str | None = None
        self._cfg, self._cluster, self._record = cfg, cluster, record
        self._tally = Tally(cfg.num_workers, workload.samples_per_batch)
        self._evaluator = Evaluator(workload, background=cfg.engine == "ray")
        self._evaluation: dict[str, float | None] = {"loss": None, "accuracy": None}
        self._evaluated_version = -1
        self._last_evaluation_is_finite = True
        self._observers = observers
        self._metrics: RunMetrics | None = None

    def follow(self, updates: Iterator[Update], line: ProgressLine) -> None:
        """Take updates until the run is over; afterwards `stopped_by` and `error` say how it ended."""
        if self._observers and self._observers.exporter:
            exporter, path = self._observers.exporter, self._record.path
            self._metrics = exporter.run(self._cfg, path, self._cluster, self._tally)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # divergence is looked for, and named
                self.stopped_by = self._follow(updates, line)
        except TimeUp:
            self.stopped_by = "seconds"
        except KeyboardInterrupt:
            self.stopped_by = "interrupted"
        except (ClusterError, OSError, MemoryError) as error:
            self.stopped_by, self.error = "failed", one_line(error)
        except Exception as error:  # a mistake in a strategy: its author needs to see where
            traceback.print_exc()
            self.stopped_by, self.error = "failed", one_line(error)
        try:
            self._complete()
        except (OSError, MemoryError) as error:
            self.stopped_by, self.error = "failed", one_line(error)
        except Exception as error:  # the summary is written all the same
            traceback.print_exc()
            self.stopped_by, self.error = "failed", one_line(error)
        if self._metrics:
            self._metrics.finish()

    def _complete(self) -> None:
        """Evaluate the last weights, and write all that is known of the run but its summary."""
        try:
            if self._evaluated_version < self.weights.version:
                self._evaluate(last=True)
            self._collect_evaluations(wait=True)
        finally:
            self._record.close_streams()
        if self.stopped_by in ("budget", "seconds") and not self._last_evaluation_is_finite:
            self.stopped_by = "diverged"
            self.error = (
                f"the loss after the last update, {self.weights.version}, is not finite; "
                f"lower --lr (it is {self._cfg.lr:g})"
            )

    def draw_trace(self) -> None:
        """Have the record's trace drawn; without room for it the run has failed."""
        try:
            self._record.draw_trace()
        except (OSError, MemoryError) as error:
            if not self.error:
                self.stopped_by, self.error = "failed", one_line(error)

    def _follow(self, updates: Iterator[Update], line: ProgressLine) -> StoppedBy:
        cfg, tally, cluster, metrics = self._cfg, self._tally, self._cluster, self._metrics
        budget, evaluate_each = cfg.budget, cfg.stop.eval_every * cfg.num_workers or math.inf
        evaluate_at: float = evaluate_each
        self._evaluate()
        for update in updates:
            self.weights = update.weights
            tally.add(update)
            if metrics:
                metrics.add(update)
            self._record.update(update)
            if tally.last_loss is not None and not math.isfinite(tally.last_loss):
                return self._diverged(update)
            if tally.gradients >= evaluate_at:
                self._evaluate()
                evaluate_at += evaluate_each * ((tally.gradients - evaluate_at) // evaluate_each + 1)
            if self._evaluator.waiting and self._collect_evaluations():
                return "target-loss"
            line.show(tally, cluster.in_flight)
            if tally.gradients >= budget:
                return "budget"
        return "budget"  # the strategy spent it and ended by itself

    def _diverged(self, update: Update) -> StoppedBy:
        worker, loss = next(
            (d.worker, d.loss) for d in update.dones if d.loss is not None and not math.isfinite(d.loss)
        )
        self.error = (
            f"the loss of worker {worker} at update {update.weights.version} is {loss}; "
            f"lower --lr (it is {self._cfg.lr:g})"
        )
        return "diverged"

    def _evaluate(self, *, last: bool = False) -> None:
        tally = self._tally
        if self._evaluator.submit(self.weights, tally.last_update_s, tally.gradients, tally.bytes, last=last):
            self._evaluated_version = self.weights.version

    def _collect_evaluations(self, *, wait: bool = False) -> bool:
        """Record the evaluations that are ready; return whether one has reached the target loss."""
        target = self._cfg.stop.target_loss
        reached = False
        for evaluated in self._evaluator.finished(wait=wait):
            self._record.evaluation(evaluated)
            found = evaluated.found
            if self._metrics:
                self._metrics.evaluated(found.loss, found.accuracy)
            self._last_evaluation_is_finite = math.isfinite(found.loss)
            self._evaluation = {"loss": finite(found.loss), "accuracy": found.accuracy}
            reached |= target is not None and found.loss <= target
        return reached

    def summary(self) -> dict[str, Any]:
        """Return what summary.json says of this run, but for its wall times."""
        cfg = self._cfg
        counted = self._tally.summary(self._cluster)
        return {
            "mode": cfg.mode,
            "engine": cfg.engine,
            "num_workers": cfg.num_workers,
            "steps": cfg.steps,
            "seed": cfg.seed,
            "stopped_by": self.stopped_by,
            "error": self.error,
            "eval": self._evaluation,
            **counted,
            "theory": compare(cfg, counted),
        }


def one_line(error: object) -> str:
    """Return an error's message on one line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__


def report_error(error: object, exit_code: int) -> int:
    """Print an error as the command line does, and return the exit code."""
    print(f"main.py: {one_line(error)}", file=sys.stderr)
    return exit_code
