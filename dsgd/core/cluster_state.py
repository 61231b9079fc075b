"""A cluster between two updates as a value: what a checkpoint keeps, and from which any engine can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsgd.core.tasks import Task
from dsgd.core.weights import Vector, Weights


class InFlight(NamedTuple):
    """A task that was handed out and has not come in."""

    worker: int
    task: Task
    origin: Weights
    """The weights it reads."""
    started_s: float


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """Members, clocks, tasks in flight and workers' states; times are seconds on the engine's clock."""

    now_s: float
    workers: Sequence[int]
    """The members, ascending."""
    clocks: Mapping[int, int]
    """Finished mini-batches by member."""
    slowest: int
    fastest: int
    """Clocks; of no members, those of the last one."""
    latest: int | None
    """The idle member that finished last, if it is still idle."""
    waiting: Sequence[int]
    """The other idle members by waiting time, longest first."""
    flights: Sequence[InFlight]
    """The oldest first."""
    steps: Sequence[int]
    came_in_s: Sequence[tuple[float, float]]
    given: int
    lost: int
    cancelled: Sequence[int]
    cancelled_s: Sequence[float]
    came_in: int
    """Tasks that have come in."""
    leaving: Sequence[int] = ()
    """Members that leave once their task has come in."""
    states: Mapping[int, Vector] = field(default_factory=dict)
    """By worker: what its last finished task hands on, shape (rows, D)."""
    restarts: Sequence[int] = ()
    traffic: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Of Traffic.state."""
    hosts: Mapping[str, Any] | None = None
    """Of Hosts.state, where the engine has hosts."""
    faults: Mapping[str, Any] | None = None
    """Of Plan.position, where faults were asked for."""
    held: Weights | None = None
    """With --compress-down, what all workers that have heard of its version hold."""
    heard: Mapping[int, int] = field(default_factory=dict)
    """By worker: the version of `held` that it has, as far as no process was lost."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """What only the engine that made it can use, as JSON values."""
