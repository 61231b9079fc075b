"""The links between workers: when does a vector that one sends to another arrive?

Each worker sends one message at a time and takes in one at a time, first come, first served; both at once are
possible. A message of n bytes takes n/B + alpha seconds if both ends are free, B being the bandwidth of the
slowest link on its way; one that is taken in is not stored in between, so both ends begin at the same time,
alpha seconds apart, and so do the links of their racks, if these differ.

A task begins once all is there that was sent to its worker; what the worker has from then on, it sends no
earlier.

Like `star`, plain functions of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgd.scenario.links import Links


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
        self._there_s[target] = max(self._there_s.get(target, 0.0), begin_s + slowest_s + latency_s)

    def begin(self, worker: int, now_s: float) -> float:
        """Return when a task begins that a worker was given at `now_s`: once all is there that was sent
        to it.
        """
        began_s = self._began_s[worker] = max(now_s, self._there_s.pop(worker, 0.0))
        return began_s

    def state(self) -> Mapping[str, Any]:
        """Return the books, as JSON values."""
        return {name: list(times.items()) for name, times in self._by_worker.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to what `state` returned."""
        for name, times in self._by_worker.items():
            times.clear()
            times.update(state.get(name, ()))

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
