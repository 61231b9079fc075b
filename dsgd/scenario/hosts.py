"""Which process carries which worker, and what is decided when one is lost: for every engine.

A worker is a shard, a clock and a state; a *host* is a process that carries workers. Losing a host is a
delay, not an event of the algorithm: tasks are pure, so any host may repeat them. Only under `--on-loss drop`
do its workers leave. A host that is silent for too long is suspected: it gets no task until it answers. Like
the ledger, this is plain data: no clock, no process; an engine carries it out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dsgd.core.protocol import ClusterError
from dsgd.core.rng import Purpose, at

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.5, 30.0
_TRUSTED, _LATE, _SILENT, _LOST = range(4)  # how doubtful it is that a host would compute a task

OnLoss = Literal["replace", "rehost", "drop"]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What follows from the loss of a host."""

    moved: Mapping[int, int] = field(default_factory=dict)
    """Worker to the living host that carries it now: its task is sent again there."""
    waiting: Sequence[int] = ()
    """Workers that wait for the new process."""
    leaving: Sequence[int] = ()
    """Workers that leave the members, with their tasks."""
    restart_s: float | None = None
    """Seconds until a new process is started; None: it is not, too many were lost in the time window."""


class Hosts:
    """Hosts 0 to `num_hosts` - 1 carry the workers, worker w at home on host w modulo that; `spares` more
    wait.

    A worker is at home whenever its home can compute. Times are seconds on the engine's clock.
    max_restarts: how often a host is started again within any `window_s` seconds.
    """

    def __init__(
        self,
        num_workers: int,
        num_hosts: int,
        spares: int = 0,
        *,
        on_loss: OnLoss = "replace",
        min_workers: int = 1,
        max_restarts: int = 3,
        window_s: float = 600.0,
        seed: int = 0,
    ) -> None:
        self.num_hosts, self.num_spares = num_hosts, spares
        self.carrier = [worker % num_hosts for worker in range(num_workers)]
        """By worker: the host that carries it, alive or expected back."""
        self.alive = [True] * (num_hosts + spares)
        self.dropped: set[int] = set()
        """Workers that have left because their host was lost: they join when it is back."""
        self._on_loss, self._min_workers = on_loss, min_workers
        self._max_restarts, self._window_s, self._seed = max_restarts, window_s, seed
        self._lost_s: list[list[float]] = [[] for _ in self.alive]
        self._servers_lost_s: dict[int, list[float]] = {}
        self._losses = [0] * len(self.alive)
        self._heard_s = [0.0] * len(self.alive)  # when it last answered, or its process was new
        self._trusted_s = [0.0] * len(self.alive)  # from when on it gets tasks; inf: once it has answered
        # When its first late answer came, if no result of it has counted since.
        self._late_since_s: list[float | None] = [None] * len(self.alive)

    def home(self, worker: int) -> int:
        """Return the host that carries `worker` as long as no host is lost."""
        return worker % self.num_hosts

    def carried(self, host: int) -> list[int]:
        """Return the workers that a host carries, ascending."""
        return [worker for worker, its_host in enumerate(self.carrier) if its_host == host]

    def place(self, worker: int, now_s: float) -> int:
        """Decide which host carries a worker from now on, and so gets its next task; return it.

        Its home if that is trusted, else the one that carries it, else a spare that stands in for its home or
        for nobody, else the one that carries the fewest. One that is not alive is waited for.
        """
        home, carrier = self.home(worker), self.carrier[worker]
        if self._doubt(home, now_s) == _TRUSTED:
            self.carrier[worker] = home
        elif self._doubt(carrier, now_s) != _TRUSTED:
            self.carrier[worker] = self._best(worker, now_s, self._homes_by_spare())
        return self.carrier[worker]

    def lose(self, host: int, now_s: float, members: Sequence[int]) -> Loss:
        """Enter that a host is lost, and decide what becomes of its workers.

        members: the workers that are members now. A host that was not alive is lost again before it was back.
        """
        self.alive[host] = False
        self._trusted_s[host], self._late_since_s[host] = 0.0, None  # as the new process will be
        restart_s = self._restart_s(host, now_s)
        carried = self.carried(host)
        placed = {worker: self.place(worker, now_s) for worker in carried}
        moved = {worker: there for worker, there in placed.items() if self.alive[there]}
        present = [worker for worker in carried if worker not in moved and worker in members]
        leaving = present[: max(0, len(members) - self._min_workers)] if self._on_loss == "drop" else []
        self.dropped.update(leaving)
        return Loss(moved=moved, leaving=leaving, waiting=present[len(leaving) :], restart_s=restart_s)

    def back(self, host: int, now_s: float) -> tuple[list[int], list[int]]:
        """Enter that a host has a new process; return the workers that have moved, or have waited and do so
        no longer, and those that join.

        Its own come home, and a spare that stood in for it now stands in for another. A task in flight stays
        where it is: only a worker's next task goes to its new host.
        """
        waited = {worker for worker, carrier in enumerate(self.carrier) if not self.alive[carrier]}
        self.alive[host], self._heard_s[host] = True, now_s
        moved = self._place_all(host, now_s)
        carried = sorted(worker for worker in waited | moved if self.alive[self.carrier[worker]])
        joining = [worker for worker in carried if worker in self.dropped]
        self.dropped.difference_update(joining)
        return carried, joining

    def gave_up(self, host: int) -> str:
        """Return, in words, why a host is not started again."""
        return f"host {host} was lost {self._often}, and is not started again"

    @property
    def _often(self) -> str:
        return f"more than {self._max_restarts} times within {self._window_s:g} s"

    def lose_server(self, number: int, now_s: float) -> None:
        """Enter that a process of a server is lost. Raises ClusterError if no other may be started."""
        if self._losses_by(now_s, self._servers_lost_s.setdefault(number, [])) > self._max_restarts:
            raise ClusterError(f"server {number} was lost {self._often}; raise --restarts")

    def heard_s(self, host: int) -> float:
        """Return when a host last answered, or had a new process."""
        return self._heard_s[host]

    def is_silent(self, host: int) -> bool:
        """Whether a host is suspected, and has not answered since."""
        return self._trusted_s[host] == math.inf

    def suspect(self, host: int, now_s: float) -> bool:
        """Enter that a living host is silent: others carry its workers until it answers.

        Return whether this is new, and so the host is to be asked for an answer. If all are silent, everybody
        stays at home.
        """
        new = self._trusted_s[host] < math.inf
        self._trusted_s[host] = math.inf
        for worker in self.carried(host):
            self.place(worker, now_s)
        return new

    def answered(self, host: int, now_s: float, *, late: bool) -> None:
        """Enter that a living host has answered: its workers come home, each with its next task.

        late: others were faster with the tasks that it had. One that is so again and again is only slow: it
        is tried again after as long a time as that has been so. So in T seconds it is tried some log T times.
        """
        self._heard_s[host] = now_s
        since_s, trusted_s = self._late_since_s[host], now_s
        if not late:
            self._late_since_s[host] = None
        elif self._trusted_s[host] < math.inf:
            return
        elif since_s is None:
            self._late_since_s[host] = now_s
        else:
            trusted_s += now_s - since_s
        if self._trusted_s[host] > now_s:
            self._trusted_s[host] = trusted_s
            self._place_all(host, now_s)

    def second(self, worker: int, first: int) -> int | None:
        """Return a living host for a second copy of the task of `worker`, which `first` has: the one that
        carries it now, else the one that carries the fewest; None if no other host lives.
        """
        carrier, load = self.carrier[worker], Counter(self.carrier)
        others = [h for h, alive in enumerate(self.alive) if alive and h != first]
        return min(others, key=lambda h: (h != carrier, load[h], h), default=None)

    def _doubt(self, host: int, now_s: float) -> int:
        """Return how doubtful it is that a host would compute a task now."""
        if not self.alive[host]:
            return _LOST
        trusted_s = self._trusted_s[host]
        return _TRUSTED if trusted_s <= now_s else _LATE if trusted_s < math.inf else _SILENT

    def _best(self, worker: int, now_s: float, homes: Mapping[int, set[int]]) -> int:
        """Return the host that is best to carry a worker; homes: of `_homes_by_spare`."""
        home, carrier = self.home(worker), self.carrier[worker]
        if self._doubt(home, now_s) == _TRUSTED:
            return home
        free = [spare for spare, stands_in_for in homes.items() if stands_in_for <= {home}]
        better = carrier not in free and any(self._doubt(spare, now_s) == _TRUSTED for spare in free)
        if self._doubt(carrier, now_s) == _TRUSTED and not better:
            return carrier
        lost = not self.alive[home] and not self.alive[carrier]
        among = free if lost and self._on_loss != "rehost" else range(len(self.alive))
        doubts = {h: self._doubt(h, now_s) for h in among if self.alive[h]}
        if not doubts:
            return carrier
        least, load = min(doubts.values()), Counter(self.carrier)
        best = [h for h, doubt in doubts.items() if doubt == least]
        # Of the spares, one that stands in for this home already: it leaves the others free.
        loads = {h: -1 - load[h] if h in free else load[h] for h in best}
        return min(best, key=lambda h: (h != home, h not in free, h != carrier, loads[h], h))

    def _homes_by_spare(self) -> Mapping[int, set[int]]:
        """Return by spare for which homes it stands in."""
        homes: dict[int, set[int]] = {spare: set() for spare in range(self.num_hosts, len(self.alive))}
        for worker, carrier in enumerate(self.carrier if homes else ()):
            if carrier in homes:
                homes[carrier].add(self.home(worker))
        return homes

    def _place_all(self, host: int, now_s: float) -> set[int]:
        """Place all workers anew, first those of `host`, which has become less doubtful; return who moved."""
        moved, homes = set[int](), self._homes_by_spare()
        for worker in sorted(range(len(self.carrier)), key=lambda worker: self.home(worker) != host):
            there = self._best(worker, now_s, homes)
            if there != self.carrier[worker]:
                stands_in = there in homes or self.carrier[worker] in homes
                self.carrier[worker] = there
                moved.add(worker)
                homes = self._homes_by_spare() if stands_in else homes
        return moved

    def _restart_s(self, host: int, now_s: float) -> float | None:
        """Return how long to wait before starting a host again: exponential backoff with jitter."""
        recent = self._losses_by(now_s, self._lost_s[host])
        self._losses[host] += 1
        if recent > self._max_restarts:
            return None
        if recent == 1:
            return 0.0
        jitter = 1 - 0.5 * float(at(self._seed, Purpose.BACKOFF, host, self._losses[host]).random())
        return min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (recent - 2)) * jitter

    def _losses_by(self, now_s: float, lost_s: list[float]) -> int:
        """Enter a loss; return how many there were within the time window."""
        lost_s[:] = [s for s in lost_s if s > now_s - self._window_s] + [now_s]
        return len(lost_s)

    def state(self) -> Mapping[str, Any]:
        """Return all of it as JSON values."""
        return {
            "carrier": list(self.carrier),
            "alive": list(self.alive),
            "dropped": sorted(self.dropped),
            "lost_s": [list(s) for s in self._lost_s],
            "losses": list(self._losses),
            **({"servers_lost_s": [*self._servers_lost_s.items()]} if self._servers_lost_s else {}),
            "heard_s": list(self._heard_s),
            "trusted_s": [None if s == math.inf else s for s in self._trusted_s],
            "late_since_s": list(self._late_since_s),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` returned; one that is older than suspicion of hosts trusts all.

        Raises ValueError for that of other workers or hosts.
        """
        own = self.state()
        for name in own.keys() - {"dropped", "servers_lost_s"}:
            if len(state.get(name, own[name])) != len(own[name]):
                raise ValueError(f"{name} of {len(state[name])}, not of {len(own[name])}")
        self.carrier, self.alive = [int(host) for host in state["carrier"]], list(state["alive"])
        self.dropped = set(state["dropped"])
        self._lost_s = [[float(s) for s in its] for its in state["lost_s"]]
        self._losses = [int(count) for count in state["losses"]]
        self._servers_lost_s = {number: list(s) for number, s in state.get("servers_lost_s", ())}
        none_s = [0.0] * len(self.alive)
        self._heard_s = [float(s) for s in state.get("heard_s", none_s)]
        self._trusted_s = [math.inf if s is None else float(s) for s in state.get("trusted_s", none_s)]
        late_s = state.get("late_since_s", [None] * len(self.alive))
        self._late_since_s = [None if s is None else float(s) for s in late_s]
