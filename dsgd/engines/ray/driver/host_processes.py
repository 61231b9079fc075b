"""The processes of a run's hosts on Ray: where they are, how they are started, watched and ended.

Nothing is decided here: `hosts.py` says who carries whom, `cluster.py` carries it out.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

from dsgd.engines.ray.connection.connect import Connection, last_line
from dsgd.engines.ray.connection.process_logs import ProcessLogs
from dsgd.engines.ray.worker.captured_output import MOST_LINES
from dsgd.transforms.compression import HeardWeights

# isort: split
import ray

from dsgd.config import TrainConfig
from dsgd.core.model import Objective
from dsgd.core.problem import ProblemError
from dsgd.core.protocol import TraceEvents
from dsgd.core.shards import Shard
from dsgd.core.timing import ComputeTimes
from dsgd.engines.ray.connection.nodes import Nodes
from dsgd.engines.ray.driver.host_process import HostProcess, Places
from dsgd.engines.ray.driver.worker_output import WorkerOutput
from dsgd.engines.ray.worker.group import GroupPlan
from dsgd.engines.ray.worker.host import Host

_PROFILE_S = 60.0  # a process that stands still does not answer
_GROUPS = {"control": 1, "notice": 1, "carry": 1, "weights": 1, "output": 1}  # each has a thread


class HostProcesses:
    """Starts the processes and ends them."""

    def __init__(
        self,
        cfg: TrainConfig,
        objective: Objective,
        times: ComputeTimes,
        connection: Connection,
        device: str,
    ) -> None:
        self._cfg, self._places = cfg, Places(cfg, device, private=connection.private)
        self.nodes = Nodes(cfg.fault.nodes if connection.private else 1)
        self._objective: Any = objective
        self.output = WorkerOutput()
        # Of a private cluster they are on this machine, and stay there.
        self.logs = None if connection.private else ProcessLogs()
        most_lines = max(2, MOST_LINES // (cfg.fault.hosts or cfg.num_workers))
        codec, heard = cfg.compression.weights, None
        if codec is not None:
            heard = HeardWeights(codec, cfg.seed, objective.num_weights)
        self._arguments = times, device, cfg.timing.padding_bytes, self.output.level, most_lines, heard
        self._most_lines = most_lines
        self._shards: list[Any] = []
        self._started: list[HostProcess] = []
        self._numbers = itertools.count()

    def prepare(self, shards: Sequence[Shard]) -> None:
        """Start the nodes, and put the objective and the shards where each process can get them."""
        self.nodes.start()
        try:
            self._objective = ray.put(self._objective.for_gradients())
        except Exception as error:  # whatever pickle raises for what is a user's
            raise ProblemError(f"it cannot be sent to a worker's process: {last_line(error)}") from error
        self._shards = [ray.put(shard.alone()) for shard in shards]

    def start(self, host: int, workers: Sequence[int]) -> HostProcess:
        """Start a process for a host, with the shards of the workers that it will carry."""
        options, place = self._places.options(host, self.nodes.of(host))
        name = f"{'host' if self._cfg.fault.hosts else 'worker'} {host}"
        arguments = (*self._arguments, self._plan(name) if place else None, name)
        actor = (
            ray.remote(concurrency_groups=_GROUPS)(Host)  # type: ignore[call-overload]
            .options(**options, enable_task_events=False)
            .remote(self._objective, *arguments)
        )
        process = HostProcess(host, actor, next(self._numbers), place)
        self._started.append(process)
        for worker in workers:
            self.carry(process, worker)
        process.ready = actor.ready.remote(list(workers))
        process.noticed = actor.notice.remote()
        self.output.listen(process)
        return process

    def _plan(self, name: str) -> GroupPlan:
        """Return what the leader of a group needs to know."""
        places, within_s = self._places, self._cfg.ray.start_timeout_s
        objective, output = [self._objective], (self.output.level, self._most_lines)
        return GroupPlan(self._cfg.group, objective, places.gpus, places.one_machine, within_s, name, output)

    def carry(self, process: HostProcess, worker: int) -> None:
        """Have a process hold the shard of a worker, if it does not yet."""
        if worker not in process.carried:
            process.carried.add(worker)
            process.actor.carry.remote(worker, [self._shards[worker]])

    def profile(self, begin: bool) -> dict[str, TraceEvents]:
        """Begin to profile the processes, or end it and return their events, by name; those of a group's
        leader. What is lost meanwhile is not in it.
        """
        asked = {process.actor.profile.remote(begin): f"host {process.host}" for process in self._started}
        found = {}
        for ref in ray.wait(list(asked), num_returns=len(asked), timeout=_PROFILE_S)[0] if asked else ():
            with contextlib.suppress(ray.exceptions.RayError):
                found[asked[ref]] = ray.get(ref)
        return found

    def end(self, process: HostProcess) -> None:
        """End a process at once."""
        process.ended = True
        if process in self._started:
            self._started.remove(process)
            with contextlib.suppress(Exception):  # the cluster may be gone already
                ray.kill(process.actor)
                if process.place:
                    self._places.give_back(process.place)

    def close(self) -> None:
        """End all processes, and the nodes that were started for them."""
        self.output.close(self._started)
        if self.logs:
            self.logs.close(wait=False)
        for process in list(self._started):
            self.end(process)
        self.nodes.close()
