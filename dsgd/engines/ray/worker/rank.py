"""What each rank of a group does, the leader and its followers alike: a task on its slice of the vectors."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dsgd.core import slices
from dsgd.core.problem import TrialGradient
from dsgd.core.rules import Reduction
from dsgd.core.tasks import Task
from dsgd.core.weights import Vector
from dsgd.engines.ray.transport.messages import TASKS_KEPT, CarriedShards
from dsgd.engines.ray.worker.collective import GroupBroken
from dsgd.engines.ray.worker.rank_meeting import LOCAL, RankMeeting, meet
from dsgd.engines.ray.worker.reducing import Reducing
from dsgd.engines.task_values import compute_alone
from dsgd.models.objectives.group_objective import GroupObjective, Membership
from dsgd.models.objectives.module_objective import ModuleObjective
from dsgd.models.objectives.rank_layout import RankLayout
from dsgd.scenario.group_options import GroupConfig
from dsgd.transforms.compressed import AsMessage, AsPart, to_send


class RankTask(NamedTuple):
    """A task for all ranks of a group."""

    pickled: bytes
    worker: int
    step: int
    version: int | None = None
    """Of the weights, if the ranks have them (all-reduce)."""
    keep: bool = False
    """Whether the values stay with the ranks (all-reduce)."""
    goes_on: bool = False
    """Whether it begins with the state that the task before it has left in each rank."""


class Computed(NamedTuple):
    """What a rank has computed: the loss of the whole mini-batch, and slices of the value and the state.

    Without slices: another rank has the same ones, or they stay where they are.
    """

    loss: float
    value: Vector | None
    """(d,)"""
    kept: Vector | None
    """(rows, d)"""


class RankStep(NamedTuple):
    """What a rank has done of a step of an all-reduce."""

    distances: Sequence[float]
    """Of its slices of the workers' values from that of their mean."""
    broken: str
    """Why the group is broken; empty if it is not."""
    squares: float | None = None
    """The sum of squares over its slice that the rule needs to know of the whole; None: the step is taken."""


class Rank:
    """One rank. Whatever any rank raises ends the group: the others may wait for this one."""

    def __init__(self, objective: ModuleObjective, device: str, asked: GroupConfig, rank: int) -> None:
        self._module, self._device, self._rank = objective, device, rank
        self._membership = Membership(
            rank=rank,
            ranks=asked.ranks_per_worker,
            parallel=asked.parallel,
            device=device,
            expert_parallel=asked.parsed_parallel.experts,
            recompute_activations=asked.recompute_activations,
        )
        self.layout = RankLayout(objective.shapes, self._membership.slices)
        self.shards = CarriedShards(device)
        self._objective: GroupObjective | None = None
        self._task = lru_cache(TASKS_KEPT)(_elementwise)
        self._left: Vector | None = None  # (rows, d), by the last task that leaves a state
        self._reducing = Reducing()

    def join(self, meeting: RankMeeting, own_address: str, store: Any = None) -> int:
        """Join the group and get ready to compute with it; return the process id."""
        self._own_address = own_address
        meet(meeting, self._rank, own_address, store)
        self._objective = GroupObjective(self._module, self._membership)
        del self._module
        return os.getpid()

    def try_out(self, worker: int) -> TrialGradient:
        """See that the group can compute a gradient, which also gets all ready for the next."""
        self._formed.try_out(self.shards.of(worker))
        return self._formed.trial

    def run(self, order: RankTask, vector: Vector | None, state: Vector | None) -> Computed:
        """Compute a task.

        vector: the whole weights (D,), None if the ranks have them. state: this rank's slice (rows, d) of
        what the worker's last such task left; None in its first, and where the order says that it is here.
        """
        task, place = self._task(order.pickled), None
        if order.version is not None:
            mine = self._reducing.weights(order.version).vector
        else:
            assert vector is not None
            mine = self.layout.take(vector, self._rank)
        if order.keep:
            place = self._reducing.place(order.worker, self._formed.num_weights).view(np.uint8)
        shard, state = self.shards.of(order.worker), self._left if order.goes_on else state
        found = compute_alone(task, self._formed, shard, order.step, mine, state, self._device, place)
        loss, value, kept = found
        if task.state_rows:
            self._left = kept.cpu().numpy()
        if self._rank not in self.layout.holders:
            return Computed(loss, None, None)
        return Computed(loss, None if order.keep else value, self._left if task.state_rows else None)

    @property
    def _formed(self) -> GroupObjective:
        assert self._objective, "the group has not been formed"
        return self._objective

    # --- all-reduce: each rank with those of the other islands that have the same slices --------------------

    def step(self, version: int, part: bytes) -> RankStep:
        """Take part in an all-reduce, as `Reducing.step`; where the rule asks for a norm, `advance` takes the
        step. part: pickled, what `Reducing.step` is given besides the version.
        """
        rule, workers, number, order, meeting, measures = pickle.loads(part)  # noqa: S301 - of the host
        own = meeting._replace(part=self._rank)
        if meeting.own_address != LOCAL:  # that of the leader's machine
            own = own._replace(own_address=self._own_address)
        try:
            distances = self._reducing.average(workers, number, order, own, measures)
        except GroupBroken as error:
            return RankStep((), str(error) or "it is broken")
        if slices.needs_whole(rule):
            return RankStep(distances, "", self._reducing.squares(version, rule))
        self._reducing.advance(version, rule)
        return RankStep(distances, "")

    def advance(self, version: int, part: bytes, squares: float) -> None:
        """Take the step that `step` has prepared. squares: the sum over the slices of all ranks."""
        self._reducing.advance(version, pickle.loads(part)[0], Reduction(squares=squares))  # noqa: S301 - of the host

    def leave(self, epoch: int) -> None:
        """Leave the all-reduce of this epoch; another thread than `step`'s calls this."""
        self._reducing.leave(epoch)

    def hold(self, version: int, vector: Vector, slots: Mapping[str, Vector]) -> None:
        """Begin with a version of the weights: slices (d,) of the vector and of the rule's slots."""
        self._reducing.hold(version, vector, slots)

    def held(self, version: int) -> Vector:
        """Return the slice (d,) of a version that is held."""
        return self._reducing.weights(version).vector

    def held_slots(self, version: int) -> Mapping[str, Vector]:
        """Return the slices (d,) of its slots."""
        return self._reducing.weights(version).slots

    def value(self, worker: int) -> Vector:
        """Return the slice (d,) of the value of a worker's last task."""
        return self._reducing.value(worker)


def _elementwise(pickled: bytes) -> Task:
    """Return the task that ranks compute: its value is of all their weights, as they are. The leader cuts out
    a part of the whole value, and applies a codec.
    """
    found = elementwise(to_send(pickle.loads(pickled)))  # noqa: S301 - of the host
    if hasattr(found, "part") and not getattr(found, "asks_for_own", False):
        raise ValueError(
            "it cuts a part out of the vector, of which a rank holds only a slice: cut it with "
            "`objective.own`, and set asks_for_own (dsgd/core/tasks.py)"
        )
    return found


def elementwise(task: Task) -> Task:
    """Return the task that works element by element in one that a host has been sent."""
    if isinstance(task, AsMessage):
        return task.task.task
    return task.task if isinstance(task, AsPart) else task
