"""Real workers and several real servers, each with a slice of the weights and of the rule's slots.

The driver decides, as with one server: it sees losses, times and version numbers. A worker's process returns
its value in slices, each a reference to an object of Ray's; the driver hands them to the servers, and the
references to the servers' new slices to the next tasks. It looks into vectors only to evaluate, for
checkpoints, at the end, and where a strategy or an option does.

There is one version of all slices at a time, because the driver orders the updates: so the bits are those of
one server, also without a barrier.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from dsgd.engines.ray.driver.cluster import RayCluster

# isort: split
from ray.exceptions import ObjectLostError

from dsgd.config import TrainConfig
from dsgd.core import slices
from dsgd.core.cluster_state import ClusterState
from dsgd.core.model import Workload
from dsgd.core.protocol import ClusterError, Done, WeightsLost
from dsgd.core.rules import Chain, Compensate, Moved, Reduction, Rule, TaskResult
from dsgd.core.slices import Slices
from dsgd.core.weights import Vector, Weights
from dsgd.engines.ray.connection.connect import Connection, connect
from dsgd.engines.ray.driver.news import Answered
from dsgd.engines.ray.driver.remote_weights import HeldDone, HeldWeights, have_fetched, held
from dsgd.engines.ray.driver.sent_tasks import SentTasks
from dsgd.engines.ray.exchange.servers import Servers
from dsgd.engines.ray.exchange.sliced_tasks import SlicedTasks, SlicedVector, SlicedWeights
from dsgd.engines.ray.worker.slice_server import Read
from dsgd.scenario.fault import Fault

_READ_ORIGINS = (Compensate, Moved)  # the parts of rules that look at the weights that a worker read


class RaySharded(RayCluster):
    """A RayCluster whose weights are with `cfg.network`'s servers."""

    _sends: ClassVar[type[SentTasks]] = SlicedTasks

    def __init__(self, cfg: TrainConfig, workload: Workload, connection: Connection | None = None) -> None:
        self._servers: Servers | None = None
        connection = connection or connect(cfg.ray.start_timeout_s)
        super().__init__(cfg, workload, connection)
        self._sliced = cast("SlicedTasks", self._tasks)
        self._sliced.slices = Slices(workload.objective.num_weights, cfg.network.parsed_topology.servers)
        self._newest: SlicedWeights | None = None  # what the servers hold
        try:
            self._servers = Servers(cfg, connection, self._lose_server)
            self._servers.await_ready(cfg.ray.start_timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._servers:
            self._servers.close()
        super().close()

    @property
    def servers(self) -> Servers:
        """The processes that hold the weights."""
        assert self._servers
        return self._servers

    def fetch(self, w: Weights, *, slots: bool = False) -> None:
        have_fetched(w, slots=slots)

    def values(self, dones: Sequence[Done]) -> Mapping[int, Vector]:
        found = {}
        for done in dones:
            with contextlib.suppress(ObjectLostError):
                found[done.worker] = done.value
        return found

    def restore(self, state: ClusterState) -> None:
        self._newest = None
        self.servers.replace_lost()
        super().restore(state)

    # --- updates --------------------------------------------------------------------------------------------

    def _answered(self, news: Answered) -> Done | None:
        done = super()._answered(news)
        if done is None:
            return None
        if self._cfg.network.replicas > 1:
            self._ledger.traffic.to_backups[done.worker] += done.bytes_to_server
        return HeldDone(*done)

    def combine(self, rule: Rule, w: Weights, results: Sequence[TaskResult]) -> Weights:
        if not self._objective.num_weights:
            return super().combine(rule, w, results)
        if not slices.steps_in_slices(rule):
            raise ClusterError(
                f"--topology {self._cfg.network.topology}: the strategy's rule is not known to take the same "
                "step on a slice as on the whole; make it with dsgd.core.rules.chain of parts that are "
                "there, or use --topology server"
            )
        dones = [cast("Done", result) for result in results]
        try:
            self._have_held(w)
            by_slice = self._sent(rule, w, dones)
            whole = self._whole(rule, w, dones, by_slice)
            made = self.servers.step([(rule, whole, *here) for here in by_slice])
        except ObjectLostError as error:
            raise WeightsLost(
                f"a slice of the weights or of a result was lost with its machine ({type(error).__name__}); "
                "go on with --resume, and give --checkpoint-every, from which a run goes on by itself"
            ) from error
        return self._made(w, made)

    def _have_held(self, w: Weights) -> None:
        """Have the servers hold these weights, if they do not: the first, and those of a checkpoint."""
        held_there: object = w[0]
        if self._newest is None or held_there is not self._newest:
            parts = self._sliced.slices
            assert not isinstance(held_there, SlicedWeights) or held_there.has_slots
            slots = {name: parts.of(slot) for name, slot in w.slots.items()}
            self.servers.hold(
                [
                    Weights(part, w.version, {name: slot[number] for name, slot in slots.items()})
                    for number, part in enumerate(parts.of(w.vector))
                ]
            )

    def _sent(self, rule: Rule | None, w: Weights, dones: Sequence[Done]) -> list[tuple[Any, ...]]:
        """Return, by slice, what made the results, then references to their values and, if the rule looks at
        them, to the weights that they read.
        """
        values = [self._of_value(done) for done in dones]
        vectors = [value.refs for value in values]
        origins: dict[int, int] = {}  # by identity: which vector it is
        reads = []
        looks = isinstance(rule, Chain) and any(
            isinstance(part, _READ_ORIGINS) for part in (*rule.each, *rule.parts)
        )
        for done in dones:
            origin = done.origin
            key = id(origin[0])
            if looks and origin[0] is not w[0] and key not in origins:
                origins[key] = len(vectors)
                vectors.append(self._sliced.of_weights(origin).refs)
            reads.append(Read(done.worker, done.read, origins.get(key)))
        messages = zip(*(value.messages() for value in values), strict=True)
        return [
            ([read._replace(message=message) for read, message in zip(reads, here, strict=True)], *refs)
            for here, *refs in zip(messages, *vectors, strict=True)
        ]

    def _of_value(self, done: Done) -> SlicedVector:
        value: Any = done[5]
        return value if isinstance(value, SlicedVector) else self._sliced.sliced(value)

    def _whole(
        self,
        rule: Rule,
        w: Weights,
        dones: Sequence[Done],
        by_slice: Sequence[tuple[Any, ...]],
    ) -> Reduction | None:
        """Return what the rule needs to know of whole vectors: sums over chunks, in their order."""
        if not slices.needs_whole(rule):
            return None
        assert isinstance(rule, Chain)
        if not self._sliced.slices.whole_chunks:  # few weights
            return rule.reduction(slices.chunks(w, dones))
        gram = squares = None
        if rule.aggregation and rule.aggregation.by:
            found = self.servers.ask("grams", [(rule, *here) for here in by_slice])
            first, *others = [matrix for matrices in found for matrix in matrices]
            gram = sum(others, first)
        if rule.clip:
            found = self.servers.ask("squares", [(rule, gram, *here) for here in by_slice])
            squares = sum(number for numbers in found for number in numbers)
        return Reduction(gram, squares)

    def _made(self, w: Weights, made: Sequence[Sequence[Any]]) -> HeldWeights:
        """Return the version after `w`. made: by slice, references to it."""
        if self._newest is not None:
            self._newest.is_old()
        self._newest = SlicedWeights(SlicedVector(made), self._slots)
        return held(w.version + 1, w.kept, self._newest, wire_bytes=None)

    def _slots(self) -> Mapping[str, Vector]:
        """Fetch the slots that the servers hold."""
        parts = self.servers.ask("slots", [()] * len(self._sliced.slices.bounds))
        # A server without weights, as there are fewer than servers, has no slots: the first has some.
        return {name: np.concatenate([part[name] for part in parts if part]) for name in parts[0]}

    def spread(self, dones: Sequence[Done]) -> float:
        """Return the mean distance of values to their mean, from squared distances that the servers sum."""
        found = self.servers.ask("distances", self._sent(None, dones[0].origin, dones))
        return float(np.mean(np.sqrt(np.sum(found, axis=0))))

    # --- servers that are lost ------------------------------------------------------------------------------

    def _happens(self, fault: Fault) -> None:
        if not fault.servers:
            super()._happens(fault)
            return
        self._supervisor.book.begin("kill", expected={-1 - number for number in fault.servers})
        for number in fault.servers:
            self.servers.end(number)

    def _lose_server(self, number: int, what: str) -> None:
        """Enter that a process of a server was lost."""
        book, place = self._supervisor.book, -1 - number  # no host has that number
        fault = book.expecting(place) or book.begin("kill", asked=False)
        fault.expected.discard(place)
        book.detect(fault)
        self._supervisor.server_lost(number, what, fault)
        if not fault.expected:
            book.end(fault)
