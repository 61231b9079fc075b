"""The ledger: what happens to members and tasks, decided without an engine, a clock or a wait."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.core.clocks import Clocks
from dsgd.core.ledger import Ledger
from dsgd.core.tasks import LocalSGD, Task
from dsgd.core.weights import Weights


class Flight(NamedTuple):
    task: Task
    w: Weights
    started_s: float = 0.0


W = Weights(np.zeros(0, np.float32))


def flight(batches: int = 1) -> Flight:
    return Flight(LocalSGD(batches=batches, lr=0.1), W)


def test_idle_members_come_in_order() -> None:
    """The last to finish comes first, then those that have waited longest; a newcomer comes last."""
    ledger = Ledger[Flight](4)
    assert list(ledger.idle) == [0, 1, 2, 3]
    for worker in (0, 1, 2):
        ledger.start(worker, flight())
    ledger.finish(1, 1.0)
    ledger.join(7)
    ledger.finish(0, 2.0)
    assert list(ledger.idle) == [0, 3, 7, 1] or list(ledger.idle) == [0, 3, 1, 7]
    assert len(ledger.idle) == 4
    assert 2 not in ledger.idle


def test_a_cancelled_task_is_skipped() -> None:
    """It is neither given nor done, its worker is idle at once, its mini-batches are never drawn again."""
    ledger = Ledger[Flight](2)
    ledger.start(0, flight(3))
    assert (ledger.given, ledger.steps[0]) == (3, 0)
    ledger.cancel(0, computed_s=1.5)
    assert (ledger.given, ledger.steps[0], ledger.clocks[0]) == (0, 3, 0)
    assert (ledger.cancelled, ledger.cancelled_s) == ([3, 0], [1.5, 0.0])
    assert 0 in ledger.idle


def test_what_a_member_leaves_with_is_lost_and_repeated() -> None:
    """A leaver's task counts as lost, not as given; when it comes back it begins with the same mini-batch."""
    ledger = Ledger[Flight](3)
    ledger.start(2, flight(5))
    ledger.finish(2, 1.0)
    ledger.start(2, flight(4))
    assert ledger.leave(2) is not None
    assert (ledger.given, ledger.lost, ledger.workers) == (5, 4, (0, 1))
    assert ledger.clocks.fastest == 0
    ledger.join(2)
    assert (ledger.steps[2], ledger.clocks[2]) == (5, 0)
    assert ledger.leave(0) is None
    assert list(ledger.workers) == [1, 2]


def test_a_worker_with_a_task_gets_no_second_one() -> None:
    """Two tasks at once are a mistake of the strategy, and named as such."""
    ledger = Ledger[Flight](1)
    ledger.start(0, flight())
    with pytest.raises(AssertionError, match="worker 0 already has a task"):
        ledger.start(0, flight())


def test_a_member_that_retires_finishes_its_task() -> None:
    """It gets no further task; it departs when its own has come in, or was cancelled, and keeps its clock
    until then.
    """
    ledger = Ledger[Flight](3)
    ledger.start(0, flight(2))
    ledger.start(1, flight())
    for worker in (0, 1, 2):
        ledger.retire(worker)
    assert list(ledger.idle) == []
    assert ledger.depart() == [2]
    ledger.finish(0, 1.0)
    ledger.cancel(1, 0.5)
    assert ledger.clocks[0] == 2
    assert list(ledger.idle) == []
    with pytest.raises(AssertionError, match="worker 0 is not idle"):
        ledger.start(0, flight())
    assert ledger.depart() == [0, 1]
    assert (list(ledger.workers), ledger.given, ledger.lost) == ([], 2, 0)


def test_a_member_that_stays_after_all_is_idle_once_its_task_has_come_in() -> None:
    """Whoever was to leave and joins first goes on as if it had never been asked."""
    ledger = Ledger[Flight](2)
    ledger.start(0, flight())
    for worker in (0, 1):
        ledger.retire(worker)
        ledger.stay(worker)
    assert ledger.depart() == []
    ledger.finish(0, 1.0)
    assert list(ledger.idle) == [0, 1]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "finish", "cancel", "leave", "join", "retire"]), st.integers(0, 5)
        ),
        max_size=80,
    ),
    st.floats(0, 4),
)
def test_the_books_agree_with_a_naive_count(actions: list[tuple[str, int]], ahead: float) -> None:
    """Whatever happens: idle, in flight and absent are disjoint, and every count equals a naive one."""
    ledger = Ledger[Flight](4)
    clocks = dict.fromkeys(range(4), 0)
    given = done = 0
    for n, (action, worker) in enumerate(actions):
        here = worker in ledger.workers
        if action == "start" and worker in ledger.idle:
            ledger.start(worker, flight(1 + n % 3))
            given += 1 + n % 3
        elif action in ("finish", "cancel") and worker in ledger.in_flight:
            batches = ledger.flights[worker].task.batches
            if action == "finish":
                assert ledger.finish(worker, float(n)).task.batches == batches
                clocks[worker] += batches
                done += batches
            else:
                ledger.cancel(worker, 0.0)
                given -= batches
        elif action == "leave" and here and len(ledger.workers) > 1:
            lost = ledger.leave(worker)
            given -= lost.task.batches if lost else 0
            del clocks[worker]
        elif action == "retire" and here and len(ledger.workers) > 1:
            ledger.retire(worker)
        elif action == "join" and not here:
            clocks[worker] = min(clocks.values())
            ledger.join(worker)
        for gone in ledger.depart() if len(ledger.workers) > len(ledger.leaving) else ():
            del clocks[gone]
        assert list(ledger.workers) == sorted(clocks)
        ledger = Ledger.restored(ledger.state(float(n)), dict(ledger.flights))
        assert {*ledger.idle} | {*ledger.in_flight} | ledger.leaving == {*clocks}
        assert not {*ledger.idle} & ledger.leaving
        assert not {*ledger.idle} & {*ledger.in_flight}
        assert len(ledger.idle) == len([*ledger.idle])
        assert ledger.given == given
        assert {w: ledger.clocks[w] for w in clocks} == clocks
        assert (ledger.clocks.slowest, ledger.clocks.fastest) == (min(clocks.values()), max(clocks.values()))
        assert ledger.clocks.slowest_worker == min(clocks, key=lambda w: (clocks[w], w))
        limit = min(clocks.values()) + ahead
        assert [*ledger.idle.within(ahead)] == [w for w in ledger.idle if clocks[w] <= limit]


def test_the_last_member_leaves_the_clocks_as_they_were() -> None:
    """Without members there is no slowest clock; the next member starts where the last one was slowest."""
    clocks = Clocks([0])
    clocks.tick(0, 3)
    clocks.leave(0)
    clocks.join(1)
    assert (clocks[1], clocks.slowest, clocks.fastest) == (3, 3, 3)
