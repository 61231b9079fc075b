"""Evaluates weights off the clock: no update ever waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from dsgd.checkpoints.run_state import DueEvaluation
from dsgd.cluster import EvaluationLost
from dsgd.work.model import Evaluation
from dsgd.work.weights import Vector, Weights

_MOST_WAITING = 8  # each keeps a version of the weights in memory


class Evaluated(NamedTuple):
    """An evaluation, and the weights it is of."""

    version: int
    t_s: float
    gradients: int
    bytes: int
    found: Evaluation


class Evaluator:
    """Has weights evaluated while the run goes on or, where the clock is virtual and does not wait, at once.

    evaluate: returns the evaluation of weights (D,), or raises EvaluationLost.
    With `background`, an evaluation that is due while several others wait is left out.
    """

    def __init__(self, evaluate: Callable[[Vector], Evaluation | None], *, background: bool) -> None:
        self._evaluate = evaluate
        self.notes: list[str] = []
        """A line for each evaluation that was lost."""
        self._pool = ThreadPoolExecutor(1) if background else None
        self._waiting: deque[tuple[Weights, float, int, int, Future[Evaluation | None]]] = deque()

    @property
    def waiting(self) -> bool:
        """Whether any evaluation has not been taken by `finished`."""
        return bool(self._waiting)

    def submit(self, w: Weights, t_s: float, gradients: int, num_bytes: int, *, last: bool = False) -> bool:
        """Have the weights `w` evaluated, current at `t_s` seconds after `gradients` mini-batches and
        `num_bytes` bytes.

        Returns whether they will be; the `last` weights of a run are, however many others wait.
        """
        if len(self._waiting) >= _MOST_WAITING and not last:
            return False
        future: Future[Evaluation | None]
        if self._pool:
            future = self._pool.submit(self._evaluate, w.vector)
        else:
            future = Future()
            future.set_result(self._evaluate(w.vector))
        self._waiting.append((w, t_s, gradients, num_bytes, future))
        return True

    def due(self) -> list[DueEvaluation]:
        """Return those that were submitted and not taken by `finished`."""
        return [DueEvaluation(w, t_s, gradients, sent) for w, t_s, gradients, sent, _ in self._waiting]

    def forget(self) -> None:
        """Drop all that were submitted and not taken."""
        self._waiting.clear()

    def finished(self, *, wait: bool = False) -> list[Evaluated]:
        """Return the evaluations that are ready, or with `wait` all of them, in the order submitted."""
        found = []
        while self._waiting and (wait or self._waiting[0][-1].done()):
            w, t_s, gradients, num_bytes, future = self._waiting.popleft()
            try:
                evaluation = future.result()
            except EvaluationLost as lost:
                self.notes.append(f"the evaluation of version {w.version} was lost: {lost}")
                continue
            if evaluation:
                found.append(Evaluated(w.version, t_s, gradients, num_bytes, evaluation))
        return found
