"""All-reduce: the workers add their results among themselves, and every one has the sum.

Times in the alpha-beta model (Hockney 1994): a message takes the latency and its bytes over the bandwidth.
N members, n bytes a vector, alpha seconds of latency, B bytes/s of the slowest member's link:

    direct   2 alpha + 2 (N-1)/N n/B              every member adds the slice of all others, in worker order
    ring     2 (N-1) (alpha + n/(N B))            Patarasuk and Yuan 2009
    halving  2 log2(N) alpha + 2 (N-1)/N n/B      recursive halving and doubling, Rabenseifner 2004; of N that
             is no power of two, the members beyond one send their vector to another first, and get the sum
             last: 2 (alpha + n/B) more

In racks (R of them, of m members, links of C bytes/s between them), direct is in two levels, within the
racks, between them, within them: 4 alpha + 2 (m-1)/m n/B + 2 (R-1)/R max(n/C, n/(m B)); in a ring, each step
takes the time of the slower kind of link. Adding takes no time.

The exchange begins when the last member is ready: with equal links nothing is lost by that, as each way
makes every member wait for the last one's slices.

Each way sends 2 (N-1) n bytes in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dsgd.scenario.links import Links


@dataclass(frozen=True)
class AllReduce:
    """One way to all-reduce, over these links."""

    kind: str
    """direct, ring or halving."""
    links: Links
    latency_s: float = 0.0

    def seconds(self, members: Sequence[int], num_bytes: int) -> float:
        """Return how long it takes once all members are ready."""
        n, size, links = num_bytes, len(members), self.links
        if size == 1:
            return 0.0
        racks = [len(rack) for rack in self._racks(members)]
        match self.kind:
            case "ring":
                step_s = links.slowest_s(members, n / size)
                if len(racks) > 1:
                    step_s = max(step_s, links.rack_s(n / size))
                return 2 * (size - 1) * (self.latency_s + step_s)
            case "halving":
                power = 1 << (size.bit_length() - 1)
                phases_s = 2 * (power.bit_length() - 1) * self.latency_s
                seconds = phases_s + 2 * (power - 1) / power * links.slowest_s(members, n)
                if power < size:
                    seconds += 2 * (self.latency_s + links.slowest_s(members, n))
                return seconds
            case _:
                most = max(racks)
                seconds = 2 * (most - 1) / most * links.slowest_s(members, n)
                if most > 1:
                    seconds += 2 * self.latency_s
                if len(racks) > 1:
                    between_s = max(links.rack_s(n), links.slowest_s(members, n / min(racks)))
                    seconds += 2 * self.latency_s + 2 * (len(racks) - 1) / len(racks) * between_s
                return seconds

    def sent(self, members: Sequence[int], num_bytes: int) -> Sequence[int]:
        """Return how many bytes each member sends; all together 2 (N-1) n."""
        n, size = num_bytes, len(members)
        match self.kind:
            case "ring":
                slices = parts(n, size)
                return [2 * n - slices[(i + 1) % size] - slices[(i + 2) % size] for i in range(size)]
            case "halving":
                power = 1 << (size.bit_length() - 1)
                slices = parts(n, power)
                sent = [n - slices[i] + _doubled(slices, i) for i in range(power)]
                beyond = size - power
                return [x + n if i < beyond else x for i, x in enumerate(sent)] + [n] * beyond
            case _:
                racks = self._racks(members)
                found = [each for rack in racks for each in _all_to_all(n, len(rack))]
                if len(racks) == 1:
                    return found
                between = [
                    x
                    for rack, total in zip(racks, _all_to_all(n, len(racks)), strict=True)
                    for x in parts(total, len(rack))
                ]
                return [a + b for a, b in zip(found, between, strict=True)]

    def received(self, members: Sequence[int], num_bytes: int) -> Sequence[int]:
        """Return how many bytes each member receives."""
        sent = self.sent(members, num_bytes)
        return [*sent[-1:], *sent[:-1]] if self.kind == "ring" else sent

    def _racks(self, members: Sequence[int]) -> list[list[int]]:
        return [list(rack) for _, rack in groupby(members, self.links.rack)]


def parts(num_bytes: int, count: int) -> list[int]:
    """Return the sizes of `count` slices of so many bytes, which differ by one byte at most.

    >>> parts(10, 4)
    [3, 3, 2, 2]
    """
    each, more = divmod(num_bytes, count)
    return [each + (i < more) for i in range(count)]


def _all_to_all(num_bytes: int, size: int) -> list[int]:
    """Return how many bytes each of `size` sends: the slices of the others, then the sum of its slice."""
    return [num_bytes - own + (size - 1) * own for own in parts(num_bytes, size)]


def _doubled(slices: Sequence[int], i: int) -> int:
    """Return the bytes that member i sends while what it has doubles, from its slice to one half of all."""
    sent, width = 0, 1
    while width < len(slices):
        begin = i // width * width
        sent += sum(slices[begin : begin + width])
        width *= 2
    return sent
