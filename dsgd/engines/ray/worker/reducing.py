"""What a process of an all-reduce keeps: the weights, in two versions, and what its workers computed.

The weights stay here. All processes make the mean of the values together (`collective`), and each takes the
rule's step on its own copy, so all have the same bits. The version before stays until the next step: if a
process is lost meanwhile, the others try again from there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.core import chunked, slices
from dsgd.core.rules import Arrived, Chain, Reduction, Rule
from dsgd.core.weights import CHUNK, Vector, Weights
from dsgd.engines.ray.worker.collective import GroupBroken, Meeting, Order, ReducingGroup, join_store

_ROOM = 1024  # numbers: at most as many processes send values from where they are


class Reducing:
    """One process's part in the all-reduce. All is in main memory, except while the mean is made."""

    def __init__(self) -> None:
        self._versions: dict[int, Weights] = {}
        self._values: dict[int, Vector] = {}  # by worker
        self._mean = np.zeros(0, np.float32)  # of the last values that were averaged
        self._store: tuple[int, Any] | None = None  # its port, and itself
        self._group: tuple[int, ReducingGroup] | None = None  # its epoch, and itself
        self._left = -1  # the last epoch whose group this process has been asked to leave
        self._spare: list[Vector] = []  # memory of versions that are no longer kept

    # --- the group ------------------------------------------------------------------------------------------

    def leave(self, epoch: int) -> None:
        """Leave the group of this epoch, whatever it waits for; another thread than `step`'s calls this."""
        self._left = epoch

    def joined(self, meeting: Meeting) -> Any:
        """Return the store at which processes meet. Raises GroupBroken."""
        if not self._store or self._store[0] != meeting.port:
            self._store = meeting.port, join_store(meeting)
        return self._store[1]

    def _in_group(self, meeting: Meeting, rank: int, size: int) -> ReducingGroup:
        """Return the group of an epoch, which is formed if this process is not in it yet."""
        if self._group and self._group[0] == meeting.epoch:
            return self._group[1]
        self._drop()
        store, self._store = self.joined(meeting), None
        group = ReducingGroup(store, meeting, rank, size, lambda: self._left >= meeting.epoch)
        # Only now: where a group is not formed, a thread may hold up whoever uses the same store.
        self._store, self._group = (meeting.port, store), (meeting.epoch, group)
        return group

    def _drop(self) -> None:
        if self._group:
            self._group[1].drop()
            self._group = None

    # --- weights and values ---------------------------------------------------------------------------------

    def hold(self, version: int, vector: Vector, slots: Mapping[str, Vector]) -> None:
        """Begin with this version: vector (D,), and the rule's slots. They are copied."""
        own = {name: np.array(slot) for name, slot in slots.items()}
        self._versions, self._spare = {version: Weights(np.array(vector), version, own)}, []

    def weights(self, version: int) -> Weights:
        """Return one of the two last versions."""
        return self._versions[version]

    def place(self, worker: int, num_weights: int) -> Vector:
        """Return where the value (D,) of a worker's task is kept, for its next one to overwrite."""
        value = self._values.get(worker)
        if value is None or len(value) != num_weights:
            # With room behind it for the last slice, which may be filled up: so it is sent from where it is.
            value = self._values[worker] = np.zeros(num_weights + _ROOM, np.float32)[:num_weights]
        return value

    def value(self, worker: int) -> Vector:
        """Return the value (D,) of a worker's last task."""
        return self._values[worker]

    def step(
        self,
        version: int,
        rule: Rule,
        workers: Sequence[Sequence[int]],
        rank: int,
        order: Order,
        meeting: Meeting,
        measures: bool = True,
    ) -> list[float]:
        """Make the version after this one of the mean of all workers' values.

        workers: by rank, whose values each process has. meeting: the group, which is formed if need be.
        Returns, if it measures them, the distances of the values of this process's workers from the mean.
        Raises GroupBroken, and nothing has changed.
        """
        distances = self.average(workers, rank, order, meeting, measures)
        self.advance(version, rule)
        return distances

    def average(
        self, workers: Sequence[Sequence[int]], rank: int, order: Order, meeting: Meeting, measures: bool
    ) -> list[float]:
        """Make the mean of all workers' values, for `advance`; arguments, result and error as of `step`."""
        try:
            group = self._in_group(meeting, rank, len(workers))
            values = [self._tensor(worker).to(meeting.device) for worker in workers[rank]]
            mean = group.mean(values, workers, order)
        except GroupBroken:
            self._drop()
            raise
        self._mean = mean.cpu().numpy()
        return [_distance(value, mean) for value in values] if measures else []

    def squares(self, version: int, rule: Chain) -> float:
        """Return the sum of squares that the rule's clipping needs, of the mean that is here."""
        before = self._versions[version]
        found = rule.reduction(slices.chunks(before, [Arrived(self._mean, before)]))
        assert found.squares is not None
        return found.squares

    def advance(self, version: int, rule: Rule, whole: Reduction | None = None) -> None:
        """Make the version after this one of the mean.

        whole: what the rule needs to know of the whole, if this is a slice.
        """
        before, given = self._versions[version], self._mean
        self._keep_only(before)
        if whole is not None or not chunked.in_chunks(rule, len(given)):
            given = given.copy()  # a rule may keep it, and the next mean overwrites this one
        results = [Arrived(given, before)]
        if whole is None:
            after = chunked.combine(rule, before, results, self._fresh)
        else:
            after = rule.step(before, results, whole)
        if after.vector.base is None:
            after.vector.setflags(write=True)  # torch reads it where it is only if it could write
        self._versions[version + 1] = after

    def _tensor(self, worker: int) -> Tensor:
        """Return the value of a worker's last task, and the room behind it in the same memory."""
        value = self._values[worker]
        whole = value if value.base is None else value.base
        return torch.from_numpy(whole)[: len(value)]

    def _keep_only(self, w: Weights) -> None:
        """Drop all other versions, and use their memory again."""
        kept = {id(array) for array in (w.vector, *w.slots.values())}
        for other in self._versions.values():
            for array in {id(a): a for a in (other.vector, *other.slots.values())}.values():
                if id(array) not in kept and array.base is None:
                    self._spare.append(array)
        self._versions = {w.version: w}

    def _fresh(self) -> Vector:
        (w,) = self._versions.values()
        if not self._spare:
            return np.empty_like(w.vector)
        array = self._spare.pop()
        array.setflags(write=True)
        return array


def _distance(value: Tensor, mean: Tensor) -> float:
    """Return the Euclidean distance of two vectors (D,), without another one of their size."""
    squares = 0.0
    for lo in range(0, len(value), CHUNK):
        difference = value[lo : lo + CHUNK] - mean[lo : lo + CHUNK]
        squares += float(difference @ difference)
    return math.sqrt(squares)
