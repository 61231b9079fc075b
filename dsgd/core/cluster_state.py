"""A cluster between two updates as a value: what a checkpoint keeps, and from which any engine can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """The other idle members, those that have waited longest first."""
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
    """What only the engine that made it can use, as JSON values: the simulator's future; of a run on Ray, how
    many answers its strategy has had (`FaultSeen.answers`).
    """


def with_new_processes(
    state: ClusterState, start: ClusterState, now: ClusterState, *, now_s: float
) -> ClusterState:
    """Return a state as it is after all processes were lost and new ones started, at `now_s`.

    Nothing is in flight: the tasks of `state.flights` are to be started again, with the same steps. Who was
    leaving has left, and who had left with its process is back. start: the state at the run's beginning.
    now: the present one: faults that have happened stay so, and what was sent was sent.
    """
    hosts = state.hosts or {}
    gone, back = set(state.leaving), [w for w in hosts.get("dropped", ()) if w not in state.workers]
    workers = sorted({*state.workers, *back} - gone)
    clocks = {worker: state.clocks.get(worker, state.slowest) for worker in workers}
    flying = {f.worker: f for f in state.flights}
    idle = [*([] if state.latest is None else [state.latest]), *state.waiting, *flying, *back]
    lost = sum(f.task.batches for f in state.flights if f.worker in gone)
    return replace(
        state,
        now_s=now_s,
        workers=tuple(workers),
        clocks=clocks,
        slowest=min(clocks.values()),
        fastest=max(clocks.values()),
        latest=None,
        waiting=[worker for worker in idle if worker not in gone],
        flights=(),
        given=state.given - sum(f.task.batches for f in state.flights),
        lost=state.lost + lost,
        leaving=(),
        hosts=start.hosts,
        heard={},
        faults=now.faults,
        traffic=now.traffic,
        # Its future is over; answers are counted on.
        engine={**start.engine, **{name: n for name, n in state.engine.items() if name == "answers"}},
    )
