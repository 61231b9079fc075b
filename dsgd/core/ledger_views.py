"""What strategies and records see of the ledger: the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from dsgd.core import rules
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.ledger import Flight, Ledger
from dsgd.core.model import Evaluation, Workload
from dsgd.core.protocol import Done, TraceEvents
from dsgd.core.traffic import Traffic
from dsgd.core.weights import Vector, Weights, spread

F = TypeVar("F", bound=Flight)


class LedgerViews(Generic[F]):
    """An engine's base class: the part of `Engine` that only reads the ledger.

    An engine calls `_keep` when it is made, and again when it goes on from another state.
    """

    combine = staticmethod(rules.combine)
    faults_seen: list[FaultSeen]

    def spread(self, dones: Sequence[Done]) -> float:
        return spread([done.value for done in dones])

    def _keep(self, ledger: Ledger[F]) -> None:
        """Show this ledger from now on."""
        self._ledger = ledger
        # Attributes, not properties: every task reads them.
        self.idle, self.clocks, self.in_flight = ledger.idle, ledger.clocks, ledger.in_flight

    def evaluate(
        self, workload: Workload, w: Vector, models: Mapping[int, Vector] | None = None
    ) -> Evaluation | None:
        return workload.evaluate(w, models)

    def fetch(self, w: Weights, *, slots: bool = False) -> None:
        pass  # it is here, unless workers all-reduce

    def values(self, dones: Sequence[Done]) -> Mapping[int, Vector]:
        return {done.worker: done.value for done in dones}

    def note(self, fault: FaultSeen) -> None:
        self.faults_seen.append(fault)

    def stand_still(self, seconds: float) -> None:
        pass  # only a simulated server does

    @property
    def memory_bytes(self) -> Mapping[str, int]:
        return {}

    def process_logs(self, *, wait: bool) -> Mapping[str, str]:
        return {}

    def profile(self, begin: bool) -> Mapping[str, TraceEvents]:
        return {}

    @property
    def workers(self) -> Sequence[int]:
        return self._ledger.workers

    @property
    def given(self) -> int:
        return self._ledger.given

    @property
    def traffic(self) -> Traffic:
        return self._ledger.traffic

    @property
    def cancelled(self) -> Sequence[int]:
        return self._ledger.cancelled

    @property
    def cancelled_s(self) -> Sequence[float]:
        return self._ledger.cancelled_s

    def reading(self, worker: int) -> Weights:
        return self._ledger.flights[worker].w

    def came_in_s(self, worker: int) -> tuple[float, float]:
        return self._ledger.came_in_s[worker]
