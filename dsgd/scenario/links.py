"""The links of the workers, and the racks they are in: how long bytes take on each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Links:
    """Of `num_workers` workers, in `racks` racks of equal blocks; every link has two directions.

    bytes_per_s: of a worker's link. slow: by worker, how many times longer bytes take on its link.
    rack_bytes_per_s: of the link of a rack to all others.

    >>> links = Links(4, bytes_per_s=100.0, slow={3: 10.0}, racks=2, rack_bytes_per_s=50.0)
    >>> [links.worker_s(worker, 200) for worker in (0, 3)], links.rack(1), links.rack(2)
    ([2.0, 20.0], 0, 1)
    """

    num_workers: int = 1
    bytes_per_s: float = math.inf
    slow: Mapping[int, float] = field(default_factory=dict)
    racks: int = 1
    rack_bytes_per_s: float = math.inf

    @property
    def instant(self) -> bool:
        """Whether bytes take no time on any of them."""
        return math.inf == self.bytes_per_s and (self.racks == 1 or self.rack_bytes_per_s == math.inf)

    def worker_s(self, worker: int, num_bytes: float) -> float:
        """Return the seconds that so many bytes take on a worker's link."""
        return num_bytes / self.bytes_per_s * self.slow.get(worker, 1.0)

    def slowest_s(self, workers: Iterable[int], num_bytes: float) -> float:
        """Return the same for the slowest of these workers' links."""
        factor = max((self.slow.get(worker, 1.0) for worker in workers), default=1.0) if self.slow else 1.0
        return num_bytes / self.bytes_per_s * factor

    def rack(self, worker: int) -> int:
        """Return the rack of a worker, from 0."""
        return min(worker, self.num_workers - 1) * self.racks // self.num_workers

    def rack_s(self, num_bytes: float) -> float:
        """Return the seconds that so many bytes take on a rack's link."""
        return num_bytes / self.rack_bytes_per_s
