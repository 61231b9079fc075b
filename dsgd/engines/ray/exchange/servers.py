"""The servers of a run on Ray: each slice of the weights in one process, or in two.

The driver calls them, all with the same steps in the same order, and waits for their answers: it sees version
numbers. Vectors go as references to Ray's objects from the processes that make them to those that read them.

With two replicas a slice has a primary and a backup, which take the same steps, so both hold the same bits,
and a step counts once all that are ready have taken it. When one is lost the other is the primary, and a new
backup starts: it gets what the primary holds, then the steps since, which wait for it in Ray's queue.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsgd.engines.ray.connection.connect import ENDED, Connection

# isort: split
import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dsgd.config import TrainConfig
from dsgd.core.protocol import ClusterError, WeightsLost
from dsgd.core.weights import Weights
from dsgd.engines.ray.worker.slice_server import SliceServer

_SLIVER = 0.001  # of a CPU, the least that Ray counts


@dataclass(eq=False)
class _Replica:
    """A process that holds a slice."""

    actor: Any
    node_id: str
    pid: Any
    """Refers to its number."""
    behind: list[Any] = field(default_factory=list)
    """Of a new one: refers to the answers to what it has been sent. It is ready once all have come."""


class Servers:
    """The processes of S servers. Each call goes to all replicas of a slice, or to one that lives.

    lost: called when a process of a slice was lost, with the slice and what follows; it may raise errors.
    Raises WeightsLost when all processes of a slice are lost.
    """

    def __init__(self, cfg: TrainConfig, connection: Connection, lost: Callable[[int, str], None]) -> None:
        self._cfg, self._private, self._lost = cfg, connection.private, lost
        count, self._copies = cfg.network.parsed_topology.servers, cfg.network.replicas
        here = ray.get_runtime_context().get_node_id()
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        offer = [n["NodeID"] for n in nodes if n["Alive"] and n["Resources"].get("CPU")]
        self._nodes = sorted(offer, key=lambda node: (node != here, node)) or [here]
        self._slices: list[list[_Replica]] = [[] for _ in range(count)]
        self._start_all()

    def _start_all(self) -> None:
        for number, replicas in enumerate(self._slices):
            replicas[:] = [self._start((number + copy) % len(self._nodes)) for copy in range(self._copies)]
        self._have_lost = False

    def replace_lost(self) -> None:
        """Start all anew, if a slice was lost: no process is left that is to have what it held."""
        if self._have_lost:
            self._end_all()
            self._start_all()
            self.await_ready(self._cfg.ray.start_timeout_s)

    def _start(self, place: int) -> _Replica:
        node_id = self._nodes[place]
        actor: Any = (
            ray.remote(SliceServer)
            .options(
                num_cpus=0 if self._private else _SLIVER,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True),
                enable_task_events=False,
            )
            .remote()
        )
        return _Replica(actor, node_id, actor.pid.remote())

    def await_ready(self, timeout_s: float) -> None:
        """Wait until all processes have started; raises ClusterError if one has not in time."""
        until_s = time.monotonic() + timeout_s
        for replica in self._all():
            try:
                ray.get(replica.pid, timeout=max(0.0, until_s - time.monotonic()))
            except GetTimeoutError:
                raise ClusterError(
                    f"the servers could not be started within --start-timeout-s {timeout_s:g}; wait longer, "
                    "or use --topology server"
                ) from None

    @property
    def pids(self) -> Sequence[Sequence[int]]:
        """By slice: the processes that are ready, the primary first."""
        return [[ray.get(r.pid) for r in replicas if not r.behind] for replicas in self._slices]

    def end(self, number: int) -> None:
        """End the primary of a slice, for real."""
        ray.kill(self._slices[number][0].actor)

    def close(self) -> None:
        """End all processes."""
        self._end_all()
        self._slices = []

    def _end_all(self) -> None:
        for replica in self._all():
            with contextlib.suppress(Exception):  # the cluster may be gone already
                ray.kill(replica.actor)

    def _all(self) -> list[_Replica]:
        return [replica for replicas in self._slices for replica in replicas]

    # --- calls ----------------------------------------------------------------------------------------------

    def hold(self, parts: Sequence[Weights]) -> None:
        """Have all hold a version, of which these are the slices."""
        self._tell(lambda replica, number: replica.actor.hold.remote(parts[number]))

    def step(self, arguments: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Have all make the next version; return references to its slices, those of the primary first.

        arguments: by slice, those of `SliceServer.step`.
        """
        made: dict[_Replica, Any] = {}

        def call(replica: _Replica, number: int) -> Any:
            version, made[replica] = replica.actor.step.options(num_returns=2).remote(*arguments[number])
            return version

        return [[made[replica] for replica in replicas] for replicas in self._tell(call)]

    def ask(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        """Return, by slice, what one of its processes answers to a call that changes nothing."""
        asked = [
            getattr(replicas[0].actor, method).remote(*arguments[number])
            for number, replicas in enumerate(self._slices)
        ]
        found = []
        for number, ref in enumerate(asked):
            while True:
                first = self._slices[number][0]
                try:
                    found.append(ray.get([*first.behind, ref])[-1])
                    break
                except ENDED:
                    if first.behind:  # it waits for the slice, and nobody has it any more
                        raise self._gone(number) from None
                    self._lose(number, first)
                    ref = getattr(self._slices[number][0].actor, method).remote(*arguments[number])
        return found

    def _tell(self, call: Callable[[_Replica, int], Any]) -> list[list[_Replica]]:
        """Call all replicas, wait for those that are ready, and replace those that are lost.

        Returns those of each slice that have answered. A new one has yet to catch up: it is not waited for,
        unless no other is left.
        """
        called = [
            [(replica, call(replica, number)) for replica in replicas]
            for number, replicas in enumerate(self._slices)
        ]
        return [self._answered(number, answers) for number, answers in enumerate(called)]

    def _answered(self, number: int, answers: Sequence[tuple[_Replica, Any]]) -> list[_Replica]:
        """Wait for the answers of a slice's replicas; return those that have answered."""
        done: list[_Replica] = []
        lost: list[_Replica] = []
        for replica, answer in sorted(answers, key=lambda one: bool(one[0].behind)):
            waiting = [*replica.behind, answer]
            if replica.behind and done and ray.wait(waiting, num_returns=len(waiting), timeout=0)[1]:
                replica.behind = waiting
                continue
            try:
                ray.get(waiting)
                replica.behind = []
                done.append(replica)
            except ENDED:
                lost.append(replica)
        if not done:
            raise self._gone(number)
        for replica in lost:
            self._lose(number, replica)
        return done

    def _lose(self, number: int, replica: _Replica) -> None:
        """Enter that a process of a slice has been lost, and start another in its place."""
        replicas = self._slices[number]
        primary = replica is replicas[0]
        replicas.remove(replica)
        if not replicas:
            raise self._gone(number)
        what = "its backup took over, and a new one started" if primary else "its backup was started again"
        self._lost(number, what)
        first = replicas[0]
        others = [place for place, node in enumerate(self._nodes) if node != first.node_id]
        new = self._start(others[number % len(others)] if others else 0)
        new.behind = [new.actor.hold.remote(first.actor.held.remote())]
        replicas.append(new)

    def _gone(self, number: int) -> WeightsLost:
        self._have_lost = True
        why = "had no backup" if self._copies == 1 else "and its backup are lost"
        remedy = "give replicas=2 with --topology for one, or" if self._copies == 1 else "give"
        return WeightsLost(
            f"server {number} died with its slice of the weights: it {why}; go on with --resume, and "
            f"{remedy} --checkpoint-every, from which a run goes on by itself"
        )
