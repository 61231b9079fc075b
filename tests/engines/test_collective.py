"""All-reduce between processes: the server's bits, and what becomes of it when one is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # untyped

from dsgd.core.rules import (
    Adam,
    Arrived,
    Average,
    Clip,
    Descend,
    Momentum,
    Moved,
    chain,
    combine,
)
from dsgd.core.weights import Vector, Weights, mean
from dsgd.engines.ray.worker import collective
from dsgd.engines.ray.worker.collective import GroupBroken, Meeting, ReducingGroup, join_store, open_store
from dsgd.engines.ray.worker.reducing import Reducing

HERE = "127.0.0.1"
COUNT = 4
FORKED = get_context("forkserver")  # of a process that imports torch, once
set_forkserver_preload(["torch.distributed", "dsgd.engines.ray.worker.reducing"])


def member(link: Connection) -> None:
    """Serve as one process: do what is asked for by name, until the link ends."""
    torch.set_num_threads(1)
    collective._LOOK = timedelta(milliseconds=1)  # sums end while a process looks whether it is to leave
    mine, group = Reducing(), None
    while True:
        what, *arguments = link.recv()
        if what == "value":
            worker, value = arguments
            mine.place(worker, len(value))[:] = value
            link.send(None)
        elif what == "mean":
            values, workers, order = arguments
            assert group
            try:
                link.send(group.mean([torch.from_numpy(value) for value in values], workers, order).numpy())
            except GroupBroken:
                link.send("broken")
        elif what == "form":
            group = None
            group = ReducingGroup(mine.joined(arguments[0]), *arguments)
            link.send(True)
        elif what in ("step", "step unless"):
            if what == "step unless":
                collective._FORMED_WITHIN = timedelta(days=1)
                pid, *arguments = arguments
                threading.Thread(target=leave_after, args=(pid, mine, arguments[-1].epoch)).start()
            try:
                link.send(mine.step(*arguments))
            except GroupBroken:
                link.send("broken")
        else:
            link.send(getattr(mine, what)(*arguments))


@dataclass
class Member:
    """A process, and the link to it."""

    process: BaseProcess
    link: Connection

    @classmethod
    def started(cls) -> Member:
        link, its_link = FORKED.Pipe()
        process = FORKED.Process(target=member, args=(its_link,), daemon=True)
        process.start()
        its_link.close()
        return cls(process, link)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()


class Members:
    """Processes, of which those that were killed are replaced."""

    def __init__(self) -> None:
        self.epoch, self.store = 0, open_store(HERE)
        self.all = [Member.started() for _ in range(COUNT)]

    def ask(self, *wanted: Sequence[Any]) -> list[Any]:
        """Have each of the first processes do what is wanted of it, all at once; return their answers."""
        for one, what in zip(self.all, wanted, strict=False):
            one.link.send(what)
        return [one.link.recv() for one in self.all[: len(wanted)]]

    def meeting(self) -> Meeting:
        """Return where a new group meets."""
        self.epoch += 1
        return Meeting(HERE, self.store.port, self.epoch, HERE, "cpu")

    def form(self, size: int) -> None:
        """Have the first `size` processes form a group."""
        meeting = self.meeting()
        assert all(self.ask(*(("form", meeting, rank, size) for rank in range(size))))

    def replace(self, rank: int) -> None:
        """Start another process in the place of one."""
        self.all[rank].end()
        self.all[rank] = Member.started()

    def means(self, workers: Sequence[Sequence[int]], values: Sequence[Vector], order: str) -> list[Any]:
        self.form(len(workers))
        mine = [[values[number] for number in numbers] for numbers in workers]
        return self.ask(*(("mean", some, workers, order) for some in mine))


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    processes = Members()
    yield processes
    for one in processes.all:
        one.end()


def some_values(count: int, size: int, seed: int = 0) -> list[Vector]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(np.float32) for _ in range(count)]


WORKERS = [
    [[0], [1], [2], [3]],
    [[0], [1], [2]],
    [[3, 0], [1, 5, 4], [2], [6]],  # hosts that carry several, in any order
    [[0, 1, 2]],
]


@pytest.mark.parametrize("size", [1, 3, 4, 1001, 70_000])
@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_direct_has_the_servers_bits(members: Members, workers: Sequence[Sequence[int]], size: int) -> None:
    """However workers are spread over processes, the mean is that of a server that adds in worker order."""
    values = some_values(sum(map(len, workers)), size)
    expected = mean(values).tobytes()
    assert [made.tobytes() for made in members.means(workers, values, "direct")] == [expected] * len(workers)


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_the_ring_differs_by_rounding(members: Members, workers: Sequence[Sequence[int]]) -> None:
    """All processes have the same bits, at most N roundings from the mean; none where sums are exact."""
    count = sum(map(len, workers))
    values = some_values(count, 1001)
    exact = np.mean(values, axis=0, dtype=np.float64)
    bound = count * np.finfo(np.float32).eps * np.mean(np.abs(values), axis=0)
    first, *others = members.means(workers, values, "ring")
    assert (np.abs(first - exact) <= bound).all()
    assert all(made.tobytes() == first.tobytes() for made in others)
    dyadic = [np.round(value * 8) / np.float32(8) for value in values]
    assert members.means(workers, dyadic, "ring")[0].tobytes() == mean(dyadic).tobytes()


@pytest.mark.parametrize(("order", "killed"), [("direct", 0), ("ring", 2)])
def test_nobody_hangs_when_one_is_killed(members: Members, order: str, killed: int) -> None:
    """All others wait for a process that is killed: they hear of it though their time-out is a day, and a new
    group with a new process makes the mean that was wanted.
    """
    workers, values = WORKERS[0], some_values(COUNT, 50_000)
    members.form(COUNT)
    others = [rank for rank in range(COUNT) if rank != killed]
    for rank in others:
        members.all[rank].link.send(("mean", [values[rank]], workers, order))
    for rank in others:
        assert not members.all[rank].link.poll(0.05)  # they wait
    pid = members.all[killed].process.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    assert [members.all[rank].link.recv() for rank in others] == ["broken"] * (COUNT - 1)
    members.replace(killed)
    made = members.means(workers, values, "direct")
    assert [one.tobytes() for one in made] == [mean(values).tobytes()] * COUNT


def test_who_waits_for_a_silent_process_can_leave(members: Members) -> None:
    """In a sum to which another adds nothing, and where a group is formed to which another does not come; no
    connection ends.
    """
    meeting, left = members.meeting(), threading.Event()
    members.all[0].link.send(("form", meeting, 0, 2))
    group = ReducingGroup(members.store, meeting, 1, 2, left.is_set)
    assert members.all[0].link.recv()
    threading.Timer(0.2, left.set).start()
    with pytest.raises(GroupBroken, match="a process was lost"):
        group.mean([torch.ones(5)], [[0], [1]], "direct")
    with pytest.raises(GroupBroken, match="a process was lost"):
        ReducingGroup(members.store, members.meeting(), 1, 2, left.is_set)


class Deadly(Store):
    """A store whose process is killed with its n-th call."""

    def __init__(self, store: Store, calls: int) -> None:
        super().__init__()
        self._store, self._left = store, calls

    def _called(self) -> Store:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._store

    def set(self, key: str, value: str) -> None:
        self._called().set(key, value)

    def get(self, key: str) -> bytes:
        return self._called().get(key)

    def check(self, keys: list[str]) -> bool:
        return self._called().check(keys)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self._called().wait(keys, *timeout)


def joins(meeting: Meeting, calls: int) -> None:
    """Form a group with another process, and be killed meanwhile."""
    ReducingGroup(Deadly(join_store(meeting), calls), meeting, 1, 2)  # type: ignore[arg-type]


def leave_after(pid: int, mine: Reducing, epoch: int) -> None:
    """Leave a group once another process has ended."""
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    mine.leave(epoch)


def test_nobody_waits_for_a_process_that_dies_while_a_group_forms(members: Members) -> None:
    """Killed with any of its calls of the store: before it is there, when others are to connect to it, when
    it is to connect. The other leaves at once, though torch would try for a day; and the same values are
    summed in a new group.
    """
    value, other = some_values(2, 100)
    rule, workers, calls, killed = chain(Descend(0.1)), [[0], [1]], 0, True
    members.ask(("value", 0, value), ("value", 1, other))
    members.ask(*[("hold", 0, value, {})] * 2)
    while killed:
        calls += 1
        meeting = members.meeting()
        process = FORKED.Process(target=joins, args=(meeting, calls))
        process.start()
        asked = ("step unless", process.pid, 0, rule, workers, 0, "direct", meeting)
        assert members.ask(asked) == ["broken"]
        process.join()
        killed = process.exitcode == -signal.SIGKILL
    assert calls > 4
    meeting = members.meeting()
    members.ask(*[("step", 0, rule, workers, rank, "direct", meeting) for rank in range(2)])
    w = Weights(value)
    expected = combine(rule, w, [Arrived(value, w), Arrived(other, w)]).vector.tobytes()
    assert [held.vector.tobytes() for held in members.ask(*[("weights", 1)] * 2)] == [expected] * 2


RULES = {
    "momentum": chain(Momentum(0.9), Descend(0.1)),
    "clipped adam": chain(Clip(1.0), Adam(), Descend(0.01)),
    "average": chain(Average()),
    "outer": chain(Moved(), Momentum(0.9, nesterov=True), Descend(0.7)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("size", [50, 70_000])
def test_weights_that_stay_are_those_of_a_server(members: Members, rule: str, size: int) -> None:
    """Four steps, of which one is first tried with a group that is broken: all processes have the server's
    bits and slots, and say how far values are from their mean.
    """
    chosen, workers = RULES[rule], [[0, 3], [1], [2]]
    w = Weights(some_values(1, size)[0])
    meeting = members.meeting()
    members.ask(*[("hold", 0, w.vector, {})] * 3)
    for step in range(4):
        values = some_values(4, size, seed=step)
        for rank, numbers in enumerate(workers):
            for number in numbers:
                members.all[rank].link.send(("value", number, values[number]))
                members.all[rank].link.recv()
        asked = [("step", step, chosen, workers, rank, "direct") for rank in range(3)]
        if step == 2:  # a process has formed another group, so that the others' is broken
            alone = ("step", step, chosen, [[0, 3]], 0, "direct", members.meeting())
            others = [(*each, meeting) for each in asked[1:]]
            assert members.ask(alone, *others)[1:] == ["broken", "broken"]
            meeting = members.meeting()
        distances = members.ask(*((*each, meeting) for each in asked))
        w = combine(chosen, w, [Arrived(value, w) for value in values])
        expected = [[float(np.linalg.norm(values[n] - mean(values))) for n in numbers] for numbers in workers]
        for found, wanted in zip(distances, expected, strict=True):
            assert found == pytest.approx(wanted, rel=1e-5)
        for held in members.ask(*[("weights", step + 1)] * 3):
            assert held.vector.tobytes() == w.vector.tobytes()
            assert {name: slot.tobytes() for name, slot in held.slots.items()} == {
                name: slot.tobytes() for name, slot in w.slots.items()
            }
