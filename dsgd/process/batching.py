"""What waits while a computation goes on is computed together once that is over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

Compute: TypeAlias = Callable[[Sequence[Any]], Any]
"""compute(values): an answer for each, in the same order."""


class BusyError(Exception):
    """As many values wait as may."""


class _Waiting(NamedTuple):
    kind: tuple[Compute, Hashable]
    rows: int
    value: Any
    answer: asyncio.Future[Any]
    until_s: float  # of the event loop's clock: how long it waits for others


class Batcher:
    """Computes up to `most` rows of one kind at a time, in one thread, those first that came first.

    wait_s: how long a value waits for others while nothing is computed. places: how many may wait. queued,
    computed: called with how many wait, and with the rows of each batch. What fails in company is computed
    again alone, so that it fails alone.
    """

    def __init__(
        self,
        *,
        most: int,
        wait_s: float,
        places: int,
        queued: Callable[[float], None],
        computed: Callable[[float], None],
    ) -> None:
        self.most = most
        self._wait_s, self._places, self._queued, self._computed = wait_s, places, queued, computed
        self._waiting = deque[_Waiting]()
        self._came = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "dsgd-batches")

    async def ask(
        self, compute: Compute, shape: Hashable, value: Any, *, rows: int = 1, hurry: bool = False
    ) -> Any:
        """Return what `compute` answers to a value of `rows` rows, at most `most`, or raise what it raises.

        shape: values with the same may go together. hurry: wait for no others. Raises BusyError without a
        place.
        """
        if len(self._waiting) >= self._places:
            self._waiting = deque(one for one in self._waiting if not one.answer.done())
            if len(self._waiting) >= self._places:
                raise BusyError
        loop = asyncio.get_running_loop()
        until_s = loop.time() + (0 if hurry else self._wait_s)
        waiting = _Waiting((compute, shape), rows, value, loop.create_future(), until_s)
        self._waiting.append(waiting)
        self._queued(len(self._waiting))
        self._came.set()
        return await waiting.answer

    async def run(self) -> None:
        """Compute until cancelled."""
        try:
            while True:
                await self._company()
                if taken := self._taken():
                    self._computed(sum(one.rows for one in taken))
                    await self._answer(taken)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _company(self) -> None:
        """Wait until there is a batch: a full one, or one with a value that has waited long enough."""
        while True:
            self._came.clear()
            left_s = None
            if self._waiting:
                left_s = min(one.until_s for one in self._waiting) - asyncio.get_running_loop().time()
                if left_s <= 0 or sum(one.rows for one in self._waiting) >= self.most:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), left_s)

    def _taken(self) -> list[_Waiting]:
        """Take the first that waits, and those after it that fit into a batch with it."""
        taken, rest, rows = list[_Waiting](), deque[_Waiting](), 0
        for one in self._waiting:
            if one.answer.done():  # who asked has left
                continue
            if not taken or (one.kind == taken[0].kind and rows + one.rows <= self.most):
                taken.append(one)
                rows += one.rows
            else:
                rest.append(one)
        self._waiting = rest
        self._queued(len(rest))
        return taken

    async def _answer(self, taken: Sequence[_Waiting]) -> None:
        (compute, _), values = taken[0].kind, [one.value for one in taken]
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, compute, values)
        except Exception as error:  # of the caller's `compute`: whoever asked gets it
            if len(taken) > 1:
                for one in taken:
                    await self._answer([one])
            elif not taken[0].answer.done():
                taken[0].answer.set_exception(error)
            return
        for one, answer in zip(taken, answers, strict=True):
            if not one.answer.done():
                one.answer.set_result(answer)
