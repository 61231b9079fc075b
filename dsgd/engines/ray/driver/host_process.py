"""One process of a host on Ray: where it is started, and what the driver knows of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsgd.engines.ray.connection.connect import resources
from dsgd.engines.ray.worker.group import Ranks

# isort: split
import ray
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from dsgd.config import TrainConfig
from dsgd.core.protocol import ClusterError
from dsgd.engines.ray.connection.credentials import uses_tls

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


def kill_from_outside(process: HostProcess) -> None:
    """End a process that stands still, and so does not hear that it is to end."""
    pid = process.pid
    _run_there(process.node_id, lambda: os.kill(pid, signal.SIGKILL))


def end_node(node_id: str) -> None:
    """End a node: its raylet and all of its processes."""

    def end() -> None:
        raylet = os.getppid()
        assert Path(f"/proc/{raylet}/comm").read_text(encoding="utf-8").strip() == "raylet"
        siblings = Path(f"/proc/{raylet}/task/{raylet}/children").read_text(encoding="utf-8").split()
        os.kill(raylet, signal.SIGKILL)
        for pid in sorted(map(int, siblings), key=os.getpid().__eq__):  # this one last
            os.kill(pid, signal.SIGKILL)

    _run_there(node_id, end)


def _run_there(node_id: str, action: Callable[[], None]) -> None:
    """Run a function of a function, which is sent without its module, in another process of a node."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    options: Any = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
    ray.remote(**options)(action).remote()


SLIVER = 0.001  # of a CPU, the least that Ray counts


class Places:
    """Chooses them, and gives them back.

    No whole CPUs are asked for: more workers than cores is normal here, and asking would wait forever. On a
    cluster of several machines, hosts are spread over those that offer CPUs: the head need not. Raises
    ClusterError for a group on several machines whose network encrypts nothing, though Ray's calls are.
    """

    def __init__(self, cfg: TrainConfig, device: str, *, private: bool) -> None:
        self._ranks, self._private = cfg.group.ranks_per_worker, private
        self.gpus = cfg.ray.gpus_per_worker if device == "cuda" else 0
        """Of a process."""
        self.one_machine = not self.gpus or max(_gpus_by_node(), default=0.0) >= self._ranks * self.gpus
        """Whether some machine can have a whole group: then none is spread over several."""
        if not self.one_machine and uses_tls():
            raise ClusterError(
                f"--ranks-per-worker {self._ranks}: RAY_USE_TLS encrypts Ray's calls, but not what ranks on "
                "several machines send each other; give fewer ranks, that one machine has GPUs for, or a "
                "network that encrypts and no RAY_USE_TLS"
            )

    def options(self, host: int, node_id: str | None) -> tuple[dict[str, Any], PlacementGroup | None]:
        """Return how the actor of a host is started, and the place that is kept for its group.

        node_id: where it must be; None: wherever there is room.
        """
        if self._ranks > 1:
            place = self._beside(host, node_id)
            strategy: Any = PlacementGroupSchedulingStrategy(place, 0)
            return {"num_cpus": 0, "num_gpus": self.gpus, "scheduling_strategy": strategy}, place
        if node_id:
            strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        else:
            strategy = "DEFAULT" if self._private else "SPREAD"
        cpus = 0 if self._private else SLIVER
        return {"num_cpus": cpus, "num_gpus": self.gpus, "scheduling_strategy": strategy}, None

    def _beside(self, host: int, node_id: str | None) -> Any:
        """Ask for the places of a group's ranks, a bundle each: on one machine if one can have them all."""
        bundle = {"CPU": SLIVER} | ({"GPU": self.gpus} if self.gpus else {})
        bundles = [bundle] * self._ranks
        if node_id:
            selectors = [{"ray.io/node-id": node_id}] * self._ranks
            return placement_group(bundles, "STRICT_PACK", bundle_label_selector=selectors)
        if not self.one_machine:
            return placement_group(bundles, "PACK")
        if self._private or self.gpus:
            return placement_group(bundles, "STRICT_PACK")
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        offer = sorted(n["NodeID"] for n in nodes if n["Alive"] and n["Resources"].get("CPU"))
        soft = offer[host % len(offer)] if offer else None
        return placement_group(bundles, "STRICT_PACK", _soft_target_node_id=soft)

    @staticmethod
    def give_back(place: PlacementGroup) -> None:
        """Give back the places of a group; what is left of it ends."""
        remove_placement_group(place)


def room_for(share: float, ranks: int = 1) -> int:
    """Return how many hosts the cluster has GPUs for: of so many ranks, each with this share of one."""
    if ranks == 1:
        gpus = resources().get("GPU", 0.0)
        # Shares of different GPUs do not add up to one: .6 of a GPU fits once on each.
        return int(gpus) * int(1 / share + 1e-9) if share < 1 else int(gpus / share)
    by_node, needed = _gpus_by_node(), ranks * share
    if max(by_node, default=0.0) >= needed:
        return sum(int(gpus / needed) for gpus in by_node)
    return int(sum(int(gpus / share) for gpus in by_node) / ranks)


def _gpus_by_node() -> list[float]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"].get("GPU", 0.0) for node in nodes if node["Alive"]]
