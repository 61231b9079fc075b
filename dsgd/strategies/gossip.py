"""Rounds without a server: each worker waits for those from whom it receives, and for nobody else.

In round t worker i computes at its own weights x_i^t. Its weights x_i^{t+1} follow from its result and from
what its neighbours have in round t, by the mode's rule (`Exchange`). So a worker may be some rounds ahead of
another that is far away in the graph, and which one is faster never changes a value.

An update is a round of all workers: version t has the mean of x_i^t, made of the results of round t - 1. It
is made when the last of them has come in; results of later rounds wait in `Weights.kept`. So staleness is 0,
the budget is exact, and versions compare with those of a synchronous mode with a server.

`Weights.kept` holds the weights of each worker in the round to be made and in later ones, and the results
that have come in for these; nothing else is remembered between two updates.

Members that leave and join: the graph is that of those who are present. When they change, all go back to the
round that is to be made: what had been computed for later ones is discarded. A worker that has left takes
part in that round if its result has come in; one that joins starts at the mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from dsgd.config import PeerConfig
from dsgd.core.protocol import Cluster, Done, Update, in_worker_order
from dsgd.core.tasks import Task
from dsgd.core.weights import Vector, Weights, consensus, mean
from dsgd.scenario.graphs import Mixing

Node: TypeAlias = tuple[Any, ...]
"""What a worker has: its vectors (D,), and numbers."""


class Exchange(Protocol):
    """A mode's rule: from whom workers receive in a round, and what becomes of their weights."""

    @property
    def late(self) -> bool:
        """Whether what travels is made of the round's result; else it is there when the round begins."""

    @property
    def num_bytes(self) -> int | None:
        """Of what travels along an edge; None is a vector."""

    def first(self, x: Vector) -> Node:
        """Return what a worker has that begins at the weights x (D,)."""

    def weights(self, node: Node) -> Vector:
        """Return a worker's weights (D,): what its task reads."""

    def mean(self, nodes: Sequence[Node]) -> Vector:
        """Return the mean (D,) of all workers' weights: what is evaluated."""

    def sources(self, t: int, members: Sequence[int]) -> Mixing:
        """Return from whom each worker receives in round t, and with which weights."""

    def next(
        self, worker: int, row: Mapping[int, float], nodes: Mapping[int, Node], came: Mapping[int, Done]
    ) -> Node:
        """Return what a worker has after a round. row: its sources. nodes, came: by worker, what was there
        when the round began, and the results; its own are there, and of its sources the nodes or, if `late`,
        both.
        """


class WeightsFirst:
    """Exchanges whose workers have their weights (D,), and perhaps more behind them."""

    def weights(self, node: Node) -> Vector:
        x: Vector = node[0]
        return x

    def mean(self, nodes: Sequence[Node]) -> Vector:
        return mean(node[0] for node in nodes)


def rounds(
    cluster: Cluster,
    w: Weights,
    cfg: PeerConfig,
    exchange: Exchange,
    task: Callable[[int], Task],
    most: int = 1,
) -> Iterator[Update]:
    """Yield a new version for every round of all workers, until the budget is spent.

    task: makes the task of so many mini-batches. most: mini-batches of a round; the last has what is left.
    """
    going = _Rounds(cluster, w, cfg.budget, exchange, task, most)
    going.begin()
    while not going.is_spent:
        if going.is_complete:
            yield going.update()
            going.begin()
        elif done := cluster.next_done():
            going.start(going.take(done))
        else:
            going.look_at_members()


class _Rounds:
    """The rounds that are not yet an update."""

    def __init__(
        self,
        cluster: Cluster,
        w: Weights,
        budget: int,
        exchange: Exchange,
        task: Callable[[int], Task],
        most: int,
    ) -> None:
        self._cluster, self._w, self._budget = cluster, w, budget
        self._exchange, self._task, self._most = exchange, task, most
        kept = w.kept or {"applied": 0, "members": (), "nodes": {w.version: {}}, "came": {}}
        self._applied: int = kept["applied"]
        self._members: tuple[int, ...] = kept["members"]
        # By round, from the one to be made: what workers have in it, and the results that have come in.
        self._nodes: dict[int, dict[int, Node]] = {t: dict(nodes) for t, nodes in kept["nodes"].items()}
        self._came: dict[int, dict[int, Done]] = {
            t: {i: Done(**result, origin=self._read(t, i)) for i, result in came.items()}
            for t, came in kept["came"].items()
        }
        self._at = {i: t for t in sorted(self._nodes) for i in self._nodes[t]}  # in which round each one is
        self._ignored: list[Done] = []
        self._holds_back = False
        self._in: dict[int, Sequence[int]] = {}  # by round: who takes part
        self._sources: dict[int, Mixing] = {}  # by round: who receives from whom
        self._targets: dict[int, Mapping[int, Sequence[int]]] = {}  # by round: who sends to whom

    def _read(self, t: int, worker: int) -> Weights:
        return Weights(self._exchange.weights(self._nodes[t][worker]), t)

    # --- Members --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all who are idle and can go on: after an update, and where `train` begins."""
        if tuple(self._cluster.workers) == self._members:
            self.start(self._cluster.idle)
        else:
            self.look_at_members()

    def look_at_members(self) -> None:
        """If the members have changed, go back to the round to be made, and start those who are idle in it.

        The others go on once a result has come in, so simultaneous changes give the same result in any order.
        """
        now = self._w.version
        if tuple(self._cluster.workers) != self._members:
            self._go_back()
        self._holds_back = True
        self.start(worker for worker in self._cluster.idle if self._at[worker] == now)

    def _go_back(self) -> None:
        members, now = tuple(self._cluster.workers), self._w.version
        self._members = members
        for by_round in (self._in, self._sources, self._targets):
            by_round.clear()
        for worker in list(self._cluster.in_flight):
            if self._cluster.reading(worker).version > now:
                self._cluster.cancel(worker)
        for t in sorted(t for t in self._came if t > now):
            self._ignored += in_worker_order(self._came.pop(t).values())
        nodes = self._nodes[now]
        self._nodes = {now: {i: nodes[i] if i in nodes else self._first() for i in self._who_takes_part(now)}}
        self._at = dict.fromkeys(self._nodes[now], now)
        for worker in members:
            if worker in self._cluster.in_flight:
                self._receive(now, worker)
        self._step(members)

    def _first(self) -> Node:
        return self._exchange.first(self._w.vector)

    def _who_takes_part(self, t: int) -> Sequence[int]:
        """Return the members, and those who have left with a result of the round, ascending."""
        if t not in self._in:
            self._in[t] = sorted({*self._members, *self._came.get(t, ())})
        return self._in[t]

    def _row(self, t: int, worker: int) -> Mapping[int, float]:
        """Return from whom a worker receives in a round, and with which weights."""
        if t not in self._sources:
            self._sources[t] = self._exchange.sources(t, self._who_takes_part(t))
        return self._sources[t][worker]

    def _targets_of(self, t: int, worker: int) -> Sequence[int]:
        """Return to whom a worker sends in a round."""
        if t not in self._targets:
            targets: dict[int, list[int]] = {i: [] for i in self._who_takes_part(t)}
            for i in targets:
                for j in self._row(t, i):
                    if j != i:
                        targets[j].append(i)
            self._targets[t] = targets
        return self._targets[t][worker]

    # --- Rounds of workers ----------------------------------------------------------------------------------

    def start(self, workers: Iterable[int]) -> None:
        """Give those workers who are idle the task of their round, unless they wait for others, or have none
        left.
        """
        for worker in sorted(workers):
            t = self._at[worker]
            is_ready = worker in self._cluster.idle and worker not in self._came.get(t, ())
            if is_ready and (batches := self._batches(t)):
                self._cluster.start(worker, self._task(batches), self._read(t, worker))
                self._receive(t, worker)
                if not self._exchange.late:
                    self._send(t, worker)

    def take(self, done: Done) -> Sequence[int]:
        """Enter a result; return the workers who may go on to their next round."""
        t, worker = done.read, done.worker
        self._came.setdefault(t, {})[worker] = done
        concerned = [worker]
        if self._exchange.late:
            self._send(t, worker)
            concerned += self._targets_of(t, worker)
        gone_on = self._step(concerned)
        if self._holds_back:
            self._holds_back = False
            return list(self._cluster.idle)
        return gone_on

    def _step(self, candidates: Iterable[int]) -> Sequence[int]:
        """Make the next weights of those workers who have all that these follow from, and of those who waited
        for them; return who they are.
        """
        waiting, gone_on = deque(candidates), list[int]()
        while waiting:
            worker = waiting.popleft()
            t = self._at[worker]
            came, nodes = self._came.get(t, {}), self._nodes[t]
            if worker not in came or worker not in self._members:
                continue
            row = self._row(t, worker)
            if not all(j in (came if self._exchange.late else nodes) for j in row):
                continue
            node = self._exchange.next(worker, row, nodes, came)
            for part in node:
                if isinstance(part, np.ndarray):
                    part.setflags(write=False)
            self._nodes.setdefault(t + 1, {})[worker] = node
            self._at[worker] = t + 1
            gone_on.append(worker)
            if not self._exchange.late:
                waiting += self._targets_of(t + 1, worker)
        return gone_on

    def _receive(self, t: int, worker: int) -> None:
        """Have a worker that begins a round receive what is there; the rest is sent once it is."""
        came = self._came.get(t, ())
        for j in self._row(t, worker):
            if j != worker and (j in came if self._exchange.late else self._has_begun(t, j)):
                self._cluster.travel(j, worker, self._exchange.num_bytes)

    def _send(self, t: int, worker: int) -> None:
        """Send what a worker has to those who have begun the round, and are still there."""
        for i in self._targets_of(t, worker):
            if self._has_begun(t, i) and (i in self._cluster.in_flight or i in self._cluster.idle):
                self._cluster.travel(worker, i, self._exchange.num_bytes)

    def _has_begun(self, t: int, worker: int) -> bool:
        at = self._at.get(worker, -1)
        return at > t or (at == t and (worker in self._cluster.in_flight or worker in self._came.get(t, ())))

    # --- The budget -----------------------------------------------------------------------------------------

    def _batches(self, t: int) -> int:
        """Return how many mini-batches each takes in a round: `most`, or what is left of the budget."""
        left = self._budget - self._applied
        for q in range(self._w.version, t + 1):
            count = max(1, len(self._who_takes_part(q)))
            batches = max(0, min(self._most, -(-left // count)))
            left -= batches * count
        return batches

    @property
    def is_spent(self) -> bool:
        """Whether all rounds that the budget allows are updates."""
        return not self._batches(self._w.version)

    # --- The update -----------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all have made their weights of the next version."""
        now = self._w.version
        came, after = self._came.get(now, ()), self._nodes.get(now + 1, ())
        return 0 < len(self._members) == len(after) and len(came) == len(self._who_takes_part(now))

    def update(self) -> Update:
        """Make the next version, of which all weights are there."""
        now = self._w.version
        del self._nodes[now]
        dones = in_worker_order(self._came.pop(now).values())
        for by_round in (self._in, self._sources, self._targets):
            by_round.pop(now, None)
        self._at = {i: t for i, t in self._at.items() if t > now}
        self._applied += sum(done.batches for done in dones)
        nodes = [self._nodes[now + 1][i] for i in self._members]
        w = self._w.replaced(self._exchange.mean(nodes))
        self._w = w = w.keeping(
            {
                "applied": self._applied,
                "members": self._members,
                "nodes": {t: dict(nodes) for t, nodes in self._nodes.items()},
                "came": {t: {i: _plain(done) for i, done in came.items()} for t, came in self._came.items()},
            }
        )
        ignored, self._ignored = self._ignored, []
        distance = consensus([self._exchange.weights(node) for node in nodes], w.vector)
        return Update(w, dones, ignored, {"consensus": distance})


def _plain(done: Done) -> dict[str, Any]:
    """Return a result as numbers and arrays; what it read follows from its round."""
    return {name: value for name, value in done._asdict().items() if name != "origin"}
