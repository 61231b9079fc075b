"""One process of a host on Ray, as the driver knows it: where it is, and what it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dsgd.engines.ray.worker.ray_group import Ranks

_NOT_READY = Ranks((0,), ("",))


@dataclass(eq=False)
class HostProcess:
    """One process of a host, or the group of processes that it leads."""

    host: int
    actor: Any
    number: int
    """No other process of this run has it."""
    ready: Any = None
    """Refers to its process id and node, once it can compute."""
    noticed: Any = None
    """Refers to nothing, once it has been asked to end."""
    carried: set[int] = field(default_factory=set)
    """The workers whose shards it has."""
    place: Any = None
    """Of a group: its places on the cluster."""
    ranks: Ranks = _NOT_READY
    """Its process, and those that it leads."""
    link: int | None = None
    """Of one on the driver's machine: the number of its link, while that is open."""
    ended: bool = False
    """Whether it has ended, or is given up: what it has is lost."""
    heard: dict[int, int] = field(default_factory=dict)
    """By worker: the version of the weights that it was sent last with a task of it (--compress-down)."""
    holds: set[int] = field(default_factory=set)
    """The versions of the weights that it has (all-reduce)."""
    sent: dict[int, Any] = field(default_factory=dict)
    """By ticket: the tasks that it has. It may write to their blocks, also if they were stopped."""

    @property
    def pid(self) -> int:
        """Of a group, its leader's."""
        return self.ranks.pids[0]

    @property
    def node_id(self) -> str:
        """Where it is; of a group, its leader."""
        return self.ranks.node_ids[0]
