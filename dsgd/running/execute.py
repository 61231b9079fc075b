"""A run to its end: the one way in which the command line, experiments, labs, tests and notebooks run.

`execute` prints nothing. To see the run while it goes on, pass a `Watcher`; to keep it, pass a `RunRecord`;
the `Ended` that comes back says how it ended. A run that is to pause is a `RunKeeper` (keeper.py).
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.problem import ProblemError
from dsgd.core.protocol import ClusterError, Engine, Evaluated, WeightsLost
from dsgd.core.routing import routing_numbers
from dsgd.core.update_counts import finite
from dsgd.core.weights import Vector, Weights
from dsgd.data import make_workload
from dsgd.engines.open_cluster import open_cluster, require_room, wrapped_as_asked
from dsgd.metrics import Tally
from dsgd.models.workloads import code_of
from dsgd.process.endings import begin_here, end_if_copy
from dsgd.process.files import WriteError
from dsgd.process.interruptions import BetweenItems, Interruptions
from dsgd.process.outcomes import StoppedBy, cut, escaped, one_line
from dsgd.records.reader import read_meta
from dsgd.records.stores.store import forget_after
from dsgd.running.first_weights import first_weights
from dsgd.running.keeper import RunKeeper, Watcher
from dsgd.running.predict.predictions import compare
from dsgd.running.profiling import Profiling
from dsgd.running.resuming import require_same_start, resume_point, stores_of
from dsgd.running.run import Run
from dsgd.scenario.possible_faults import unmet
from dsgd.strategies import Strategy, strategy_of
from dsgd.transforms.carrying import carried_tensors, overflows

if TYPE_CHECKING:
    from dsgd.records.writer import RunRecord
    from dsgd.running.checkpoints.peer_store import PeerStore

LAST_UPDATE_S = 10.0
"""How long a run that is interrupted may take to end its update, so that its last checkpoint has it."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended, and its result."""

    cfg: TrainConfig
    stopped_by: StoppedBy
    error: str | None
    """One line, if it failed or diverged."""
    exception: BaseException | None
    """The error that ended it."""
    weights: Weights
    """The last version."""
    evaluations: Sequence[Evaluated]
    tally: Tally
    faults: Sequence[FaultSeen]
    """Those that were over, also before it was resumed."""
    cluster: Engine
    """As it was left: closed, but its counts can be read."""
    path: Path | None
    """The folder of the record, if there is one."""
    wall_s: float
    """Wall seconds from the first task to the last evaluation."""
    startup_s: float
    """Wall seconds from the start of the program, or of `execute`, to the first task."""
    written: Any = None
    """The summary as the record has it."""
    checkpoints_written: int = 0
    """In all places outside this process."""
    score_name: str = "accuracy"
    """What the score of a workload is called."""
    not_kept: Sequence[str] = ()
    """What of a workload's module is not kept, in a line each, as the run said at its beginning."""
    overflows: int | None = None
    """How many gradients overflowed in float16 and were left out; None where none is computed so."""
    notes: Sequence[str] = ()
    """What went wrong with checkpoints and evaluations, in a line each; the run went on."""

    @cached_property
    def summary(self) -> Any:
        """What summary.json says of the run; weights_sha256 only where it was written."""
        return self.written if self.written is not None else _summary(self)

    @property
    def traceback(self) -> str:
        """Where in a strategy, or in dsgd, a mistake was made; empty if that did not end the run. The record
        has the whole of a long one, and of an error whose line says where it was made.
        """
        return _tracebacks(self.exception, self.path and self.path / "logs" / "driver.txt")[1]


def _tracebacks(error: BaseException | None, file: Path | None = None) -> tuple[str, str]:
    """Return where an error was made, and what is shown of it. file: has all of a long one."""
    if error is None or isinstance(error, ClusterError | OSError | MemoryError):
        return "", ""
    whole = escaped("".join(traceback.format_exception(error)))
    return whole, "" if isinstance(error, ProblemError) else cut(whole, file)


def _summary(ended: Ended) -> dict[str, Any]:
    """Return what summary.json says of a run, except for what the record adds."""
    cfg = ended.cfg
    counted = ended.tally.summary(ended.cluster)
    found = ended.evaluations[-1].found if ended.evaluations else None
    return {
        "mode": cfg.mode,
        "engine": cfg.engine,
        "num_workers": cfg.num_workers,
        "steps": cfg.steps,
        "seed": cfg.seed,
        "stopped_by": ended.stopped_by,
        "error": ended.error,
        "eval": {
            "loss": finite(found.loss) if found else None,
            "accuracy": found.accuracy if found else None,
            **({"score_name": ended.score_name} if ended.score_name != "accuracy" else {}),
            "bits_per_byte": finite(found.bits_per_byte) if found else None,
            "perplexity": finite(found.perplexity) if found else None,
            "experts": routing_numbers(found.experts) if found else None,
        },
        **counted,
        **({"overflows": ended.overflows} if ended.overflows is not None else {}),
        "theory": compare(
            cfg,
            counted,
            ended.tally.totals,
            ended.stopped_by,
            restarts=sum(ended.cluster.restarts),
            faults=ended.faults,
        ),
        "wall_s": ended.wall_s,
        "startup_s": ended.startup_s,
    }


def execute(
    cfg: TrainConfig,
    watchers: Iterable[Watcher] = (),
    *,
    record: RunRecord | None = None,
    strategy: Strategy | None = None,
    interruptions: Interruptions | None = None,
    started: float | None = None,
    evaluate: bool = True,
    resume: str | None = None,
    engine: Engine | None = None,
) -> Ended:
    """Run one configuration on one engine, to its end.

    record: keeps the run in a folder; without one, nothing is written.
    strategy: trains; the one of the configuration's mode, unless given.
    interruptions: handles the signals, if the caller has entered it; they then end a run between two updates.
    started: when the program started, in seconds of `time.monotonic`, if earlier than now.
    evaluate: whether the weights are evaluated; a target loss needs it.
    resume: how the run that `record` is of ended: it goes on from its newest whole checkpoint, or from its
    beginning without any.
    engine: runs it and stays open; without one, the engine that the configuration names is opened and closed.

    An error after the workers are ready ends the run, and is in what is returned. Raises ValueError for
    options that prove impossible before that, ClusterError if the workers cannot be started and
    KeyboardInterrupt if their start is interrupted; nothing is written then.
    """
    begin_here()
    now_s = time.monotonic()
    started = now_s if started is None else started
    started_epoch_s = time.time() - (now_s - started)  # noqa: TID251 - a label
    interruptions = interruptions or Interruptions()
    recorded = read_meta(record.path).workload if record and resume else None
    profiled = cfg.output.profiled
    watchers = (*watchers, *([Profiling(*profiled)] if profiled else []))
    with opened(
        cfg, strategy, record=record, interruptions=interruptions, engine=engine, recorded=recorded
    ) as run:
        keeper, first = RunKeeper(run, record, watchers, evaluate=evaluate), run.weights.vector
        interruptions.hold()  # a record that is begun will be completed
        try:
            if record and resume:
                facts = {"digest": keeper.digest, "device": run.engine.device}
                point = resume_point(cfg, record.path, run.places, keeper.known, resume, **facts)
                if point.state is None:
                    require_same_start(cfg, record.path, first)
                keeper.go_on(point, started_epoch_s)
            elif record:
                if "peer" in run.places:  # a run of that name, whose record is gone, was killed
                    forget_after(run.places["peer"], None)
                record.open(
                    started=started_epoch_s,
                    cluster=run.engine,
                    weights=first if cfg.checkpoint.init_from else None,
                    about=run.workload.known,
                )
            return Finishing(keeper).to_the_end(interruptions, started)
        finally:
            keeper.folder.restore()
            if record:
                record.release()


@contextmanager
def opened(
    cfg: TrainConfig,
    strategy: Strategy | None = None,
    *,
    record: RunRecord | None = None,
    interruptions: Interruptions | None = None,
    engine: Engine | None = None,
    recorded: Mapping[str, Any] | None = None,
) -> Iterator[Run]:
    """Start the engine that a configuration names, and yield a run on it that has not begun.

    recorded: of a run that goes on, what its record says of the workload. Other parameters and errors are
    those of `execute`.
    """
    strategy = strategy or strategy_of(cfg)
    require_room(cfg)
    workload = make_workload(cfg, recorded=recorded)
    end_if_copy()
    if workload.objective.in_own_process:
        require_room(cfg, workload.objective.num_weights)
    first = first_weights(cfg, workload)
    own = [strategy] if cfg.strategy_file else []
    if cfg.data.module is not None:
        own.append(code_of(cfg.data.module))
    ready = nullcontext(wrapped_as_asked(cfg, workload, engine)) if engine else None
    with ready or open_cluster(cfg, workload, interruptions, own) as cluster:
        yield Run(cfg, workload, cluster, strategy, first=first, places=stores_of(cfg, record))


class Finishing:
    """Takes a run that is kept to its end, and completes what is kept of it, whatever ended it."""

    def __init__(self, keeper: RunKeeper) -> None:
        self._keeper, self._run, self._record = keeper, keeper.run, keeper.record
        self._exception: BaseException | None = None
        self._is_between = False
        """Whether the run was interrupted between two updates, where a checkpoint can be taken."""
        self._late: list[str] = []
        self._carried: Mapping[str, Vector] = {}
        self._overflows: int | None = None

    def to_the_end(self, interruptions: Interruptions, started: float) -> Ended:
        """Take updates until the run is over, and complete its record."""
        keeper, run, train = self._keeper, self._run, self._run.train
        patience_s = LAST_UPDATE_S if any(tier.store for tier in keeper.checkpoints.tiers) else 0.0
        run.train = lambda *arguments: interruptions.between(train(*arguments), patience_s)
        startup_s, began_s = time.monotonic() - started, time.monotonic()
        try:
            keeper.advance()
        except BaseException as error:  # a user's code may call sys.exit(), and raise KeyboardInterrupt
            end_if_copy(error)
            if isinstance(error, KeyboardInterrupt) and interruptions.came:
                run.end("interrupted")
                self._is_between = isinstance(error, BetweenItems)
            else:
                self._fail(error)
        end_if_copy()
        for complete in (
            self._checkpoint_the_last,
            lambda: self._late.extend(run.engine.ended()),
            run.faults.take,
            self._fetch_the_last,
            keeper.evaluations.submit_last,
            lambda: keeper.evaluations.collect(wait=True),
            self._end_watchers,
            self._close_streams,
            self._keep_logs,
        ):
            try:
                complete()
            except BaseException as error:  # the summary is written nevertheless
                end_if_copy(error)
                if isinstance(error, KeyboardInterrupt) and interruptions.came:
                    raise
                self._fail(error)
            keeper.folder.restore()
        self._look_at_the_last_loss()
        wall_s, written = time.monotonic() - began_s, None
        if record := self._record:
            try:
                record.draw_trace()
            except (OSError, MemoryError) as error:
                if not run.error:  # a run that diverged has diverged, with or without its trace
                    self._fail(error)
            try:
                summary = self._ended(wall_s, startup_s).summary
                written = record.close(run.weights.vector, summary, self._carried)
            except OSError as error:
                self._fail(error)
        return self._ended(wall_s, startup_s, written)

    def _fail(self, error: BaseException) -> None:
        """Note why the run failed; of several errors the first is the cause."""
        if self._exception is None:
            self._exception = error
            said = "the record is not complete: " if isinstance(error, WriteError) else ""
            self._run.end("failed", said + one_line(error))

    def _checkpoint_the_last(self) -> None:
        """Take a checkpoint of the end, from which the run can go on, and finish what is being written."""
        keeper, has_result = self._keeper, self._run.over in ("budget", "target-loss")
        if (has_result or self._is_between) and self._record:
            self._record.flush()
            keeper.checkpoints.take_last(keeper.state)
        keeper.checkpoints.close()
        if has_result and (peer := self._run.places.get("peer")):
            cast("PeerStore", peer).close()  # nobody will go on from there
        for store in self._run.faulty:
            self._late += store.end()

    def _fetch_the_last(self) -> None:
        """Have the last weights here, and what is carried: afterwards no process is left that has them."""
        run = self._run
        try:
            run.fetch()
        except WeightsLost as lost:
            self._fail(lost)
            run.weights = run.weights_here
            run.error = f"{run.error} (weights.npy: version {run.weights.version})"
        state = cache(run.engine.state)
        self._carried = carried_tensors(run.workload.objective, state)
        self._overflows = overflows(run.workload.objective, state)

    def _end_watchers(self) -> None:
        for watcher in self._keeper.watchers:
            watcher.ended()

    def _close_streams(self) -> None:
        if self._record:
            self._record.close_streams()

    def _keep_logs(self) -> None:
        """Have the logs of processes that will be gone beside the record."""
        if self._record:
            engine = self._run.engine
            whole, shown = _tracebacks(self._exception)
            if shown != whole:
                self._record.keep_logs({"driver": whole})
            something_died = self._run.over == "failed" or any(engine.restarts)
            self._record.keep_logs(engine.process_logs(wait=something_died))

    def _look_at_the_last_loss(self) -> None:
        """Detect divergence in the last update, which no later update shows, by its evaluation."""
        run, found = self._run, self._keeper.evaluations.found
        if run.over in ("budget", "seconds") and found and not math.isfinite(found[-1].found.loss):
            of = f"the loss after the last update, {run.weights.version}"
            run.end("diverged", f"{of}, is not finite; lower --lr (it is {run.cfg.lr:g})")

    def _ended(self, wall_s: float, startup_s: float, written: Any = None) -> Ended:
        keeper, run, late, over = self._keeper, self._run, unmet(self._late), self._overflows
        assert run.over
        overflowed = [f"gradients that overflowed in float16, and were left out: {over}"] if over else []
        return Ended(
            cfg=run.cfg,
            stopped_by=run.over,
            error=run.error,
            exception=self._exception,
            weights=run.weights,
            evaluations=keeper.evaluations.found,
            tally=run.tally,
            faults=run.faults.noted,
            cluster=run.engine,
            path=self._record.path if self._record else None,
            wall_s=wall_s,
            startup_s=startup_s,
            written=written,
            checkpoints_written=sum(tier.written for tier in keeper.checkpoints.tiers),
            score_name=run.workload.about.get("score_name", "accuracy"),
            not_kept=run.workload.objective.trial.notes,
            overflows=over,
            notes=(
                *overflowed,
                *keeper.skipped,
                *keeper.checkpoints.notes(),
                *keeper.evaluations.notes,
                *late,
            ),
        )
