"""The start barrier: all hosts hold their shards, or the run does not begin."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from dsgd.engines.ray.connection.connect import ENDED, Connection, last_line, resources

# isort: split
import ray
from ray.exceptions import RayError, RayTaskError

from dsgd.config import TrainConfig
from dsgd.core.problem import ProblemError
from dsgd.core.protocol import ClusterError
from dsgd.core.shards import Shard
from dsgd.engines.ray.connection.capacity import num_hosts, shortage
from dsgd.engines.ray.driver.host_process import HostProcess, room_for
from dsgd.engines.ray.driver.host_processes import HostProcesses
from dsgd.engines.ray.worker.rank_meeting import RankMissing, missing_in_words
from dsgd.scenario.hosts import Hosts

_POLL_S = 1.0
_ASKED_S = 5.0  # how long to wait for leaders to say who has not joined their groups


def choose_device(cfg: TrainConfig, connection: Connection) -> str:
    """Return where gradients are computed, cpu or cuda; raises ValueError if no such GPU will come."""
    wanted, share, count = cfg.ray.device, cfg.ray.gpus_per_worker, num_hosts(cfg)
    ranks = cfg.group.ranks_per_worker
    room = room_for(share, ranks)
    if wanted == "auto":
        return "cuda" if room >= count else "cpu"
    if wanted == "cuda" and room < count and connection.private:
        each = f"{ranks} ranks x " * (ranks > 1)
        fewer = "fewer --ranks-per-worker" if ranks > 1 else "a smaller --gpus-per-worker"
        raise ValueError(
            f"--device cuda: {count} workers x {each}{share:g} GPU are asked for and this machine has "
            f"{resources().get('GPU', 0.0):g}; use --device cpu or {fewer}"
        )
    return wanted


def start_hosts(
    cfg: TrainConfig,
    connection: Connection,
    device: str,
    processes: HostProcesses,
    shards: Sequence[Shard],
    hosts: Hosts,
) -> list[HostProcess]:
    """Start all hosts, wait until every one is ready, and return them.

    A thread does it, because no call of Ray may prolong the wait: on an overloaded machine each of them
    may take far longer than its own time-out.
    """
    until_s = time.monotonic() + cfg.ray.start_timeout_s
    if not connection.private:  # this machine's memory was looked at before anything started
        _await_room(cfg, until_s)
    answer: SimpleQueue[list[HostProcess] | BaseException] = SimpleQueue()
    given_up = threading.Event()
    started: list[HostProcess] = []
    count, num_ready = len(hosts.alive), 0

    def start() -> None:
        nonlocal num_ready
        try:
            processes.prepare(shards)
            for host in range(count):
                if given_up.is_set():
                    return
                started.append(processes.start(host, hosts.carried(host)))
            waiting = [process.ready for process in started]
            while waiting and not given_up.is_set():
                ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=_POLL_S)
                ray.get(ready)  # raises the error of a host that died
                num_ready += len(ready)
            for process in started:
                process.ranks = ray.get(process.ready)
            answer.put(started)
        except BaseException as error:  # the other thread raises it
            answer.put(error)

    threading.Thread(target=start, daemon=True).start()
    try:
        found = answer.get(timeout=max(0.0, until_s - time.monotonic()))
    except Empty:
        late = lacking(cfg, device, f"{count - num_ready} of {count} workers")
        raise ClusterError(missing_ranks(cfg, started, hosts) or late) from None
    finally:
        given_up.set()
    wrong = found.cause if isinstance(found, RayTaskError) else found
    if isinstance(wrong, ProblemError):
        raise ValueError(f"--workload {cfg.data.workload}: {wrong}") from wrong
    if isinstance(wrong, RankMissing):
        raise ClusterError(str(wrong)) from wrong
    if isinstance(found, ENDED):
        raise ClusterError(
            f"a worker died while it started: {last_line(found)}; look for the reason in its log, lower "
            "--num-workers if memory ran out, or raise --start-timeout-s if the machine is busy"
        ) from found
    if isinstance(found, BaseException):
        raise found
    return found


def missing_ranks(cfg: TrainConfig, started: Sequence[HostProcess], hosts: Hosts) -> str | None:
    """Return in one line which ranks have not joined their group, of the first group that lacks some."""
    if cfg.group.ranks_per_worker == 1:
        return None
    answer: SimpleQueue[str] = SimpleQueue()

    def ask() -> None:
        asked = {process.actor.missing_ranks.remote(): process for process in started}
        for ref in ray.wait(list(asked), num_returns=len(asked), timeout=_ASKED_S)[0]:
            with contextlib.suppress(RayError):
                if missing := ray.get(ref):
                    carried = hosts.carried(asked[ref].host)
                    who = f"worker {carried[0]}" if carried else "a spare"
                    ranks, within_s = cfg.group.ranks_per_worker, cfg.ray.start_timeout_s
                    answer.put(missing_in_words(who, missing, ranks, within_s))

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.get(timeout=_ASKED_S + 1)
    except Empty:
        return None


def lacking(cfg: TrainConfig, device: str, who: str) -> str:
    """Return in one line that processes could not be started in time, and the remedy."""
    gpus = cfg.ray.gpus_per_worker if device == "cuda" else 0
    ranks = cfg.group.ranks_per_worker
    each = f"each of {ranks} ranks" if ranks > 1 else "each"
    fewer = " or --ranks-per-worker" if ranks > 1 else " or --gpus-per-worker" if gpus else ""
    why = "the machines may be busy"  # nothing is asked of Ray: no CPU is set aside for a worker
    if gpus:
        why = f"{gpus:g} GPU {each} were asked for, and the cluster has {resources().get('GPU', 0):g} in all"
    return (
        f"{who} could not be started within --start-timeout-s {cfg.ray.start_timeout_s:g}: {why}; "
        f"lower --num-workers{fewer}, or wait longer "
        "(beside programs that compute, RAY_worker_niceness=0 gives the workers an equal share)"
    )


def _await_room(cfg: TrainConfig, until_s: float) -> None:
    """Wait until the cluster that the environment names, which may still grow, has enough memory."""
    while True:
        has = resources()
        # Ray counts apart what it keeps for objects, which is taken only as objects come.
        memory = has.get("memory", 0.0) + has.get("object_store_memory", 0.0)
        too_little = shortage(cfg, memory, "the cluster has")
        if too_little is None:
            return
        if time.monotonic() > until_s:
            raise ClusterError(too_little)
        time.sleep(0.1)
