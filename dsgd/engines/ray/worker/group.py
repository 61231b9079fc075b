"""A host that leads a group: it has the other ranks, its followers, compute every task with it.

    driver  --task, weights-->  leader (rank 0)  --task, weights-->  followers (ranks 1 to G - 1)
            <--loss, value----                   <--slices---------

To the driver a group is one host: the leader hands on what it gets, takes its own part, and puts slices of
values and states together. After each task the state is saved outside the group, so another group can
take over. Ranks cache their slices of it, so the next task of the same worker need not bring it.

A group dies as one: the leader ends itself when a follower has ended, and Ray ends the followers of a leader
that has. What ranks compute together is never cut short: a task is stopped before it begins, or not at all.

Shapes: D weights, d of a rank's slice.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

# isort: split
import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dsgd.core.model import Objective
from dsgd.core.problem import TrialGradient
from dsgd.core.shards import Shard
from dsgd.core.tasks import Task, TaskAround
from dsgd.core.weights import Vector
from dsgd.engines.ray.connection.connect import ENDED
from dsgd.engines.ray.transport.arena import Bytes
from dsgd.engines.ray.transport.messages import INLINE_BYTES
from dsgd.engines.ray.worker.captured_output import OutputNews
from dsgd.engines.ray.worker.follower import CONCURRENCY, Follower, own_address
from dsgd.engines.ray.worker.rank_meeting import RankMeeting, missing_from
from dsgd.engines.task_values import compute_alone
from dsgd.scenario.group_options import GroupConfig
from dsgd.transforms.compressed import AsMessage, AsPart, part_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # untyped

    from dsgd.engines.ray.worker.rank import RankStep

_WAIT_S = 10.0  # within which a follower answers, also if it has nothing to say
_FAREWELL_S = 2.0  # the driver waits longer for the leader
_CAUSE_WITHIN_S = 10.0  # after the error of a rank that has lost another: why that one has ended


class GroupPlan(NamedTuple):
    """What a host needs to know to lead a group."""

    asked: GroupConfig
    objective: list[Any]
    """A reference to it: each follower gets it itself."""
    gpus: float
    """Of each rank."""
    one_machine: bool
    """Whether all ranks are on one."""
    within_s: float
    """How long ranks wait for each other, from the start of the leader."""
    name: str
    """Of its leader, as logs have it."""
    output: tuple[int, int]
    """What `CapturedOutput` is given in each follower."""


class Ranks(NamedTuple):
    """The processes of a group, by rank."""

    pids: tuple[int, ...]
    node_ids: tuple[str, ...]
    trial: TrialGradient = TrialGradient()
    """What the first rank's trial gradient has seen."""


class Given(NamedTuple):
    """A task that this process has been given."""

    task: Task
    pickled: bytes
    worker: int
    step: int
    ticket: int
    state: Vector | None
    """(rows, D)"""
    left_by: int
    """The ticket of the task that has left the state; -1: unknown."""
    left: Vector | None = None
    """(rows, D), where the new state is written, if that is in shared memory."""
    version: int | None = None
    """Of the weights, if this process has them (all-reduce)."""
    keep: bool = False
    """Whether the value stays here (all-reduce)."""


class RankGroup:
    """The leader's side. All methods but `carry`, `leave` and those for weights are called by one thread.

    noticed: is called when a follower is asked to end. relay: with what one has printed, and its rank. Raises
    ProblemError for a module that cannot be sharded.
    """

    def __init__(
        self,
        plan: GroupPlan,
        device: str,
        objective: Any,
        noticed: Callable[[], None],
        relay: Callable[[OutputNews, int], None],
    ) -> None:
        from dsgd.engines.ray.worker.rank import Rank, RankTask, elementwise  # it needs torch

        self._plan, self._device, self._rank_task = plan, device, RankTask
        self._elementwise = elementwise
        self._until_s = time.monotonic() + plan.within_s
        self._rank = Rank(objective, device, plan.asked, 0)
        self._layout = self._rank.layout
        self._left = -1, -1  # of the last state that the ranks have left: whose it is, and the task's ticket
        self._store: TCPStore | None = None
        self._thread = ThreadPoolExecutor(1)  # of this rank: the calling one may hear followers meanwhile
        place = get_current_placement_group()
        assert place, "a leader is started with the places of its followers"
        follower = ray.remote(concurrency_groups=CONCURRENCY)(Follower)  # type: ignore[call-overload]
        self._followers: list[Any] = [
            follower.options(
                num_cpus=0,
                num_gpus=plan.gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(place, rank),
                enable_task_events=False,
            ).remote(plan.objective, device, plan.asked, rank, f"{plan.name} rank {rank}", *plan.output)
            for rank in range(1, plan.asked.ranks_per_worker)
        ]
        for actor in self._followers:
            self._watch(actor, noticed)
        self._relay = relay
        threading.Thread(target=self._listen, name="dsgd-output", daemon=True).start()

    def _watch(self, actor: Any, noticed: Callable[[], None]) -> None:
        """End this process, at once, when a follower has ended: the group is of no use any more."""

        def heard(answer: Future[None]) -> None:
            if isinstance(answer.exception(), ENDED):
                _end()
            noticed()

        actor.notice.remote().future().add_done_callback(heard)

    def _listen(self) -> None:
        """Relay what followers print, as long as they live."""
        asked = {actor.output.remote(_WAIT_S): rank for rank, actor in enumerate(self._followers, 1)}
        with suppress(RayError):  # one has ended, and this process will
            while asked:
                (ref,), _ = ray.wait(list(asked), num_returns=1)
                rank = asked.pop(ref)
                self._relay(ray.get(ref), rank)
                asked[self._followers[rank - 1].output.remote(_WAIT_S)] = rank

    def relay_last_output(self) -> None:
        """Relay what followers have printed since the last time, of those that say so at once."""
        asked = {actor.last_output.remote(): rank for rank, actor in enumerate(self._followers, 1)}
        for ref in ray.wait(list(asked), num_returns=len(asked), timeout=_FAREWELL_S)[0]:
            with suppress(RayError):
                self._relay(ray.get(ref), asked[ref])

    def carry(self, worker: int, shard: list[Any]) -> None:
        """Have all ranks hold the shard of a worker."""
        for actor in self._followers:
            actor.carry.remote(worker, shard)
        self._rank.shards.carry(worker, shard)

    def form(self, who: str) -> Ranks:
        """Form the process group. Raises RankMissing, which names the ranks that did not join in time.

        who: whose group it is, in words.
        """
        from dsgd.engines.ray.worker.collective import open_store

        address = own_address(one_machine=self._plan.one_machine)
        self._store = store = open_store(address)
        left_s = self._until_s - time.monotonic()
        count = len(self._all_ranks)
        meeting = RankMeeting(who, address, store.port, count, self._device, max(1.0, left_s))
        own = self._thread.submit(self._rank.join, meeting, address, store)
        pid, *others = self._all(own, [actor.join.remote(meeting) for actor in self._followers])
        here = ray.get_runtime_context().get_node_id()
        return Ranks((pid, *(pid for pid, _ in others)), (here, *(node_id for _, node_id in others)))

    def missing(self) -> Sequence[int]:
        """Return the ranks that have not joined yet; another thread than `form`'s calls this."""
        if self._store is None:
            return ()
        return missing_from(self._store, len(self._all_ranks))

    def try_out(self, worker: int) -> TrialGradient:
        """See that a gradient can be computed. Raises what the first rank raises that cannot."""
        trials: list[TrialGradient] = self._each("try_out", worker)
        return trials[0]

    def compute(
        self, given: Given, vector: Vector | None, place: Bytes | None = None
    ) -> tuple[float, Any, Vector | None]:
        """Have all ranks compute a task; return the loss, the value (D,) and, if the task leaves one, the
        state (rows, D).

        vector: the weights (D,), None if the ranks have them. place: the bytes where the value is written.
        Where the ranks keep the value, what is returned as the value is empty.
        """
        task, worker, state = given.task, given.worker, given.state
        inner = self._elementwise(task)
        goes_on = state is not None and self._left == (worker, given.left_by)
        order = self._rank_task(given.pickled, worker, given.step, given.version, given.keep, goes_on)
        states: list[Vector | None] = [None] * len(self._all_ranks)
        if state is not None and not goes_on:
            states = [self._layout.take(state[: inner.state_rows], rank) for rank in self._all_ranks]
        sent: list[Any] = []
        if vector is not None:
            sent = [ray.put(vector) if vector.nbytes > INLINE_BYTES else vector]
        found = self._all(
            self._thread.submit(self._rank.run, order, vector, states[0]),
            [actor.run.remote(order, sent, states[rank]) for rank, actor in enumerate(self._followers, 1)],
        )
        loss, num_weights = found[0].loss, self._layout.num_weights
        kept, encoded = None, isinstance(task, AsMessage)
        if inner.state_rows:
            self._left = worker, given.ticket
            there = given.left is not None and not encoded
            kept = given.left if there else np.empty((inner.state_rows, num_weights), np.float32)
            self._put_together(cast(Vector, kept), [part.kept for part in found])
        if given.keep:
            return loss, np.empty(0, np.float32), kept
        apart = place is None or task is not inner
        value = np.empty(num_weights, np.float32) if apart else cast("Bytes", place).view(np.float32)
        self._put_together(value, [part.value for part in found])
        if isinstance(task, AsMessage):
            assert vector is not None
            return self._encoded(given, task, _Made(inner, loss, value, kept), vector, place)
        if isinstance(task, AsPart):
            value = np.ascontiguousarray(value[part_of(inner, num_weights)])
            if place is not None:
                place[:] = value.view(np.uint8)
        return loss, value if place is None else place, kept

    def _encoded(
        self, given: Given, task: AsMessage, made: _Made, vector: Vector, place: Bytes | None
    ) -> tuple[float, Any, Vector | None]:
        """Return what `compute` does, of a task whose value is a codec's message, once it has been made."""
        message, objective = AsMessage(replace(task.task, task=made)), cast(Objective, None)
        shard = self._rank.shards.of(given.worker)
        loss, value, left = compute_alone(
            message, objective, shard, given.step, vector, given.state, "cpu", place
        )
        kept = left.numpy() if task.state_rows else None
        if given.left is not None:
            given.left[:] = kept
        return loss, value, kept

    def _put_together(self, whole: Vector, parts: Sequence[Vector | None]) -> None:
        """Write slices (..., d), by rank, into the whole (..., D)."""
        for rank in self._layout.holders:
            self._layout.put(whole, rank, parts[rank])

    @property
    def _all_ranks(self) -> range:
        return range(self._plan.asked.ranks_per_worker)

    def _each(self, method: str, *arguments: Any) -> list[Any]:
        """Have all ranks do the same; return what they return."""
        own = self._thread.submit(getattr(self._rank, method), *arguments)
        return self._all(own, [getattr(actor, method).remote(*arguments) for actor in self._followers])

    def _all(self, own: Future[Any], asked: Sequence[Any]) -> list[Any]:
        """Return what all ranks return, the leader first. Raises what the first one that fails does."""
        answers = [own, *(ref.future() for ref in asked)]
        wait(answers, return_when=FIRST_EXCEPTION)
        if any(answer.done() and answer.exception() for answer in answers):
            raise _cause(answers)
        return [answer.result() for answer in answers]

    # --- all-reduce -----------------------------------------------------------------------------------------

    def step(self, version: int, part: bytes) -> tuple[Sequence[float], str]:
        """Have each rank all-reduce with those of other islands that have the same slice, and take the step.

        part: pickled, what `Reducing.step` is given besides the version. Returns the distances, and no text,
        or why a group is broken: then no other rank counts.
        """
        stepped: list[RankStep] = self._each("step", version, part)
        if broken := next((rank.broken for rank in stepped if rank.broken), ""):
            return (), broken
        holding = [stepped[rank] for rank in self._layout.holders]
        if holding[0].squares is not None:
            self._each("advance", version, part, fsum(cast(float, rank.squares) for rank in holding))
        distances = np.linalg.norm([rank.distances for rank in holding], axis=0)  # slices' make the whole's
        return distances.tolist(), ""

    def leave(self, epoch: int) -> None:
        """Have all ranks leave the all-reduce of this epoch, whatever they wait for."""
        for actor in self._followers:
            actor.leave.remote(epoch)
        self._rank.leave(epoch)

    def hold(self, version: int, vector: Vector, slots: Mapping[str, Vector]) -> None:
        """Have all ranks begin with a version: vector (D,), and the rule's slots."""
        take, calls = self._layout.take, []
        for rank, actor in enumerate(self._followers, 1):
            own = {name: take(slot, rank) for name, slot in slots.items()}
            calls.append(actor.hold.remote(version, take(vector, rank), own))
        self._rank.hold(version, take(vector, 0), {name: take(slot, 0) for name, slot in slots.items()})
        ray.get(calls)

    def held(self, version: int) -> Vector:
        """Return the vector (D,) of a version that the ranks hold."""
        return self._fetched("held", version)

    def held_slots(self, version: int) -> Mapping[str, Vector]:
        """Return its slots, (D,) each."""
        others = ray.get([actor.held_slots.remote(version) for actor in self._holding])
        parts = [self._rank.held_slots(version), *others]
        return {name: self._joined([part[name] for part in parts]) for name in parts[0]}

    def value(self, worker: int) -> Vector:
        """Return the value (D,) of a worker's last task."""
        return self._fetched("value", worker)

    def _fetched(self, method: str, number: int) -> Vector:
        others = ray.get([getattr(actor, method).remote(number) for actor in self._holding])
        return self._joined([getattr(self._rank, method)(number), *others])

    def _joined(self, parts: Sequence[Vector]) -> Vector:
        whole = np.empty(self._layout.num_weights, np.float32)
        self._put_together(whole, parts)
        return whole

    @property
    def _holding(self) -> list[Any]:
        """The followers whose slices, with the leader's, are the whole."""
        return self._followers[: len(self._layout.holders) - 1]


@dataclass(frozen=True)
class _Made(TaskAround):
    """A task that has been computed."""

    loss: float
    value: Vector
    """(D,)"""
    kept: Vector | None
    """(rows, D)"""

    @property
    def relative(self) -> bool:
        return getattr(self.task, "relative", False)

    def part(self, num_weights: int) -> slice:
        return part_of(self.task, num_weights) or slice(num_weights)

    def __call__(
        self, objective: Objective, shards: Sequence[Shard], steps: Sequence[int], w: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        import torch

        kept = state if self.kept is None else torch.from_numpy(self.kept)[None]
        return torch.tensor([self.loss], dtype=torch.float32), torch.from_numpy(self.value)[None], kept


def _cause(answers: Sequence[Future[Any]]) -> BaseException:
    """Return why ranks have failed: the error of a rank that has not only lost another one.

    Where a rank has ended, or is out of reach, this process ends too.
    """
    from dsgd.models.objectives.group_objective import RankLost

    until_s, left = time.monotonic() + _CAUSE_WITHIN_S, set(answers)
    while True:
        errors = [_own(error) for a in answers if a.done() and (error := a.exception())]
        if any(isinstance(error, ENDED) for error in errors):
            _end()
        for error in errors:
            if not isinstance(error, RankLost):
                return error
        left = {answer for answer in answers if not answer.done()}
        if not left or time.monotonic() > until_s:
            _end()
        wait(left, timeout=until_s - time.monotonic(), return_when=FIRST_COMPLETED)


def _own(error: BaseException) -> BaseException:
    """Return what a rank has raised."""
    return cast(BaseException, error.cause) if isinstance(error, RayTaskError) else error


def _end() -> NoReturn:
    """End this process as one does that is killed; Ray then ends its followers."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
