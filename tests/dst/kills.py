"""SIGKILLs of workers' and servers' processes while a run goes on, and what they cost: `make kills`.

    PYTHONPATH=tests python -m dst.kills --kills 1000 [--topology sharded:2] [--when any,forming] [--every 3]
    PYTHONPATH=tests python -m dst.kills --kills 100 --ranks-per-worker 2

A synchronous run has, bit for bit, the weights of the run to which nothing happened, whoever is killed when:

    update   right after an update
    any      some time later, in a task, in the midst of a step or between the two, from another thread
    forming  while processes form a group (all-reduce), after a kill that breaks the last one

Killed is a process that carries a worker, any rank of its group, or a server. Where workers all-reduce,
another process that has the newest weights is left; of a server's two processes the other one. In a ring of
more than two workers, weights differ by rounding with where the workers are. A run goes on until it has had
its kills.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from dsgd.core.protocol import Engine, Update
from dsgd.engines.ray.connection.connect import connect
from dsgd.engines.ray.driver.cluster import RayCluster
from dsgd.engines.ray.exchange.allreduce import RayAllReduce
from dsgd.engines.ray.exchange.sharded import RaySharded

# isort: split
import psutil  # Ray brings it

from dsgd.core.rng import Purpose, generator
from dsgd.core.weights import Vector
from dsgd.running.execute import Ended, execute
from dsgd.running.keeper import Running, Watcher
from dsgd.running.quick_run import config

MODES = ("ssgd", "localsgd", "diloco")
Moment = Literal["update", "any", "forming"]
_LOCAL_STEPS = 2
_WITHIN_S = 0.02  # of an update: several tasks and steps take no longer
_FORMED_S = 0.05  # what forming a group takes, or less
_LOOK_S = 2e-4
_PAUSE_S = 0.02  # how long an update is held up if nobody may be killed: new processes start meanwhile
_START_S = 600.0  # for a machine that does other things too
_MOST_UPDATES = 1_000_000
_ENDED_WITHIN_S = 60.0  # Ray may take long to say that a process has ended: then its callbacks are dropped


class Killer:
    """Kills `count` processes, by chance, at some of these moments, one or two after every so many updates.

    It is called after each update, as a watcher of a run is. `wait` until its threads have ended.
    """

    def __init__(
        self, count: int, seed: int, *, every: int = 1, when: Sequence[Moment] = ("update",)
    ) -> None:
        self.at_s: list[float] = []
        """Engine seconds of the kills of workers' processes; a little early where the driver killed them."""
        self.servers = 0
        """How many servers were killed."""
        self.moments: dict[Moment, int] = dict.fromkeys(get_args(Moment), 0)
        """How many were killed when."""
        self.killed: set[int] = set()
        """Also the leaders of groups of which another rank was killed: they end, too."""
        self.followers = 0
        """How many of those killed were ranks of a group, and not its leader."""
        self._count, self._every, self._when = count, every, tuple(when)
        self._draws = generator(seed, Purpose.FAULT)
        self._thread = threading.Thread()
        self._over = threading.Event()

    @property
    def is_done(self) -> bool:
        """Whether all kills have been made."""
        return self.kills >= self._count

    @property
    def kills(self) -> int:
        """How many there were."""
        return sum(self.moments.values())

    def __call__(self, cluster: Engine, update: Update) -> None:
        if self._thread.is_alive() or self.is_done or update.weights.version % self._every:
            return
        began_s = time.perf_counter() - update.finished_s
        moment = self._when[int(self._draws.integers(len(self._when)))]
        if moment == "any":
            self._later("any", cluster, began_s, float(self._draws.uniform(0, _WITHIN_S)))
            return
        groups = cluster.groups if isinstance(cluster, RayAllReduce) else 0
        if not self._kill("update", cluster, began_s):
            time.sleep(_PAUSE_S)
        elif moment == "forming" and isinstance(cluster, RayAllReduce):
            delay_s = float(self._draws.uniform(0, _FORMED_S))
            self._later("forming", cluster, began_s, delay_s, groups + 1)

    def wait(self) -> None:
        """Wait for a kill that is under way; one whose moment has not come is not made."""
        self._over.set()
        if self._thread.ident:
            self._thread.join()

    def _later(
        self, moment: Moment, cluster: Engine, began_s: float, delay_s: float, groups: int = 0
    ) -> None:
        """Kill so many seconds from now, or after so many groups have begun to form."""

        def kill() -> None:
            while isinstance(cluster, RayAllReduce) and cluster.groups < groups:
                if self._over.wait(_LOOK_S):
                    return
            if not self._over.wait(delay_s):
                self._kill(moment, cluster, began_s)

        if not self.is_done:
            self._thread = threading.Thread(target=kill, daemon=True)
            self._thread.start()

    def _kill(self, moment: Moment, cluster: Engine, began_s: float) -> bool:
        """Kill one of those that may be killed now; return whether there was one."""
        workers, servers = self._victims(cluster)
        if not workers and not servers:
            return False
        pid = [*workers, *servers][int(self._draws.integers(len(workers) + len(servers)))]
        self.killed.add(pid)
        if followers := followers_of(cluster).get(pid):
            pid = (pid, *followers)[int(self._draws.integers(1 + len(followers)))]
            self.followers += pid not in self.killed
            self.killed.add(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.moments[moment] += 1
        if pid in servers:
            self.servers += 1
        else:
            self.at_s.append(time.perf_counter() - began_s)
        return True

    def _victims(self, cluster: Engine) -> tuple[list[int], list[int]]:
        """Return the processes of workers, and those of servers, without which the run can go on."""
        workers = sorted({*cluster.pids} - self.killed)
        if isinstance(cluster, RayAllReduce):
            holders = {*cluster.holders} - self.killed
            return [pid for pid in workers if holders - {pid}], []
        if isinstance(cluster, RaySharded):
            backed = [both for both in cluster.servers.pids if len({*both} - self.killed) > 1]
            return workers, [pid for both in backed for pid in both]
        return workers, []


def followers_of(cluster: Engine) -> dict[int, tuple[int, ...]]:
    """Return the processes of the other ranks of each group, by the process of its leader."""
    assert isinstance(cluster, RayCluster)
    return {pid: tuple(followers) for pid, *followers in cluster.rank_pids}


class Versions(Watcher):
    """Notes what a run's weights are, version by version, and ends it once a killer has done its work."""

    def __init__(self, killer: Killer | None = None) -> None:
        self.digests: list[bytes] = []
        self.last: Vector = np.empty(0, np.float32)
        self.pids: set[int] = set()
        """The processes of workers and servers that the run had."""
        self._killer = killer

    def started(self, running: Running) -> None:
        self._cluster = running.cluster

    def updated(self, update: Update) -> None:
        self._cluster.fetch(update.weights)
        self.last = update.weights.vector.copy()
        self.digests.append(sha256(self.last.tobytes()).digest())
        killer = self._killer
        if killer is None:
            return
        self.pids.update(self._cluster.pids, *followers_of(self._cluster).values())
        if isinstance(self._cluster, RaySharded):
            self.pids.update(pid for both in self._cluster.servers.pids for pid in both)
        killer(self._cluster, update)
        if killer.is_done and killer.killed.isdisjoint(self._cluster.pids):  # all losses were noticed
            raise KeyboardInterrupt

    def ended(self) -> None:
        del self._cluster


@dataclass(frozen=True, kw_only=True)
class Killed:
    """A run whose processes were killed."""

    versions: Versions
    killer: Killer
    moved_s: Sequence[float]
    """Seconds from each kill until its worker's task had been sent to a spare or another host."""
    waited_s: Sequence[float]
    """The same where it waited for a new process."""


def options(
    mode: str, updates: int, topology: str = "server", workers: int = 2, ranks: int = 1
) -> dict[str, Any]:
    """Return the options of a run of so many updates on real workers; several servers have backups, and
    groups of ranks a module.
    """
    per_update = {} if mode == "ssgd" else {"local_steps": _LOCAL_STEPS}
    steps = updates * per_update.get("local_steps", 1)
    topology += ",replicas=2" if topology.startswith("sharded") else ""
    asked = {"engine": "ray", "num_workers": workers, "steps": steps, "topology": topology}
    group = {"ranks_per_worker": ranks, "workload": "moe"} if ranks > 1 else {}
    return {**asked, **group, **per_update, "start_timeout_s": _START_S}


def killed(
    mode: str,
    kills: int,
    seed: int = 0,
    *,
    every: int = 1,
    when: Sequence[Moment] = ("update",),
    topology: str = "server",
    workers: int = 2,
    ranks: int = 1,
    **more: Any,
) -> Killed:
    """Run a mode until it has had so many kills; a loss does not count towards the next."""
    killer = Killer(kills, seed, every=every, when=when)
    versions = Versions(killer)
    asked = options(mode, _MOST_UPDATES, topology, workers, ranks)
    try:
        ended = _run(mode, versions, **asked, **{"restarts": "3,within=.001", **more})
    finally:
        killer.wait()
    losses = sorted(seen for seen in ended.cluster.faults_seen if seen.kind == "kill")
    losses = [seen for seen in losses if not seen.text.startswith("server")]
    moved_s: list[float] = []
    waited_s: list[float] = []
    for at_s, seen in zip(sorted(killer.at_s), losses, strict=False):
        if seen.workers and seen.recovered_s is not None:
            (moved_s if "moved" in seen.text else waited_s).append(seen.t_s + seen.recovered_s - at_s)
    return Killed(versions=versions, killer=killer, moved_s=moved_s, waited_s=waited_s)


def undisturbed(mode: str, updates: int, workers: int = 2, ranks: int = 1) -> Versions:
    """Return the weights of a run on one server and one process, or group, to which nothing happens."""
    versions = Versions()
    _run(mode, versions, **options(mode, updates, workers=workers, ranks=ranks), hosts=1)
    return versions


def _run(mode: str, versions: Versions, **asked: Any) -> Ended:
    ended = execute(config(mode, **asked), [versions], evaluate=False)
    if ended.exception:
        raise ended.exception
    return ended


# --- what is left -------------------------------------------------------------------------------------------


class Left(NamedTuple):
    """What a run has left behind."""

    processes: int = 0
    """Of the workers and servers, those that have not ended in a minute."""
    files: int = 0
    """In /dev/shm."""
    memory: int = 0
    """Nameless files that the driver still has open."""
    descriptors: int = 0
    """That the driver has open, fewer or more than before."""


class Before(NamedTuple):
    """What there was before a run."""

    files: frozenset[str]
    descriptors: int

    @classmethod
    def now(cls) -> Before:
        gc.collect()
        return cls(shared_files(), len(os.listdir("/proc/self/fd")))

    def left(self, pids: set[int]) -> Left:
        """Return what there is now that was not there, and which of these processes are left."""
        until_s = time.monotonic() + _ENDED_WITHIN_S
        while True:
            now, lives = self.now(), sum(map(_is_rays, pids))
            memory = sum(target.startswith("/memfd:dsgd") for target in _open_files())
            if not (lives or memory) or time.monotonic() > until_s:
                descriptors = now.descriptors - self.descriptors
                return Left(lives, len(now.files - self.files), memory, descriptors)
            time.sleep(0.1)


def shared_files() -> frozenset[str]:
    """Return the files in /dev/shm; not the semaphores, which neither Ray nor dsgd makes."""
    return frozenset(name for name in os.listdir("/dev/shm") if not name.startswith("sem."))


def _is_rays(pid: int) -> bool:
    """Whether a process lives, and is one of Ray's still: another may have its number."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    return False


def _open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{number}")


# --- the table ----------------------------------------------------------------------------------------------


def spread(seconds: Sequence[float]) -> str:
    """Return how many there are, their median and the 95th percentile, in milliseconds.

    >>> spread([0.01, 0.02, 0.03])
    '3: 20 ms, 30 ms'
    """
    if not seconds:
        return "0"
    ranked = sorted(seconds)
    last = ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]
    return f"{len(ranked)}: {statistics.median(ranked) * 1e3:.0f} ms, {last * 1e3:.0f} ms"


def same(ours: Versions, theirs: Versions, *, exactly: bool = True) -> bool:
    """Whether two runs had the same weights: at every version bit for bit, or at the end up to rounding."""
    if exactly:
        return ours.digests == theirs.digests
    return len(ours.digests) == len(theirs.digests) and np.allclose(ours.last, theirs.last, 1e-4, 1e-6)


def main() -> int:
    """Print a row for each mode; return 1 unless all have the weights of the undisturbed run, and nothing of
    a run is left.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="of all modes together")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--topology", default="server")
    parser.add_argument("--when", default="", help="some of update,any,forming; all that there are")
    parser.add_argument("--every", type=int, default=1, help="so many updates")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--ranks-per-worker", type=int, default=1)
    parser.add_argument("--spares", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.kills < 1:
        parser.error(f"--kills {asked.kills}: must be 1 or more")
    modes, workers, ranks = asked.modes.split(","), asked.num_workers, asked.ranks_per_worker
    when: list[Moment] = [moment for moment in get_args(Moment) if moment in asked.when or not asked.when]
    if not asked.topology.startswith("allreduce") and "forming" in when:
        when.remove("forming")
    files = shared_files()
    connection = connect()
    well = True
    try:
        of_ranks = f" of {ranks} ranks" * (ranks > 1)
        print(f"--topology {asked.topology}, {workers} workers{of_ranks}, {asked.spares} spares\n")
        print(
            f"| mode | updates | kills | of servers | of followers | {' | '.join(when)} "
            "| re-sent at once: median, p95 | by a new process: median, p95 | same weights "
            "| left: processes, files, memory, descriptors |"
        )
        print("|---" * (9 + len(when)) + "|", flush=True)
        for k, mode in enumerate(modes):
            count = asked.kills // len(modes) + (k < asked.kills % len(modes))
            before = Before.now()
            more = {"topology": asked.topology, "workers": workers, "ranks": ranks}
            more |= {"spares": asked.spares, "on_loss": "rehost"}
            found = killed(mode, count, asked.seed, every=asked.every, when=when, **more)
            ours, killer = found.versions, found.killer
            exactly = asked.topology != "allreduce:ring" or workers == 2
            alike = same(ours, undisturbed(mode, len(ours.digests), workers, ranks), exactly=exactly)
            left = before.left(ours.pids)
            well &= alike and not any(left[:3])
            verdict = ("yes" if exactly else "up to rounding") if alike else "NO"
            moments = " | ".join(str(killer.moments[moment]) for moment in when)
            print(
                f"| {mode} | {len(ours.digests)} | {killer.kills} | {killer.servers} | {killer.followers} "
                f"| {moments} | {spread(found.moved_s)} | {spread(found.waited_s)} | {verdict} "
                f"| {', '.join(map(str, left))} |",
                flush=True,
            )
    finally:
        connection.close()
    left_files = shared_files() - files
    print(
        f"\nafter the end of Ray: {len(left_files)} files in /dev/shm, "
        f"{len(psutil.Process().children(recursive=True))} processes"
    )
    return 0 if well and not left_files else 1


if __name__ == "__main__":
    sys.exit(main())
