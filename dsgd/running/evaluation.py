"""The evaluations of a run, off its clock: no update ever waits for one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dsgd.core.model import Evaluation
from dsgd.core.protocol import Done, Evaluated, EvaluationLost
from dsgd.core.routing import MOST_WORKERS, Loads
from dsgd.core.weights import Vector
from dsgd.running.checkpoints.run_state import DueEvaluation, RunState
from dsgd.transforms.carrying import carried_by_first, with_bits

if TYPE_CHECKING:
    from dsgd.running.run import Run

_MOST_WAITING = 8  # each keeps a version of the weights in memory


class _Made(NamedTuple):
    """An evaluation that was made at once: a Future would cost as much as a small run's update."""

    found: Evaluation | None

    def done(self) -> bool:
        return True

    def result(self) -> Evaluation | None:
        return self.found


class _Waiting(NamedTuple):
    """An evaluation that was submitted, and the loads that the workers' gradients show."""

    due: DueEvaluation
    loads: Mapping[int, Loads] | None
    future: Future[Evaluation | None] | _Made


class Evaluations:
    """When evaluations are due, which of them wait, and what was found.

    On Ray a thread makes them while the run goes on, and one that is due while several others wait is left
    out. In the simulator, whose clock does not wait, they are made at once. evaluate: without, none is made.
    """

    def __init__(self, run: Run, *, evaluate: bool) -> None:
        self.found: list[Evaluated] = []
        self.on_found: list[Callable[[Evaluated], None]] = []
        self.notes: list[str] = []
        """A line for each evaluation that was lost."""
        self.version = -1
        """The newest that was evaluated, or is being evaluated."""
        self._each = self.at = run.cfg.stop.eval_every * run.cfg.num_workers or math.inf
        """Applied mini-batches at which the next is due."""
        self._run, self._evaluates = run, evaluate
        self._evaluate = partial(run.engine.evaluate, run.workload)
        self._pool = ThreadPoolExecutor(1) if evaluate and run.cfg.engine == "ray" else None
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> bool:
        """Whether any was submitted and not collected."""
        return bool(self._waiting)

    def submit(self, dones: Sequence[Done] = (), *, last: bool = False) -> None:
        """Have the run's weights evaluated; dones: the tasks of the update that made them, if at hand.

        The `last` weights of a run are, however many others wait.
        """
        run, tally = self._run, self._run.tally
        if not self._evaluates or (len(self._waiting) >= _MOST_WAITING and not last):
            return
        run.fetch()
        sent = run.engine.traffic.total
        try:
            carried = carried_by_first(run.workload.objective, run.engine.state)
        except OSError as error:  # with its machine; a task may be making it again
            self.notes.append(f"the evaluation of version {run.weights.version} was lost: {error}")
            return
        due = DueEvaluation(run.weights, tally.last_update_s, tally.gradients, sent, carried)
        self._submit(due, *self._of_workers(dones))
        self.version = run.weights.version

    def _submit(
        self,
        due: DueEvaluation,
        models: Mapping[int, Vector] | None = None,
        loads: Mapping[int, Loads] | None = None,
    ) -> None:
        asked = with_bits(due.weights.vector, due.carried), models
        future = self._pool.submit(self._evaluate, *asked) if self._pool else _Made(self._evaluate(*asked))
        self._waiting.append(_Waiting(due, loads, future))

    def _of_workers(self, dones: Sequence[Done]) -> tuple[dict[int, Vector] | None, dict[int, Loads] | None]:
        """Return, by worker, the weights (D,) that tasks have returned, or the loads that their gradients
        show.

        Both None without experts, and where values do not leave the workers as they were computed:
        compressed, and in parts.
        """
        cfg, objective = self._run.cfg, self._run.workload.objective
        whole = cfg.compression.results is None and cfg.traits.sends != "neither"
        if not (objective.has_experts and whole and dones):
            return None, None
        last = sorted({done.worker: done for done in dones}.items())[:MOST_WORKERS]
        values = self._run.engine.values([done for _, done in last])
        if cfg.traits.returns_weights:  # their memory is used again
            return {worker: value.copy() for worker, value in values.items()}, None
        loads = {worker: objective.loads_in(value) for worker, value in values.items()}
        return None, {worker: load for worker, load in loads.items() if load}

    def submit_last(self, dones: Sequence[Done] = ()) -> None:
        """Have the last weights evaluated, unless they were."""
        if self.version < self._run.weights.version:
            self.submit(dones, last=True)

    def postpone(self) -> None:
        """Have the next be due an interval later than the one that was, or several."""
        self.at += self._each * ((self._run.tally.gradients - self.at) // self._each + 1)

    def collect(self, *, wait: bool = False) -> bool:
        """Take those that are ready, or with `wait` all, in the order submitted; return whether one has
        reached the target loss.
        """
        before = len(self.found)
        while self._waiting and (wait or self._waiting[0].future.done()):
            (w, t_s, gradients, sent, _), loads, future = self._waiting.popleft()
            try:
                found = future.result()
            except EvaluationLost as lost:
                self.notes.append(f"the evaluation of version {w.version} was lost: {lost}")
                continue
            if found and found.experts and loads:
                found = found._replace(experts=found.experts._replace(workers=loads))
            if found:
                evaluated = Evaluated(w.version, t_s, gradients, sent, found)
                self.found.append(evaluated)
                for see in self.on_found:
                    see(evaluated)
        return self.is_at_target(before)

    def is_at_target(self, since: int = 0) -> bool:
        """Whether any, after the first `since`, has reached the target loss."""
        target = self._run.cfg.stop.target_loss
        return target is not None and any(evaluated.found.loss <= target for evaluated in self.found[since:])

    def state(self) -> dict[str, Any]:
        """Return its part of a RunState."""
        due = [waiting.due for waiting in self._waiting]
        part = {"evaluations": due, "collected": len(self.found)}
        return {**part, "evaluate_at": self.at, "evaluated_version": self.version}

    def go_to(self, state: RunState) -> None:
        """Go to a state; what was found later is dropped."""
        self.at, self.version = state.evaluate_at, state.evaluated_version
        del self.found[state.collected :]
        self._waiting.clear()
        if self._evaluates:
            for due in state.evaluations:
                self._submit(due)
