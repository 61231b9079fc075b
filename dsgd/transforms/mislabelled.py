"""Tasks on data whose labels have been turned round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsgd.core.model import Classifier, Objective
from dsgd.core.problem import labels
from dsgd.core.tasks import TaskAround, value_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.core.shards import Shard


_MAY_HAVE = ("relative", "part", "late", "asks_for_own")
"""What else is asked of a task that has it."""


@dataclass(frozen=True)
class PassedOn(TaskAround):
    """A task around another one that passes its value on."""

    def value_bytes(self, num_weights: int) -> int:
        return value_bytes(self.task, num_weights)

    def __getattr__(self, name: str) -> Any:
        if name in _MAY_HAVE:
            return getattr(self.task, name)
        raise AttributeError(name)


@dataclass(frozen=True)
class LabelsFlipped(PassedOn):
    """A task whose worker takes class y of C classes for C - 1 - y.

    Only in mini-batches with numbers from `first` up to, but not including, `end`; None: in all later ones.
    """

    classes: int
    first: int = 0
    end: int | None = None

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        flipped = [MislabelledShard(shard, self) for shard in shards]
        return self.task(objective, flipped, steps, w, state)  # type: ignore[arg-type]

    def concerns(self, step: int) -> bool:
        """Whether the mini-batch with this number has wrong labels."""
        return step >= self.first and (self.end is None or step < self.end)


class MislabelledShard:
    """A worker's share of the data, with wrong labels where `how` says so."""

    def __init__(self, shard: Any, how: LabelsFlipped) -> None:
        self._shard, self._how = shard, how
        self.batch_size = getattr(shard, "batch_size", 0)
        self.device = getattr(shard, "device", "cpu")

    @staticmethod
    def batches(shards: Sequence[MislabelledShard], steps: Sequence[int]) -> tuple[Any, ...]:
        """Return the mini-batches, labels y (P, B) second."""
        x, y = shards[0]._shard.batches([shard._shard for shard in shards], steps)
        wrong = y.new_tensor([shard._how.concerns(step) for shard, step in zip(shards, steps, strict=True)])
        last = shards[0]._how.classes - 1
        return x, y + wrong[:, None] * (last - 2 * y)

    def parts(
        self, step: int, count: int, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[float, tuple[Any, ...]]]:
        """Yield a rank's part of a module's mini-batch in parts, as its shard does."""
        for share, (x, y, *rest) in self._shard.parts(step, count, rank, ranks):
            yield share, (x, self._how.classes - 1 - y if self._how.concerns(step) else y, *rest)

    def torch_seed(self, step: int, rank: int = 0) -> int:
        """Return what torch's generator is seeded with for a module's gradient."""
        seed: int = self._shard.torch_seed(step, rank)
        return seed


def num_classes(objective: Objective) -> int | None:
    """Return how many classes the labels have; None where there are none."""
    if isinstance(objective, Classifier):
        return max(2, objective.sizes[-1])
    problem = getattr(objective, "problem", None)
    found = None if problem is None else labels(problem.train)
    return None if found is None else int(found.max()) + 1
