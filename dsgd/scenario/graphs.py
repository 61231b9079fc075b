"""Graphs of workers: who exchanges with whom in round t, and with which weight.

All functions are pure: they depend on the graph, the round, the members who are present and the seed. Random
choices are counter-based draws, so a round that is repeated has the same graph.

A *mixing* gives each worker i the workers j from whom it receives, with their weights W_ij; what is left of
1 is the weight of its own vector. Where nothing must be lost (D-PSGD) it is doubly stochastic: rows and
columns sum to 1. A *push* gives each worker j those to whom it sends: each of them, and j itself, gets an
equal share, so columns sum to 1, but not always rows; push-sum (SGP) corrects for that.

| graph | mixing | push, one peer at a time | neighbours |
|---|---|---|---|
| ring | both neighbours, 1/3 each | the next one | both |
| exponential | i - 2^k for all 2^k < N | i + 2^(t mod ceil(log2 N)) | i +- 2^k |
| random | a random perfect matching, 1/2 | a random other one | all others |
| complete | all, 1/N each | all | all others |
| a file's | Metropolis weights 1/(1 + max(d_i, d_j)) | its lines, from left to right | its lines |

Sources: Xiao and Boyd 2004, "Fast linear iterations for distributed averaging" (Metropolis weights); Assran
et al. 2019 (arXiv 1811.10792) and Ying et al. 2021 (arXiv 2110.13363), static and one-peer exponential
graphs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from dsgd.core.rng import Purpose, at

Mixing: TypeAlias = Mapping[int, Mapping[int, float]]
"""By worker i: the weights of those from whom it receives. Its own, if not there, is what is left of 1."""

NAMES = ("ring", "exponential", "random", "complete")
_ROUND = 0  # the stream of draws that all workers share; worker i's own is i + 1


@dataclass(frozen=True)
class Graph:
    """A graph by its name, or the edges (i, j) of a file's, as they stand there."""

    name: str
    edges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Graph:
        """Return the graph that an option names; raises ValueError with the rule, in one line.

        >>> Graph.parse("ring")
        Graph(name='ring', edges=())
        """
        if text in NAMES:
            return cls(text)
        path = Path(text)
        if not path.is_file():
            raise ValueError(f"must be {', '.join(NAMES)} or a file of edges, and there is no file {text}")
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            raise ValueError("must be a text file, with an edge like `0 1` in each line") from None
        edges: dict[tuple[int, int], int] = {}
        for number, line in enumerate(lines, start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
                raise ValueError(f"must have two workers in each line, like `0 1`; see line {number}")
            edge = int(words[0]), int(words[1])
            if edge[0] == edge[1]:
                raise ValueError(f"must not join worker {edge[0]} to itself; see line {number}")
            if edge in edges:
                raise ValueError(f"must name each edge once; line {number} repeats line {edges[edge]}")
            edges[edge] = number
        if not edges:
            raise ValueError("must have an edge like `0 1` in each line, and the file has none")
        return cls(text, tuple(edges))

    def lacking(self, num_workers: int, *, directed: bool = False) -> str:
        """Return why the graph is not one of all workers, as a rule; empty if it is.

        directed: whether each edge is an arc from left to right, along which alone vectors go.
        """
        if not self.edges:
            return ""
        if strange := sorted({worker for edge in self.edges for worker in edge if worker >= num_workers}):
            return f"must name workers 0 to {num_workers - 1}, and it has worker {strange[0]}"
        for arcs in (self.edges, [(j, i) for i, j in self.edges]) if directed else (_both_ways(self.edges),):
            if missing := set(range(num_workers)) - _distances(arcs, 0).keys():
                rule = "lead along its arcs from every worker to every other" if directed else "be connected"
                return f"must {rule}, and worker 0 and worker {min(missing)} are not"
        return ""

    def neighbours(self, worker: int, members: Sequence[int]) -> Sequence[int]:
        """Return the members, ascending, with whom a worker exchanges in a graph that stays as it is."""
        if self.edges:
            present = set(members)
            return sorted({j for i, j in _both_ways(self.edges) if i == worker and j in present})
        n, at_place = len(members), members.index(worker)
        if self.name == "ring":
            hops: Iterable[int] = (1, n - 1)
        elif self.name == "exponential":
            hops = [hop for power in powers(n) for hop in (power, n - power)]
        else:
            hops = range(1, n)
        return sorted({members[(at_place + hop) % n] for hop in hops} - {worker})

    def mixing(self, t: int, members: Sequence[int], seed: int) -> Mixing:
        """Return the weights of round t, doubly stochastic. members: ascending."""
        n = len(members)
        if self.name == "random":
            order = at(seed, Purpose.GOSSIP, _ROUND, t).permutation(n).tolist()
            pairs = {members[a]: members[b] for a, b in zip(order[::2], order[1::2], strict=False)}
            pairs |= {b: a for a, b in pairs.items()}
            return {i: {pairs[i]: 0.5} if i in pairs else {} for i in members}
        return _static(self, tuple(members))

    def one_peer(self, t: int, members: Sequence[int], seed: int) -> Mixing:
        """Return the weights of round t, in which each has one peer where the graph allows it.

        Of the exponential graph, i receives from i - 2^(t mod ceil(log2 N)); all others are as in `mixing`.
        """
        if self.name != "exponential" or len(members) == 1:
            return self.mixing(t, members, seed)
        hops = powers(len(members))
        return {i: {members[a - hops[t % len(hops)]]: 0.5} for a, i in enumerate(members)}

    def pushes(self, t: int, members: Sequence[int], seed: int) -> Mapping[int, Sequence[int]]:
        """Return, by worker, those to whom it pushes in round t."""
        n = len(members)
        if self.edges:
            present = set(members)
            return {i: [b for a, b in self.edges if a == i and b in present] for i in members}
        if n == 1:
            return {members[0]: []}
        match self.name:
            case "complete":
                return {i: self.neighbours(i, members) for i in members}
            case "random":
                hops = at(seed, Purpose.GOSSIP, _ROUND, t).integers(1, n, n).tolist()
            case "exponential":
                hops = [powers(n)[t % len(powers(n))]] * n
            case _:
                hops = [1] * n
        return {i: [members[(a + hop) % n]] for a, (i, hop) in enumerate(zip(members, hops, strict=True))}

    def peer(self, worker: int, step: int, members: Sequence[int], seed: int) -> int | None:
        """Return a random neighbour of a worker for its mini-batch `step`; None if it has none."""
        near = self.neighbours(worker, members)
        return near[int(at(seed, Purpose.GOSSIP, worker + 1, step).integers(len(near)))] if near else None


def powers(n: int) -> Sequence[int]:
    """Return the powers of two below n: the hops of the exponential graph of n workers.

    >>> powers(6)
    [1, 2, 4]
    """
    return [1 << k for k in range((n - 1).bit_length())]


def shares(pushes: Mapping[int, Sequence[int]]) -> Mixing:
    """Return the weights that pushes make, each worker's share for itself among them.

    >>> shares({0: [1], 1: []})
    {0: {0: 0.5}, 1: {1: 1.0, 0: 0.5}}
    """
    kept = {j: 1 / (1 + len(targets)) for j, targets in pushes.items()}
    rows = {i: {i: share} for i, share in kept.items()}
    for j, targets in pushes.items():
        for i in targets:
            rows[i][j] = kept[j]
    return rows


@lru_cache(maxsize=16)
def _static(graph: Graph, members: tuple[int, ...]) -> Mixing:
    """Return the weights of a graph that stays as it is while its members do."""
    if graph.name == "exponential":
        hops = powers(len(members))
        return {i: _equal(members[a - hop] for hop in hops) for a, i in enumerate(members)}
    near = {i: graph.neighbours(i, members) for i in members}
    if graph.edges:
        return {i: {j: 1 / (1 + max(len(near[i]), len(near[j]))) for j in near[i]} for i in members}
    return {i: _equal(near[i]) for i in members}


def _equal(sources: Iterable[int]) -> dict[int, float]:
    """Return equal weights for some workers, and as much for the one that receives from them."""
    found = list(sources)
    return dict.fromkeys(found, 1 / (1 + len(found)))


def _both_ways(edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [arc for i, j in edges for arc in ((i, j), (j, i))]


def _distances(arcs: Iterable[tuple[int, int]], start: int) -> dict[int, int]:
    """Return how many arcs each worker is away from the first; those that cannot be reached are missing."""
    targets: dict[int, list[int]] = {}
    for i, j in arcs:
        targets.setdefault(i, []).append(j)
    found, reached = {start: 0}, deque([start])
    while reached:
        i = reached.popleft()
        for j in targets.get(i, ()):
            if j not in found:
                found[j] = found[i] + 1
                reached.append(j)
    return found
