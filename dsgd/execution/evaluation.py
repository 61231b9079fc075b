"""Evaluates weights off the clock: no update ever waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

from dsgd.checkpoints.run_state import DueEvaluation
from dsgd.cluster import Done, Engine, EvaluationLost
from dsgd.config import TrainConfig
from dsgd.work.model import Evaluation, Objective
from dsgd.work.routing import MOST_WORKERS, Loads
from dsgd.work.weights import Vector, Weights

_MOST_WAITING = 8  # each keeps a version of the weights in memory


Models: TypeAlias = Mapping[int, Vector] | None


class _Waiting(NamedTuple):
    """An evaluation that was submitted."""

    weights: Weights
    t_s: float
    gradients: int
    bytes: int
    loads: Mapping[int, Loads] | None
    future: Future[Evaluation | None]


class Evaluated(NamedTuple):
    """An evaluation, and the weights it is of."""

    version: int
    t_s: float
    gradients: int
    bytes: int
    found: Evaluation


def of_workers(
    cfg: TrainConfig, objective: Objective, cluster: Engine, dones: Sequence[Done]
) -> tuple[dict[int, Vector] | None, dict[int, Loads] | None]:
    """Return, by worker, the weights (D,) that tasks have returned, or the loads that their gradients show.

    Both None without experts, and where values do not leave the workers as they were computed: compressed,
    and in parts.
    """
    whole = cfg.compression.results is None and (cfg.returns_weights or cfg.sends == "gradients")
    if not (objective.has_experts and whole and dones):
        return None, None
    last = sorted({done.worker: done for done in dones}.items())[:MOST_WORKERS]
    values = cluster.values([done for _, done in last])
    if cfg.returns_weights:
        return {worker: value.copy() for worker, value in values.items()}, None  # its memory is used again
    loads = {worker: objective.loads_in(value) for worker, value in values.items()}
    return None, {worker: load for worker, load in loads.items() if load}


class Evaluator:
    """Has weights evaluated while the run goes on or, where the clock is virtual and does not wait, at once.

    evaluate: returns the evaluation of weights (D,), given the workers' own, or raises EvaluationLost.
    With `background`, an evaluation that is due while several others wait is left out.
    """

    def __init__(self, evaluate: Callable[[Vector, Models], Evaluation | None], *, background: bool) -> None:
        self._evaluate = evaluate
        self.notes: list[str] = []
        """A line for each evaluation that was lost."""
        self._pool = ThreadPoolExecutor(1) if background else None
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> bool:
        """Whether any evaluation has not been taken by `finished`."""
        return bool(self._waiting)

    def submit(
        self,
        w: Weights,
        t_s: float,
        gradients: int,
        num_bytes: int,
        *,
        last: bool = False,
        models: Models = None,
        loads: Mapping[int, Loads] | None = None,
    ) -> bool:
        """Have the weights `w` evaluated, current at `t_s` seconds after `gradients` mini-batches and
        `num_bytes` bytes.

        models: of workers, their own weights (D,), if they are to be compared. loads: those of their experts.
        Returns whether they will be; the `last` weights of a run are, however many others wait.
        """
        if len(self._waiting) >= _MOST_WAITING and not last:
            return False
        future: Future[Evaluation | None]
        if self._pool:
            future = self._pool.submit(self._evaluate, w.vector, models)
        else:
            future = Future()
            future.set_result(self._evaluate(w.vector, models))
        self._waiting.append(_Waiting(w, t_s, gradients, num_bytes, loads, future))
        return True

    def due(self) -> list[DueEvaluation]:
        """Return those that were submitted and not taken by `finished`."""
        return [DueEvaluation(w, t_s, gradients, sent) for w, t_s, gradients, sent, *_ in self._waiting]

    def forget(self) -> None:
        """Drop all that were submitted and not taken."""
        self._waiting.clear()

    def finished(self, *, wait: bool = False) -> list[Evaluated]:
        """Return the evaluations that are ready, or with `wait` all of them, in the order submitted."""
        found = []
        while self._waiting and (wait or self._waiting[0].future.done()):
            w, t_s, gradients, num_bytes, loads, future = self._waiting.popleft()
            try:
                evaluation = future.result()
            except EvaluationLost as lost:
                self.notes.append(f"the evaluation of version {w.version} was lost: {lost}")
                continue
            if evaluation and evaluation.experts and loads:
                use = evaluation.experts._replace(workers=loads)
                evaluation = evaluation._replace(experts=use)
            if evaluation:
                found.append(Evaluated(w.version, t_s, gradients, num_bytes, evaluation))
        return found
