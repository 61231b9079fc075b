"""What a user's module changes besides its weights, as a part of each worker's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from dsgd.core.cluster_state import ClusterState
from dsgd.core.model import Objective
from dsgd.core.problem import TrialGradient
from dsgd.core.protocol import Done, Engine
from dsgd.core.rules import Chain, Rule
from dsgd.core.tasks import Task
from dsgd.core.weights import LEFT_OUT, LOSS_SCALE, Vector, Weights
from dsgd.transforms.mislabelled import PassedOn
from dsgd.transforms.wrapped_engine import WrappedEngine

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.shards import Shard


class Carries(Protocol):
    """An objective whose module carries tensors from task to task; their bits are rows (rows, D)."""

    def take_up(self, names: Sequence[str], bits: Tensor) -> None:
        """Have these tensors be what a worker's last task has left."""

    def left(self, device: str) -> Tensor:
        """Return the bits of the same tensors as they are now."""

    def carried(self, bits: Vector) -> dict[str, Any]:
        """Return the tensors that the bits stand for, as arrays by name."""

    def gradients_left_out(self, bits: Vector) -> int:
        """Return how many gradients had overflowed when the bits were left."""


@dataclass(frozen=True)
class Carrying(PassedOn):
    """A task that begins with the tensors of the module as the worker's last one has left them.

    names: of these tensors. rows: how many vectors (D,) they take, the first ones of the state.
    """

    names: tuple[str, ...]
    rows: int

    @property
    def state_rows(self) -> int:
        return self.rows + self.task.state_rows

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        assert len(shards) == 1, "modules compute one worker at a time"
        carries = cast(Carries, objective)
        carries.take_up(self.names, state[0, : self.rows])
        losses, values, kept = self.task(objective, shards, steps, w, state[:, self.rows :])
        return losses, values, torch.cat([carries.left(str(w.device))[None], kept], dim=1)


class CarriedBetweenTasks(WrappedEngine):
    """Has every task carry on with what a trial gradient has changed in the module, and every rule leave
    alone what no gradient reaches, if the trial did not reach everything.
    """

    def __init__(self, inner: Engine, trial: TrialGradient) -> None:
        super().__init__(inner)
        self._trial = trial
        self._rule: Rule | None = None

    def combine(self, rule: Rule, w: Weights, dones: Sequence[Done]) -> Weights:
        if rule is not self._rule:
            self._rule = self._changed = rule
            if LEFT_OUT in self._trial.carried and isinstance(rule, Chain):
                self._changed = rule.leaving_out()
        return self.inner.combine(self._changed, w, dones)

    def start(self, worker: int, task: Task, w: Weights) -> None:
        self.inner.start(worker, Carrying(task, self._trial.carried, self._trial.rows), w)


def carried_by_first(objective: Objective, state: Callable[[], ClusterState]) -> Vector | None:
    """Return the bits (rows, D) of what the module of the first member carries, which is what is evaluated.

    None where no task of a member has left any. state: asked only of a module that carries something.
    """
    if rows := objective.trial.rows:
        cluster = state()
        for worker in cluster.workers:
            if worker in cluster.states:
                return cluster.states[worker][:rows].copy()
    return None


def carried_tensors(objective: Objective, state: Callable[[], ClusterState]) -> dict[str, Any]:
    """Return the same as arrays by name."""
    bits = carried_by_first(objective, state)
    return {} if bits is None else cast(Carries, objective).carried(bits)


def overflows(objective: Objective, state: Callable[[], ClusterState]) -> int | None:
    """Return how many gradients overflowed in float16 and were left out; None where none is computed so."""
    trial = objective.trial
    if LOSS_SCALE not in trial.carried:
        return None
    carries = cast(Carries, objective)
    return sum(carries.gradients_left_out(kept[: trial.rows]) for kept in state().states.values())


def with_bits(w: Vector, carried: Vector | None) -> Vector:
    """Return weights (D,) and the bits (rows, D) behind them, as `Objective.evaluate` takes them."""
    return w if carried is None else np.concatenate((w, carried.ravel()))
