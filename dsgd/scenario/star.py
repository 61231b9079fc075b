"""Servers in the middle: every worker exchanges with one of them, or with several that hold a slice each.

    servers' links, racks' links -> latency -> compute -> latency -> racks' links, servers' links -> service

The bytes of a message flow through all links on their way at once. A link serves messages one after another,
in the order in which they come; a message is there once the last of its links has let it through, and the
latency has passed. Alone, it takes its latency and its bytes over the slowest link's bandwidth. Packets that
are lost make it late, and nothing else: links serve others meanwhile.

S servers have equal slices of every vector, so all their links are in the same state, and a slice passes in
1/S of the time of the whole.

A topology is plain functions of time: when does a message that leaves now arrive? It starts nothing and never
waits; the simulator calls it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dsgd.core.timing import ComputeTimes
from dsgd.scenario.links import Links


class Network(NamedTuple):
    """The network between the servers and the workers."""

    latency_s: float = 0.0
    """Seconds a message travels, each way."""
    bytes_per_s: float = math.inf
    """Of a server's link, in each direction."""
    service: ComputeTimes | None = None
    """Seconds one server takes for one finished task; S servers take 1/S of it for a slice each."""
    padding_bytes: int = 0
    """Added to each message."""
    servers: int = 1
    """S."""
    links: Links = Links()
    """Of the workers and their racks."""
    peers: bool = False
    """Whether there is no server: workers keep their weights, and only `Cluster.travel` moves vectors."""
    replicas: int = 1
    """2: each server passes results on to a backup, over a link between them as fast as its other one, and
    has a result once the backup has answered."""


class Star:
    """When messages arrive, given when they are sent and how many bytes they have."""

    def __init__(self, network: Network) -> None:
        self._network = network = Network() if network.peers else network
        self._links = network.links
        self._bytes_per_s = network.servers * network.bytes_per_s
        self.many_links = not network.links.instant
        """Whether a result may overtake another: it passes links that the other does not."""
        self.instant = (
            network.service is None
            and not network.latency_s
            and network.bytes_per_s == math.inf
            and not self.many_links
        )
        """Whether no message takes any time."""
        self._out_free_s = self._in_free_s = self._server_free_s = 0.0  # when each is next idle
        self._copied_s = 0.0  # when the link to the backup is
        self._served = self._messages = 0
        self._racks_in_free_s = [0.0] * network.links.racks
        self._racks_out_free_s = [0.0] * network.links.racks

    def send(self, now_s: float, num_bytes: int, worker: int) -> float:
        """Return when a worker has a message that the servers send at `now_s`, and book the links."""
        self._out_free_s = through_s = max(now_s, self._out_free_s) + num_bytes / self._bytes_per_s
        if self.many_links:
            own_s = self._beside(self._racks_in_free_s, now_s, num_bytes, worker)
            through_s = max(through_s, own_s)
        return through_s + self._network.latency_s

    def pass_links(self, computed_s: float, num_bytes: int, worker: int) -> float:
        """Return when a result that a worker sends at `computed_s` is through all links, and book them.

        Only where there are `many_links`; call it in the order of `computed_s`, and `collect` in that of what
        it returns.
        """
        latency_s = self._network.latency_s
        self._in_free_s = max(computed_s + latency_s, self._in_free_s) + num_bytes / self._bytes_per_s
        own_s = self._beside(self._racks_out_free_s, computed_s, num_bytes, worker)
        return max(self._in_free_s, own_s + latency_s)

    def _beside(self, racks_free_s: list[float], now_s: float, num_bytes: int, worker: int) -> float:
        """Return when a message is through the link of its worker and of that's rack, and book the rack's."""
        through_s = now_s + self._links.worker_s(worker, num_bytes)
        if self._links.racks > 1:
            rack = self._links.rack(worker)
            racks_free_s[rack] = max(now_s, racks_free_s[rack]) + self._links.rack_s(num_bytes)
            through_s = max(through_s, racks_free_s[rack])
        if self._links.drop_rate:
            self._messages += 1
            s_per_byte = max(self._links.worker_s(worker, 1), 1 / self._bytes_per_s)
            latency_s = self._network.latency_s
            through_s += self._links.late_s(self._messages, num_bytes, latency_s, s_per_byte)
        return through_s

    def arrival_s(self, computed_s: float, num_bytes: int) -> float:
        """Return when the server would have a result that was computed, or passed the links, at `computed_s`;
        books nothing.
        """
        return self._path(computed_s, num_bytes)[-1]

    def collect(self, computed_s: float, num_bytes: int) -> float:
        """Return when the server has a result that was computed, or passed the links, at `computed_s`, and
        book link and service.

        Results pass them in the order in which they were computed, or passed the links, so the first of them
        also comes in first.
        """
        self._in_free_s, self._copied_s, finished_s = self._path(computed_s, num_bytes)
        if self._network.service is not None:
            self._server_free_s = finished_s
            self._served += 1
        return finished_s

    def _path(self, computed_s: float, num_bytes: int) -> tuple[float, float, float]:
        """Return when the server's incoming link is next idle, when that to its backup is, and when the
        result has been served.
        """
        network = self._network
        if self.many_links:
            link_free_s, in_s = self._in_free_s, computed_s
        else:
            free_s = max(computed_s + network.latency_s, self._in_free_s)
            link_free_s = in_s = free_s + num_bytes / self._bytes_per_s
        copied_s = self._copied_s
        if network.replicas > 1:
            copied_s = max(in_s, copied_s) + num_bytes / self._bytes_per_s
            in_s = copied_s + 2 * network.latency_s
        if network.service is None:
            return link_free_s, copied_s, in_s
        service_s = network.service.seconds(0, self._served) / network.servers
        return link_free_s, copied_s, max(in_s, self._server_free_s) + service_s

    def state(self) -> Sequence[float]:
        """Return when links and the server are next idle, and how many results and messages there were."""
        free_s = [self._out_free_s, self._in_free_s, self._server_free_s, self._served]
        copied_s = [self._copied_s] * (self._network.replicas > 1)
        messages = [self._messages] * (self._links.drop_rate > 0)
        return [*free_s, *copied_s, *messages, *self._racks_in_free_s, *self._racks_out_free_s]

    def restore(self, state: Sequence[float]) -> None:
        """Go back to what `state` returned."""
        self._out_free_s, self._in_free_s, self._server_free_s, served, *racks = map(float, state)
        if self._network.replicas > 1:
            self._copied_s, *racks = racks
        if self._links.drop_rate:
            messages, *racks = racks
            self._messages = int(messages)
        self._served, half = int(served), len(racks) // 2
        if racks:  # those of older checkpoints have none
            self._racks_in_free_s, self._racks_out_free_s = racks[:half], racks[half:]
