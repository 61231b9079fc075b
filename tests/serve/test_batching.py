"""What waits is computed together: each value is answered once, as alone, whatever its company."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.process.batching import Batcher, BusyError


class Seen:
    """What a batcher has counted: how many waited, and the rows of its batches."""

    def __init__(self) -> None:
        self.waiting = list[float]()
        self.rows = list[float]()


@asynccontextmanager
async def batching(most: int, places: int, wait_s: float = 0.0) -> AsyncGenerator[tuple[Batcher, Seen], None]:
    seen = Seen()
    batches = Batcher(
        most=most, wait_s=wait_s, places=places, queued=seen.waiting.append, computed=seen.rows.append
    )
    task = asyncio.create_task(batches.run())
    try:
        yield batches, seen
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def doubled(values: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[2 * x for x in value] for value in values]


def refused(values: Sequence[Sequence[int]]) -> list[list[int]]:
    """Fail if any value has a zero."""
    return [[6 // x for x in value] for value in values]


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 6).flatmap(
        lambda most: st.tuples(
            st.just(most),
            st.lists(
                st.tuples(
                    st.sampled_from([doubled, refused]),
                    st.integers(0, 2),  # shapes
                    st.lists(st.integers(0, 9), min_size=1, max_size=most),
                    st.booleans(),  # leaves before it is answered
                ),
                max_size=30,
            ),
        )
    )
)
def test_each_value_gets_what_it_would_get_alone(
    drawn: tuple[int, list[tuple[Any, int, list[int], bool]]],
) -> None:
    """Values may have any kind and size, some fail, and the callers of some leave."""
    most, asked = drawn

    async def play() -> None:
        async with batching(most, len(asked), wait_s=0.001) as (batches, seen):
            tasks = [
                asyncio.create_task(batches.ask(compute, shape, value, rows=len(value)))
                for compute, shape, value, _ in asked
            ]
            await asyncio.sleep(0)
            for task, (*_, leaves) in zip(tasks, asked, strict=True):
                if leaves:
                    task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for (compute, _, value, leaves), answer in zip(asked, found, strict=True):
                if leaves:
                    assert isinstance(answer, asyncio.CancelledError)
                elif compute is refused and 0 in value:
                    assert isinstance(answer, ZeroDivisionError)
                else:
                    assert answer == compute([value])[0]
            assert max(seen.rows, default=0) <= most
            stayed = sum(len(value) for *_, value, leaves in asked if not leaves)
            assert sum(seen.rows) == stayed
            while asked and seen.waiting[-1]:
                await asyncio.sleep(0.001)

    asyncio.run(play())


def test_who_finds_no_place_is_told_so_at_once() -> None:
    """While a computation goes on, only as many values wait as there are places."""

    async def play() -> None:
        began, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def held(values: Sequence[int]) -> Sequence[int]:
            loop.call_soon_threadsafe(began.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
            return values

        async with batching(most=1, places=3) as (batches, _):
            first = asyncio.create_task(batches.ask(held, None, 0))
            await began.wait()
            others = [asyncio.create_task(batches.ask(held, None, i)) for i in range(1, 4)]
            await asyncio.sleep(0)
            with pytest.raises(BusyError):
                await batches.ask(held, None, 4)
            go_on.set()
            assert await asyncio.gather(first, *others) == [0, 1, 2, 3]

    asyncio.run(play())


def test_what_waits_goes_together() -> None:
    """Values that came while the thread was busy are one batch; those of another kind are another."""

    async def play() -> None:
        async with batching(most=8, places=99) as (batches, seen):
            kinds = "aabababb"
            await asyncio.gather(*(batches.ask(doubled, kind, [1]) for kind in kinds))
            assert seen.rows == [4, 4]

    asyncio.run(play())
