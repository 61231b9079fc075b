"""The supervisor alone: a script of events in, orders and lines of the record out, without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from dsgd.core.ledger import Ledger
from dsgd.core.tasks import Gradient, Task
from dsgd.core.weights import Weights
from dsgd.scenario.hosts import Hosts
from dsgd.scenario.supervisor import (
    Ask,
    BringState,
    GiveUp,
    LookAgain,
    Order,
    Orders,
    Send,
    StartAgain,
    Stop,
    Stranded,
    Supervisor,
)

W = Weights(np.zeros(0, np.float32))


class Flight(NamedTuple):
    task: Task
    w: Weights
    started_s: float = 0.0


class Script:
    """Members, hosts and a supervisor, whose orders are carried out by nobody but kept."""

    def __init__(
        self, workers: int = 3, hosts: int = 3, *, suspect_after_s: float | None = None, **policy: Any
    ) -> None:
        self.ledger: Ledger[Flight] = Ledger(workers)
        self.hosts = Hosts(workers, hosts, **policy)
        self.now_s = 0.0
        self.supervisor = Supervisor(self.ledger, self.hosts, lambda: self.now_s, suspect_after_s)

    def start(self, *workers: int) -> Script:
        for worker in workers:
            self.ledger.start(worker, Flight(Gradient(), W))
        return self

    def at(self, now_s: float) -> Supervisor:
        self.now_s = now_s
        return self.supervisor

    def obey(self, orders: Orders) -> list[Order]:
        """Carry orders out as an engine does, one by one; return them without those that only move states."""
        given: list[Order] = []
        for order in orders:
            if isinstance(order, Stop):
                self.supervisor.task_over(order.worker, wasted=0)
            if not isinstance(order, BringState):
                given.append(order)
        return given

    def lost(self, now_s: float, *hosts: int, tasks: Sequence[int] = (), **named: Any) -> list[Order]:
        there = {worker: Stranded(1, elsewhere=False) for worker in tasks}
        return self.obey(self.at(now_s).lost(hosts, there, **named))

    def back(self, now_s: float, host: int, *unsent: int) -> list[Order]:
        return self.obey(self.at(now_s).back(host, unsent))

    @property
    def lines(self) -> list[tuple[Any, ...]]:
        return [(s.t_s, s.kind, s.workers, s.text, s.recovered_s) for s in self.supervisor.book.seen]


def test_lost_while_computing() -> None:
    """Its worker waits; the new process gets the task, and then the loss is over."""
    s = Script().start(0, 1, 2)
    assert s.lost(3.0, 1, tasks=[1]) == [StartAgain(1, 0.0, 0.0)]
    assert s.lines == []
    assert s.back(5.0, 1, 1) == [Send(1, 1)]
    assert s.lines == [(3.0, "kill", (1,), "worker 1 waits for a new process", 2.0)]
    assert s.supervisor.book.seen[0].repeated == 1


def test_lost_while_idle() -> None:
    """Nothing is sent, and nothing repeated."""
    s = Script(on_loss="rehost").start(0)
    assert s.lost(3.0, 1) == [StartAgain(1, 0.0, 0.0)]
    assert s.lines == [(3.0, "kill", (1,), "worker 1 moved to host 0", 0.0)]


def test_rehost_onto_the_emptiest() -> None:
    """A lost host's workers go one by one to whoever carries the fewest, and home with their next tasks."""
    s = Script(7, 3, on_loss="rehost").start(*range(7))
    assert s.lost(1.0, 0, tasks=[0, 3, 6]) == [StartAgain(0, 0.0, 0.0), Send(0, 1), Send(3, 2), Send(6, 1)]
    assert s.back(4.0, 0) == []
    assert s.hosts.carrier == [0, 1, 2, 0, 1, 2, 0]


def test_lost_twice() -> None:
    """The second loss within the window waits, and the first one's line is over with the second one's."""
    s = Script().start(1)
    s.lost(3.0, 1, tasks=[1])
    (again,) = s.lost(4.0, 1)
    assert isinstance(again, StartAgain)
    assert 0.25 < again.backoff_s <= 0.5
    assert s.back(5.0, 1, 1) == [Send(1, 1)]
    assert [(line[0], line[4]) for line in s.lines] == [(3.0, 2.0), (4.0, 1.0)]
    assert s.supervisor.restarts == [0, 2, 0]


def test_backoff_grows() -> None:
    """Each loss within the window doubles the wait, to its half at random."""
    s, waits = Script(max_restarts=9), []
    for n in range(5):
        (order,) = s.lost(10.0 * n, 1)
        assert isinstance(order, StartAgain)
        waits.append(order.backoff_s)
        s.back(10.0 * n + 5, 1)
    assert waits[0] == 0
    assert all(0.25 * 2**n < wait <= 0.5 * 2**n for n, wait in enumerate(waits[1:]))


@pytest.mark.parametrize("on_loss", ["replace", "drop"])
def test_lost_with_nobody_left(on_loss: Any) -> None:
    """All at one moment: under drop one stays a member, and waits."""
    s = Script(on_loss=on_loss).start(0, 1, 2)
    orders = s.lost(3.0, 0, 1, 2, tasks=[0, 1, 2])
    assert orders[:3] == [StartAgain(host, 0.0, 0.0) for host in range(3)]
    if on_loss == "drop":
        assert orders[3:] == [Stop(0), Stop(1)]
        assert [*s.ledger.workers] == [2]
        assert s.back(4.0, 0) == []
        assert [*s.ledger.workers] == [0, 2]
    assert s.back(5.0, 2, 2) == [Send(2, 2)]


def test_all_lost_at_one_moment_are_not_rehosted_on_each_other() -> None:
    """What is lost at once is entered at once."""
    s = Script(4, 4, on_loss="rehost").start(0, 1, 2, 3)
    assert s.lost(3.0, 1, 2, tasks=[1, 2])[2:] == [Send(1, 0), Send(2, 3)]


def test_lost_too_often() -> None:
    """Under replace the run ends; under rehost the host is given up, and others carry its workers."""
    s = Script(max_restarts=0)
    assert s.lost(3.0, 1) == [GiveUp(1)]
    s = Script(max_restarts=0, on_loss="rehost").start(1)
    assert s.lost(3.0, 1, tasks=[1]) == [Send(1, 0)]
    assert [line[1] for line in s.lines] == ["given-up", "kill"]


def test_kill_of_a_spare() -> None:
    """It carried nobody, and is started again like any other."""
    s = Script(spares=1)
    assert s.lost(3.0, 3) == [StartAgain(3, 0.0, 0.0)]
    assert s.lines == [(3.0, "kill", (), "it carried nobody", 0.0)]


def test_a_process_cannot_start_before_the_fault_says() -> None:
    """Of the time that the fault holds the host back, what has passed until the loss was noticed is over."""
    s = Script()
    s.at(3.0).book.expect("kill", [1], held_s=10.0)
    assert s.lost(4.0, 1) == [StartAgain(1, 0.0, 9.0)]
    assert s.back(14.0, 1) == []
    assert s.lines == [(3.0, "kill", (1,), "worker 1 waits for a new process", 11.0)]


def test_losses_of_one_fault_that_are_noticed_in_turn_are_one_line() -> None:
    """A node's processes: its line is over when the last of them has been noticed and made good."""
    s = Script(4, 4, on_loss="rehost")
    s.at(3.0).book.expect("node", [1, 3], held_s=0.0)
    s.lost(3.1, 3)
    assert s.lines == []
    s.lost(3.2, 1)
    ((t_s, kind, workers, _, _),) = s.lines
    assert (t_s, kind, workers) == (3.0, "node", (1, 3))
    s.at(9.0).book.expect("kill", [], held_s=0.0)
    assert s.lines[-1] == (9.0, "kill", (), "no process was there", 0.0)


def test_silent_then_back() -> None:
    """Asked for an answer, and its task given to a second host; late, it gets tasks again."""
    s = Script(suspect_after_s=2.0).start(0, 1, 2)
    s.at(3.0).disturb("pause", [1])
    assert s.obey(s.at(4.5).silent(1, 1)) == [Ask(1), Send(1, 0)]
    assert s.obey(s.at(5.0).silent(1, 0)) == [Ask(0)]  # a third host does not get it
    s.at(6.0).task_over(1, wasted=1, first=0)
    assert s.lines[-1][3:] == (
        "worker 1 was silent on host 1: host 0 got its task too, and host 0 was first",
        1.5,
    )
    assert s.supervisor.book.open[0].seen.detected_s == 1.5
    s.hosts.answered(1, 8.0, late=True)
    assert s.hosts.place(1, 8.0) == 1


def test_who_has_just_answered_is_not_silent() -> None:
    """It computes another task first."""
    s = Script(2, 1, suspect_after_s=2.0).start(0, 1)
    s.hosts.answered(0, 1.5, late=False)
    assert s.obey(s.at(2.0).silent(1, 0)) == [LookAgain(1, 0, 3.5)]


def test_silent_then_dead() -> None:
    """A new process does not stand still; a task that a second host has is not sent again."""
    s = Script(suspect_after_s=2.0).start(1)
    s.at(3.0).disturb("pause", [1])
    s.obey(s.at(5.0).silent(1, 1))
    orders = s.obey(s.at(6.0).lost([1], {1: Stranded(1, elsewhere=True)}))
    assert orders == [StartAgain(1, 0.0, 0.0)]
    assert [(line[1], line[4]) for line in s.lines] == [("pause", 3.0), ("kill", 0.0)]
    assert s.supervisor.book.seen[-1].wasted == 1


def test_a_pause_that_hits_no_process() -> None:
    """The engine knows which are there."""
    assert Script().supervisor.disturb("pause", []).words == ["no host stood still"]


def test_leaving_while_computing() -> None:
    """It goes when its task has come in; whoever joins before stays."""
    s = Script().start(1)
    s.at(3.0).leave(1)
    s.at(3.0).depart()
    assert not s.supervisor.changed
    s.at(3.5).join(1)
    assert s.supervisor.changed
    s.at(4.0).leave(1)
    s.ledger.finish(1, 5.0)
    s.at(5.0).depart()
    assert [*s.ledger.workers] == [0, 2]
    assert [line[3] for line in s.lines] == [
        "worker 1 leaves when its task has come in",
        "worker 1 stays",
        "worker 1 leaves when its task has come in",
    ]


def test_leaving_and_then_lost_with_its_process() -> None:
    """Under drop it leaves with its task, and does not come back with the new process."""
    s = Script(on_loss="drop").start(1)
    s.at(3.0).leave(1)
    assert s.lost(4.0, 1, tasks=[1]) == [StartAgain(1, 0.0, 0.0), Stop(1)]
    assert s.back(5.0, 1) == []
    assert [*s.ledger.workers] == [0, 2]


def test_a_dropped_member_can_be_kept_out() -> None:
    """By a leave. A join has it come back again."""
    s = Script(on_loss="drop")
    s.lost(3.0, 1)
    s.at(4.0).leave(1)
    assert s.lines[-1][3] == "worker 1 does not come back"
    s.at(4.5).join(1)
    assert [*s.ledger.workers] == [0, 2]
    s.back(5.0, 1)
    assert [*s.ledger.workers] == [0, 1, 2]


def test_leaving_ends_a_loss() -> None:
    """For a member that waits for a process and then leaves, the loss is over with that."""
    s = Script()
    s.lost(3.0, 1)
    s.at(4.0).leave(1)
    s.at(4.0).depart()
    assert s.lines[-1] == (3.0, "kill", (1,), "worker 1 waits for a new process", 1.0)


def test_a_process_that_is_asked_to_end_finishes_its_tasks() -> None:
    """Its workers go elsewhere with their next tasks, or leave in good order, and stay with a new process."""
    s = Script(on_loss="drop").start(1)
    assert s.obey(s.at(3.0).asked_to_end(1, [])) == [StartAgain(1, 0.0, 0.0)]
    assert s.ledger.leaving == {1}
    assert s.back(4.0, 1) == []
    assert not s.ledger.leaving
    assert [line[1] for line in s.lines] == ["leave", "kill", "join"]


def test_the_faults_that_are_not_over_survive_a_restart() -> None:
    """The state has what is open, and who is suspected."""
    s = Script(suspect_after_s=2.0).start(0, 1, 2)
    s.at(3.0).disturb("cut", [1]).number = 7
    s.obey(s.at(5.0).silent(1, 1))
    s.lost(6.0, 2, tasks=[2])
    other = Script(suspect_after_s=2.0)
    other.supervisor.restore(s.supervisor.state())
    assert other.supervisor.state() == s.supervisor.state()
    assert other.supervisor.doubts(1)
