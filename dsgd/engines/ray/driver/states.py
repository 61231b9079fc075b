"""What workers hand on from task to task, where it may be lost with a machine.

A state stays on the machine on which it was computed, in shared memory or in Ray's store, and outlives its
process. Where that is not the driver's machine, a copy is fetched in the background. Should the machine be
lost before it is here, the task that made the state is computed again, from the state before, of which there
is a copy: the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from dsgd.core.weights import Vector
from dsgd.engines.ray.driver.news import RayFlight


class _State(NamedTuple):
    """A state: an array in the driver's memory, or a reference to one in Ray's store."""

    ref: Any
    copy: Future[Any] | None
    """Of one on another machine."""

    def here(self) -> Any:
        """Return it as it is on this machine; None if it has not come yet."""
        if self.copy is None:
            return self.ref
        return self.copy.result() if self.copy.done() and not self.copy.exception() else None


def _got(state: Any) -> Any:
    return ray.get(state) if isinstance(state, ray.ObjectRef) else state


class FetchedStates(Mapping[int, Vector]):
    """States (rows, D) by worker, as a checkpoint needs them: each is fetched when it is read, so by the
    thread that writes the file, and training does not wait. Raises OSError for one that is lost.

    refs: the states, or references to them. copies: those that are being fetched already.
    """

    def __init__(self, refs: Mapping[int, Any], copies: Mapping[int, Future[Any]]) -> None:
        self._refs, self._copies = dict(refs), copies

    def __getitem__(self, worker: int) -> Vector:
        copy = self._copies.get(worker)
        try:
            is_here = copy is not None and copy.exception() is None  # waits for it
            ref = self._refs[worker]
            found: Vector = copy.result() if copy and is_here else _got(ref)
        except RayError as error:
            raise OSError(f"worker {worker}: its state was lost with its machine") from error
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)


class StateCopies:
    """The last two states of each worker: copies of those that are on other machines.

    states: those that workers begin with.
    """

    def __init__(self, states: Mapping[int, Any] = {}) -> None:
        # By worker: its state, the task that made it, and the state before.
        self._last: dict[int, tuple[_State, RayFlight | None, _State | None]] = {
            worker: (_State(ref, None), None, None) for worker, ref in states.items()
        }

    def keep(self, worker: int, ref: Any, flight: RayFlight, *, elsewhere: bool) -> None:
        """Note the state that a task has left, or a reference to it; from elsewhere it is copied in the
        background.
        """
        before = self._last[worker][0] if worker in self._last else None
        self._last[worker] = _State(ref, ref.future() if elsewhere else None), flight, before

    def fetched(self, refs: Mapping[int, Any]) -> FetchedStates:
        """Return the states to which the engine refers, without waiting for any."""
        newest = {worker: self._last[worker][0] for worker in refs if worker in self._last}
        return FetchedStates(refs, {w: state.copy for w, state in newest.items() if state.copy})

    def newest(self, worker: int) -> Any:
        """Return a worker's newest state as it is on this machine; None if it is not here."""
        return self._last[worker][0].here() if worker in self._last else None

    def left_by(self, worker: int) -> int:
        """Return the ticket of the task that has left a worker's newest state; -1 if none of this run has."""
        flight = self._last[worker][1] if worker in self._last else None
        return -1 if flight is None else flight.ticket

    def to_redo(self, worker: int) -> tuple[RayFlight, Any] | None:
        """Return the task that made the newest state, and the state from which it did, None in a worker's
        first; or None, if that is not here either.
        """
        if worker not in self._last:
            return None
        _, flight, before = self._last[worker]
        if flight is None:
            return None
        if before is None:
            return flight, None
        state = before.here()
        return None if state is None else (flight, state)
