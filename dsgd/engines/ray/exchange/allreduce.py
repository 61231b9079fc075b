"""Real workers that all-reduce: weights and values stay in their processes, which combine them among
themselves (`reducing`).

The driver sees losses and times, has each step taken, and fetches the weights only to evaluate them, for
checkpoints and at the end. It has the store at which the processes find each other, so that no loss of a
process is one of the store. A process that is lost takes its copy of the weights and its workers' values with
it: another computes these values again, from the same weights, which it gets from one that lives; then all
that are there form a group of the next epoch and take the step together, to the same bytes. Only if all of
them are lost at once is there nothing to go on from but a checkpoint.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dsgd.engines.ray.driver.cluster import RayCluster

# isort: split
import ray
from ray.exceptions import RayError

from dsgd.config import TrainConfig
from dsgd.core.cluster_state import ClusterState
from dsgd.core.model import Workload
from dsgd.core.protocol import ClusterError, Done, TimeUp, WeightsLost
from dsgd.core.rules import Chain, Pull, Rule, TaskResult
from dsgd.core.tasks import Task
from dsgd.core.traffic import MessageSizes
from dsgd.core.weights import Vector, Weights
from dsgd.engines.configured_network import network_of
from dsgd.engines.ray.connection.connect import ENDED, Connection
from dsgd.engines.ray.connection.credentials import uses_tls
from dsgd.engines.ray.driver.host_process import HostProcess
from dsgd.engines.ray.driver.news import Answered, RayFlight, Stepped
from dsgd.engines.ray.driver.remote_weights import Fetch, HeldDone, HeldWeights, have_fetched, held
from dsgd.scenario.allreduce import AllReduce

if TYPE_CHECKING:
    from dsgd.engines.ray.worker.collective import Meeting

_POLL_S = 1.0
_LOST = "a process was lost"
_TRIES = 3  # how often in a row a group may break though no process was lost


class _Made(NamedTuple):
    """Where the value of a worker's last task is, and what made it."""

    process: HostProcess
    flight: RayFlight


class RayAllReduce(RayCluster):
    """A RayCluster whose processes hold the weights, and combine the values of their workers."""

    def __init__(self, cfg: TrainConfig, workload: Workload, connection: Connection | None = None) -> None:
        super().__init__(cfg, workload, connection)
        self._tasks.keeps_values = bool(workload.objective.num_weights)
        self._sizes = MessageSizes(workload.objective.num_weights, cfg.timing.padding_bytes, peers=True)
        self._order = "ring" if cfg.network.parsed_topology.kind == "ring" else "direct"
        network = network_of(cfg)
        self._exchange = AllReduce(cfg.network.parsed_topology.kind, network.links, network.latency_s)
        self._held = None  # no result is on its way: `combine` takes the network's time
        self._made: dict[int, _Made] = {}  # by worker
        self._distances: dict[int, float] = {}  # by worker: of its last value from the mean
        # They are measured with a step if the strategy has looked at those of the step before.
        self._measures = self._looked = True
        self._group: Sequence[HostProcess] = ()  # by rank; none: it must be formed anew
        self._epoch = 0
        self._newest = 0  # the version that was made last
        # Where the processes of a group find each other: the address, and the store.
        self._store: tuple[str, Any] | None = None
        self._meetings: Sequence[Meeting] = ()  # by rank
        # What the processes were last asked to do: the rule, all else, and how it is sent.
        self._pickled: tuple[Rule, Any, Sequence[bytes]] | None = None
        self._addresses: dict[str, str] = {}  # by node
        # NCCL wants a GPU for each process.
        self._reduces_on = self.device if cfg.ray.gpus_per_worker >= 1 else "cpu"

    def start(self, worker: int, task: Task, w: Weights) -> None:
        if w.version and not isinstance(w, HeldWeights):  # no process has it as it is
            self._ledger.traffic.to_worker[worker] += 4 * self._objective.num_weights
            self._ledger.traffic.by_chance = True
        super().start(worker, task, w)

    def restore(self, state: ClusterState) -> None:
        for process in self._running.values():
            process.holds.clear()  # versions of these numbers may have other contents now
        self._made.clear()
        super().restore(state)

    def fetch(self, w: Weights, *, slots: bool = False) -> None:
        have_fetched(w, slots=slots)

    def combine(self, rule: Rule, w: Weights, results: Sequence[TaskResult]) -> Weights:
        if not self._objective.num_weights:
            return super().combine(rule, w, results)
        workers = sorted(cast("Done", result).worker for result in results)
        self._measures, self._looked, tries = self._looked, False, 0
        while why := self._step(rule, w, workers):
            tries = 0 if why == _LOST else tries + 1
            if tries == _TRIES:
                raise ClusterError(
                    f"--topology {self._cfg.network.topology}: the workers' processes cannot exchange values "
                    f"({why}); let their machines connect to each other on any port, or use --topology server"
                )
        num_bytes = 4 * self._objective.num_weights
        exchange, ready_s = self._exchange, max(cast("Done", result).finished_s for result in results)
        sent, received = exchange.sent(workers, num_bytes), exchange.received(workers, num_bytes)
        self._ledger.traffic.exchanged(workers, sent, received)
        if seconds := exchange.seconds(workers, num_bytes):  # in the network that was asked for
            time.sleep(max(0.0, ready_s + seconds - self._clock_s))
        self._now_s = self._clock_s
        self._newest = version = w.version + 1
        earlier = {"before": w.version} if isinstance(rule, Chain) and isinstance(rule.last, Pull) else {}
        fetch = Fetch(partial(self._vector, version), partial(self._slots, version), version, earlier)
        return held(version, w.kept, fetch)

    def spread(self, dones: Sequence[Done]) -> float:
        self._looked = True
        if not self._measures:
            return super().spread(dones)
        return sum(self._distances[done.worker] for done in dones) / len(dones)

    @property
    def groups(self) -> int:
        """How many groups have begun to form."""
        return self._epoch

    @property
    def holders(self) -> Sequence[int]:
        """The processes that have the newest weights."""
        return [process.pid for process in list(self._running.values()) if self._newest in process.holds]

    # --- a step ---------------------------------------------------------------------------------------------

    def _step(self, rule: Rule, w: Weights, workers: Sequence[int]) -> str:
        """Have all processes that have values take a step; return why they have not, if so."""
        self._have_values(workers)
        by_process: dict[HostProcess, list[int]] = {}
        for worker in workers:
            by_process.setdefault(self._made[worker].process, []).append(worker)
        members, numbers = list(by_process), list(by_process.values())
        try:
            self._have_weights(members, w)
        except ENDED:  # a process has ended, as news will say
            self._hear()
            return _LOST
        if self._group != members:
            self._meet(members)
        for process, part in zip(members, self._parts(rule, numbers), strict=True):
            process.holds = {w.version}  # it drops the version before, also if others do not take the step
            self._tasks.step(process, w.version, part)
        answers: dict[HostProcess, Stepped] = {}
        while any(not process.ended and process not in answers for process in members):
            if stepped := self._hear():
                answers[stepped.process] = stepped
            if self._group and _has_broken(members, answers):
                self._break_up()
        if _has_broken(members, answers):
            self._break_up()
            lost = any(process.ended for process in members)
            return _LOST if lost else next(answer.broken for answer in answers.values() if answer.broken)
        for process, some in zip(members, numbers, strict=True):
            process.holds = {w.version, w.version + 1}
            self._distances.update(zip(some, answers[process].distances, strict=self._measures))
        return ""

    def _hear(self) -> Stepped | None:
        """Do what is due, and wait for news; return them if they are of a step. Raises TimeUp."""
        self._look()
        left_s = self._next_s() - self._clock_s
        news = self._tasks.wait(max(0.0, min(_POLL_S, left_s)), self._faults.unheard)
        if isinstance(news, Stepped):
            return news
        if news is not None:
            self._take(news)
        if self._clock_s > self._cfg.stop.max_seconds:
            self._break_up()
            raise TimeUp
        return None

    def _meet(self, members: Sequence[HostProcess]) -> None:
        """Say where processes find each other: they form a group with their next step."""
        from dsgd.engines.ray.worker.collective import Meeting, open_store  # it needs torch

        self._group, self._epoch = members, self._epoch + 1
        here = self._address(self._here, members)
        if here != "127.0.0.1" and uses_tls():
            raise ClusterError(
                f"--topology {self._cfg.network.topology}: RAY_USE_TLS encrypts Ray's calls, but not what "
                "workers on several machines send each other; use --topology server, or a network that "
                "encrypts and no RAY_USE_TLS"
            )
        if self._store is None or self._store[0] != here:
            self._store = here, open_store(here)
        self._meetings = [
            Meeting(
                here,
                self._store[1].port,
                self._epoch,
                self._address(process.node_id, members),
                self._reduces_on,
            )
            for process in members
        ]

    def _parts(self, rule: Rule, numbers: Sequence[Sequence[int]]) -> Sequence[bytes]:
        """Return, by rank, what each process is to do in a step, pickled: mostly the same as in the last."""
        last, asked = self._pickled, (numbers, self._measures, self._epoch)
        if last is None or last[0] is not rule or last[1] != asked:
            parts = [
                ray.cloudpickle.dumps((rule, numbers, rank, self._order, meeting, self._measures))  # type: ignore[no-untyped-call]
                for rank, meeting in enumerate(self._meetings)
            ]
            self._pickled = last = rule, asked, parts
        return last[2]

    def _address(self, node_id: str, members: Sequence[HostProcess]) -> str:
        """Return the address of a machine as all members reach it."""
        if all(node == self._here for process in members for node in process.ranks.node_ids):
            return "127.0.0.1"
        if node_id not in self._addresses:
            nodes = ray.nodes()  # type: ignore[no-untyped-call]
            self._addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}
        return self._addresses[node_id]

    def _break_up(self) -> None:
        """Have nobody wait any longer for others of the group: they may never come to the store, or be out of
        reach in the midst of a sum, when no connection ends.
        """
        for process in self._group:
            if not process.ended:
                process.actor.leave.remote(self._epoch)
        self._group = ()

    def _have_values(self, workers: Sequence[int]) -> None:
        """Have every worker's value in a process that lives: those that were lost are computed again."""
        asked: dict[int, HostProcess] = {}
        while lost := [worker for worker in workers if self._made[worker].process.ended]:
            for worker in lost:
                if worker in asked and not asked[worker].ended:
                    continue
                host = self._hosts.place(worker, self._clock_s)
                if worker not in self._ledger.workers:  # it left with its process: any other will do
                    reached = [h for h in self._running if h not in self._faults.cut]
                    host = next((h for h in reached if self._running[h] not in self._readying), host)
                process = self._running.get(host)
                if process is None or process in self._readying or host in self._faults.cut:
                    continue
                asked[worker] = process
                assert self._processes
                self._processes.carry(process, worker)
                if worker in self._ledger.states:
                    self._redo(worker, host)
                    continue
                flight = self._made[worker].flight
                again = self._tasks.flight(flight.task, flight.w, flight.started_s, flight.step)
                self._tasks.send(process, worker, again, None, again=True)
            self._hear()

    def _answered(self, news: Answered) -> Done | None:
        sent = news.sent
        self._made[sent.worker] = _Made(sent.process, sent.flight)
        if sent.again and sent.left is None:  # it keeps no state: nothing else was lost
            return None
        done = super()._answered(news)
        if done is None:
            return None
        value: Any = partial(self._value, sent.worker)
        return HeldDone(*done._replace(value=value))

    def _have_weights(self, members: Sequence[HostProcess], w: Weights) -> None:
        """Have every process hold these weights, those that are new among them too."""
        lacking = [process for process in members if w.version not in process.holds]
        if lacking:
            vector, slots = ray.put(w.vector), {name: ray.put(slot) for name, slot in w.slots.items()}
            ray.get([process.actor.hold.remote(w.version, vector, slots) for process in lacking])
            for process in lacking:
                process.holds = {w.version}
                if isinstance(w, HeldWeights):  # it took the place of one that was lost
                    sent = 4 * self._objective.num_weights * (1 + len(slots))
                    self._ledger.traffic.to_worker[min(process.carried)] += sent
                    self._ledger.traffic.by_chance = True

    # --- what is fetched ------------------------------------------------------------------------------------

    def _vector(self, version: int) -> Vector:
        found: Vector = self._from_holder(version, lambda actor: actor.held.remote(version))
        self._count_fetched(1)
        return found

    def _slots(self, version: int) -> Mapping[str, Vector]:
        found: Mapping[str, Vector] = self._from_holder(
            version, lambda actor: actor.held_slots.remote(version)
        )
        self._count_fetched(len(found))
        return found

    def _count_fetched(self, vectors: int, worker: int | None = None) -> None:
        worker = self.workers[0] if worker is None else worker
        self._ledger.traffic.fetched[worker] += 4 * self._objective.num_weights * vectors
        self._ledger.traffic.by_chance = True

    def _from_holder(self, version: int, ask: Callable[[Any], Any]) -> Any:
        """Return the answer of a process that holds a version of the weights."""
        nearest_first = sorted(self._running.values(), key=lambda process: process.link is None)
        for process in nearest_first:
            if version in process.holds:
                with contextlib.suppress(RayError):  # it was lost; another will do
                    return ray.get(ask(process.actor))
        raise WeightsLost(
            f"all processes that held version {version} of the weights were lost at once; go on with "
            "--resume, or give --checkpoint-every, and a run goes on from there by itself"
        )

    def values(self, dones: Sequence[Done]) -> Mapping[int, Vector]:
        found = {}
        for done in dones:
            with contextlib.suppress(RayError):  # it was lost with its process
                found[done.worker] = self._value_of(done.worker)
                self._count_fetched(1, done.worker)
        return found

    def _value(self, worker: int) -> Vector:
        found = self._value_of(worker)
        self._ledger.traffic.to_server[worker] += found.nbytes
        self._ledger.traffic.by_chance = True
        return found

    def _value_of(self, worker: int) -> Vector:
        found: Vector = ray.get(self._made[worker].process.actor.value.remote(worker))
        return found


def _has_broken(members: Sequence[HostProcess], answers: Mapping[HostProcess, Stepped]) -> bool:
    """Whether a step that these processes take together has come to nothing."""
    return any(
        process.ended if process not in answers else bool(answers[process].broken) for process in members
    )
