"""Which process carries which worker, and what is decided when one is lost: for every engine.

A worker is a shard, a clock and a state; a *host* is a process that carries workers. Losing a host is a
delay, not an event of the algorithm: tasks are pure, so any host may repeat them. Only under `--on-loss drop`
do its workers leave. Like the ledger, this is plain data: no clock, no process; an engine carries it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dsgd.work.rng import Purpose, at

_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.5, 30.0

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
        self._losses = [0] * len(self.alive)

    def home(self, worker: int) -> int:
        """Return the host that carries `worker` as long as no host is lost."""
        return worker % self.num_hosts

    def carried(self, host: int) -> list[int]:
        """Return the workers that a host carries, ascending."""
        return [worker for worker, its_host in enumerate(self.carrier) if its_host == host]

    def lose(self, host: int, now_s: float, members: Sequence[int]) -> Loss:
        """Enter that a host is lost, and decide what becomes of its workers.

        members: the workers that are members now. A host that was not alive is lost again before it was back.
        """
        self.alive[host] = False
        restart_s = self._restart_s(host, now_s)
        carried = self.carried(host)
        free = self._free()
        if carried and free is not None:
            return Loss(moved=self._move(carried, [free]), restart_s=restart_s)
        if self._on_loss == "rehost" and any(self.alive):
            return Loss(moved=self._move(carried, None), restart_s=restart_s)
        present = [worker for worker in carried if worker in members]
        if self._on_loss == "drop":
            leaving = present[: max(0, len(members) - self._min_workers)]
            self.dropped.update(leaving)
            return Loss(leaving=leaving, waiting=present[len(leaving) :], restart_s=restart_s)
        return Loss(waiting=present, restart_s=restart_s)

    def back(self, host: int) -> tuple[list[int], list[int]]:
        """Enter that a host has a new process; return the workers that it carries again, moved back or
        waiting, and those that join.

        Its home workers move back, except from a living host that carries no others. If it then carries
        nobody, it takes the workers of one home: from a lost host, else from one that carries others too. A
        task in flight stays where it is: only a worker's next task goes to its new host.
        """
        self.alive[host] = True
        waiting = [worker for worker, carrier in enumerate(self.carrier) if not self.alive[carrier]]
        if self._on_loss == "rehost" and waiting:  # no other host lived
            self._take(waiting, host)
        at_home = [worker for worker in range(len(self.carrier)) if self.home(worker) == host]
        there = {self.carrier[worker] for worker in at_home} - {host}
        if any(not self.alive[carrier] or len(self._homes(carrier)) > 1 for carrier in there):
            self._take(at_home, host)
        if not self.carried(host):
            self._take(self._waiting_or_crowded(waiting), host)
        carried = self.carried(host)
        joining = [worker for worker in carried if worker in self.dropped]
        self.dropped.difference_update(joining)
        return carried, joining

    def second(self, worker: int, busy: Mapping[int, int], besides: int | None = None) -> int | None:
        """Return another living host for a second copy of the task of `worker`: a free spare, else the one
        with the fewest tasks.

        busy: tasks by host. besides: the host that has the first copy, if it is not the worker's carrier now.
        None if no other host lives.
        """
        first = self.carrier[worker] if besides is None else besides
        others = [h for h, alive in enumerate(self.alive) if alive and h != first]
        return min(others, key=lambda h: (busy.get(h, 0), -h if self._is_spare(h) else h), default=None)

    def _take(self, workers: Sequence[int], host: int) -> None:
        for worker in workers:
            self.carrier[worker] = host

    def _homes(self, host: int) -> set[int]:
        """Return whose workers a host carries, by their home."""
        return {self.home(worker) for worker in self.carried(host)}

    def _waiting_or_crowded(self, waiting: Sequence[int]) -> Sequence[int]:
        """Return the workers for a host that carries nobody, all of one home; none if each has its own."""
        if waiting:
            return self._of_one_home(self.carrier[waiting[0]])
        most = max(range(len(self.alive)), key=lambda host: len(self._homes(host)))
        return self._of_one_home(most) if len(self._homes(most)) > 1 else ()

    def _of_one_home(self, host: int) -> list[int]:
        """Return those workers a host carries that have the last home among them."""
        last = max(self._homes(host))
        return [worker for worker in self.carried(host) if self.home(worker) == last]

    def _is_spare(self, host: int) -> bool:
        return host >= self.num_hosts

    def _free(self) -> int | None:
        """Return a living host that carries nobody, if there is one."""
        carrying = set(self.carrier)
        return next((h for h, alive in enumerate(self.alive) if alive and h not in carrying), None)

    def _move(self, workers: Sequence[int], to: Sequence[int] | None) -> dict[int, int]:
        carried = Counter(self.carrier)
        load = {h: carried[h] for h, alive in enumerate(self.alive) if alive}
        for worker in workers:
            host = to[0] if to else min(load, key=lambda h: (load[h], h))
            self.carrier[worker] = host
            load[host] += 1
        return {worker: self.carrier[worker] for worker in workers}

    def _restart_s(self, host: int, now_s: float) -> float | None:
        """Return how long to wait before starting a host again: exponential backoff with jitter."""
        recent = [s for s in self._lost_s[host] if s > now_s - self._window_s] + [now_s]
        self._lost_s[host] = recent
        self._losses[host] += 1
        if len(recent) > self._max_restarts:
            return None
        if len(recent) == 1:
            return 0.0
        jitter = 1 - 0.5 * float(at(self._seed, Purpose.BACKOFF, host, self._losses[host]).random())
        return min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (len(recent) - 2)) * jitter

    def state(self) -> Mapping[str, Any]:
        """Return all of it as JSON values."""
        return {
            "carrier": list(self.carrier),
            "alive": list(self.alive),
            "dropped": sorted(self.dropped),
            "lost_s": [list(s) for s in self._lost_s],
            "losses": list(self._losses),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` returned."""
        self.carrier, self.alive = list(state["carrier"]), list(state["alive"])
        self.dropped = set(state["dropped"])
        self._lost_s, self._losses = [list(s) for s in state["lost_s"]], list(state["losses"])
