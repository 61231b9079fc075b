"""What a worker can be asked to do.

A task is a value: its fields are its parameters, and calling it computes what it stands for, for
several workers at once. On Ray each call has one worker (P = 1); the simulator hands over all the
tasks in flight, so a thousand small gradients cost one large matrix product.

A task has no state: the same task on the same shard, step and weights gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from data import Shard
    from model import Objective


class Task(Protocol):
    """A computation over one or more mini-batches; hashable and picklable."""

    @property
    def batches(self) -> int:
        """How many mini-batches it takes, and so by how much it moves the worker's clock."""

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute for P workers, of which the p-th has shards[p], is at mini-batch steps[p] and read w[p].

        w: float32, shape (P, D). Returns the mean mini-batch losses (P,) and the values (P, D).
        """


@dataclass(frozen=True)
class Gradient:
    """The gradient of one mini-batch's mean loss at the weights read."""

    batches: ClassVar[int] = 1

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor
    ) -> tuple[Tensor, Tensor]:
        return objective.loss_and_gradient(w, shards, steps)


gradient = Gradient()


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Plain or heavy-ball SGD for `batches` mini-batches from the weights read; returns the local weights.

    The local velocity starts at 0 in every task: a worker keeps nothing between two of them.
    """

    batches: int
    lr: float
    momentum: float = 0.0

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor
    ) -> tuple[Tensor, Tensor]:
        import torch

        total_loss, velocity = torch.zeros(len(shards), device=w.device), torch.zeros_like(w)
        for h in range(self.batches):
            loss, g = objective.loss_and_gradient(w, shards, [step + h for step in steps])
            velocity = self.momentum * velocity + g
            w = w - self.lr * velocity
            total_loss += loss
        return total_loss / self.batches, w
