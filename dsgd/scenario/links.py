"""The links of the workers, and the racks they are in: how long bytes take on each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsgd.core.rng import Purpose, at

_PACKET_BYTES = 1460  # of data in an Ethernet frame: 1,500 less the headers of IP and TCP


@dataclass(frozen=True)
class Links:
    """Of `num_workers` workers, in `racks` racks of equal blocks; every link has two directions.

    bytes_per_s: of a worker's link. slow: by worker, how many times longer bytes take on its link.
    rack_bytes_per_s: of the link of a rack to all others. drop_rate: share of the packets that are lost on
    their way, drawn from the seed.

    >>> links = Links(4, bytes_per_s=100.0, slow={3: 10.0}, racks=2, rack_bytes_per_s=50.0)
    >>> [links.worker_s(worker, 200) for worker in (0, 3)], links.rack(1), links.rack(2)
    ([2.0, 20.0], 0, 1)
    """

    num_workers: int = 1
    bytes_per_s: float = math.inf
    slow: Mapping[int, float] = field(default_factory=dict)
    racks: int = 1
    rack_bytes_per_s: float = math.inf
    drop_rate: float = 0.0
    seed: int = 0

    @property
    def instant(self) -> bool:
        """Whether messages take no time on any of them."""
        rates = self.bytes_per_s, math.inf if self.racks == 1 else self.rack_bytes_per_s
        return rates == (math.inf, math.inf) and not self.drop_rate

    def worker_s(self, worker: int, num_bytes: float) -> float:
        """Return the seconds that so many bytes take on a worker's link."""
        return num_bytes / self.bytes_per_s * self.slow.get(worker, 1.0)

    def slowest_s(self, workers: Iterable[int], num_bytes: float) -> float:
        """Return the same for the slowest of these workers' links."""
        factor = max((self.slow.get(worker, 1.0) for worker in workers), default=1.0) if self.slow else 1.0
        return num_bytes / self.bytes_per_s * factor

    def late_s(self, message: int, num_bytes: int, latency_s: float, s_per_byte: float) -> float:
        """Return by how much a run's message number `message` is late, as packets are lost.

        What is lost is sent again a round trip later, when the acknowledgements of the rest show it, until
        all of it is there (RACK-TLP, RFC 8985).
        """
        late_s, missing = 0.0, -(-num_bytes // _PACKET_BYTES)
        random = at(self.seed, Purpose.PACKETS, 0, message)
        while missing := int(random.binomial(missing, self.drop_rate)):
            late_s += 2 * latency_s + missing * _PACKET_BYTES * s_per_byte
        return late_s

    def rack(self, worker: int) -> int:
        """Return the rack of a worker, from 0."""
        return min(worker, self.num_workers - 1) * self.racks // self.num_workers

    def rack_s(self, num_bytes: float) -> float:
        """Return the seconds that so many bytes take on a rack's link."""
        return num_bytes / self.rack_bytes_per_s


class PeerLinks:
    """Books what workers send to each other.

    latency_s: seconds a message travels. links: of the workers and their racks.
    """

    def __init__(self, latency_s: float, links: Links) -> None:
        self._latency_s, self._links = latency_s, links
        self._out_free_s: dict[int, float] = {}
        self._in_free_s: dict[int, float] = {}
        self._there_s: dict[int, float] = {}
        self._began_s: dict[int, float] = {}
        self._rack_out_free_s: dict[int, float] = {}
        self._rack_in_free_s: dict[int, float] = {}
        self._messages = 0

    def travel(self, source: int, target: int, num_bytes: int, now_s: float) -> None:
        """Book a message that is to be sent at `now_s`."""
        latency_s, links = self._latency_s, self._links
        source_s, target_s = links.worker_s(source, num_bytes), links.worker_s(target, num_bytes)
        slowest_s = max(source_s, target_s)
        free_s = max(self._out_free_s.get(source, 0.0), self._in_free_s.get(target, 0.0) - latency_s)
        out, into = links.rack(source), links.rack(target)
        if out != into:
            rack_s = links.rack_s(num_bytes)
            slowest_s = max(slowest_s, rack_s)
            free_s = max(free_s, self._rack_out_free_s.get(out, 0.0), self._rack_in_free_s.get(into, 0.0))
        begin_s = max(now_s, self._began_s.get(source, 0.0), free_s)
        if out != into:
            self._rack_out_free_s[out] = self._rack_in_free_s[into] = begin_s + rack_s
        self._out_free_s[source] = begin_s + source_s
        self._in_free_s[target] = begin_s + target_s + latency_s
        there_s = begin_s + slowest_s + latency_s
        if links.drop_rate:
            self._messages += 1
            s_per_byte = slowest_s / num_bytes if num_bytes else 0.0
            there_s += links.late_s(self._messages, num_bytes, latency_s, s_per_byte)
        self._there_s[target] = max(self._there_s.get(target, 0.0), there_s)

    def begin(self, worker: int, now_s: float) -> float:
        """Return when a task begins that a worker was given at `now_s`: once all is there that was sent
        to it.
        """
        began_s = self._began_s[worker] = max(now_s, self._there_s.pop(worker, 0.0))
        return began_s

    def state(self) -> Mapping[str, Any]:
        """Return the books, as JSON values."""
        counted = {"messages": self._messages} if self._links.drop_rate else {}
        return {**{name: list(times.items()) for name, times in self._by_worker.items()}, **counted}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` returned."""
        self._messages = int(state.get("messages", 0))
        for name, times in self._by_worker.items():
            times.clear()
            times.update((worker, float(at_s)) for worker, at_s in state.get(name, ()))

    @property
    def _by_worker(self) -> dict[str, dict[int, float]]:
        return {
            "out_free_s": self._out_free_s,
            "in_free_s": self._in_free_s,
            "there_s": self._there_s,
            "began_s": self._began_s,
            "rack_out_free_s": self._rack_out_free_s,
            "rack_in_free_s": self._rack_in_free_s,
        }
