"""A follower: the actor of each rank of a group but the first, which is the host that leads it; and how any
process of Ray learns that it is asked to end (SIGTERM), as a spot instance is before it is taken.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# isort: split
import ray

from dsgd.core.problem import TrialGradient
from dsgd.core.weights import Vector
from dsgd.engines.ray.worker.captured_output import CapturedOutput, OutputNews
from dsgd.engines.ray.worker.rank_meeting import LOCAL, RankMeeting
from dsgd.scenario.group_options import GroupConfig

if TYPE_CHECKING:
    from dsgd.engines.ray.worker.rank import Computed, RankStep, RankTask


class EndNotice:
    """Has this process survive the signal, and ends the wait for it.

    Ray makes actors in the main thread, which then no longer runs Python: a handler would never be called
    there, but the number of the signal is written to this pipe at once.
    """

    def __init__(self) -> None:
        self._notice, self._notified = os.pipe()
        os.set_blocking(self._notified, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._notified)

    def wait(self) -> None:
        """Return once the signal has come."""
        while select.select([self._notice], [], [], None)[0]:
            if os.read(self._notice, 1) == bytes([signal.SIGTERM]):
                return

    def pass_on(self) -> None:
        """Have `wait` return, as if the signal had come here."""
        os.write(self._notified, bytes([signal.SIGTERM]))


CONCURRENCY = {"control": 1, "notice": 1, "carry": 1, "weights": 1, "output": 1}  # each has a thread


def own_address(*, one_machine: bool) -> str:
    """Return the address of this machine, as the ranks of its group reach it."""
    return LOCAL if one_machine else str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class Follower:
    """The actor. What a rank does is in `rank.py`."""

    _name = "a follower"  # until it is made, as of Host

    def __init__(
        self,
        objective: list[Any],
        device: str,
        asked: GroupConfig,
        rank: int,
        name: str,
        log_level: int,
        most_lines: int,
    ) -> None:
        self._name = name
        self._output = CapturedOutput(log_level, most_lines)
        self._output.install()
        self._notice = EndNotice()
        from dsgd.engines.ray.worker.rank import Rank  # it needs torch, which takes a second

        self._rank = Rank(ray.get(objective[0]), device, asked, rank)

    def __repr__(self) -> str:
        return self._name  # under which Ray publishes its log

    def join(self, meeting: RankMeeting) -> tuple[int, str]:
        """Join the group; return the process id and the node's."""
        address = own_address(one_machine=meeting.address == LOCAL)
        return self._rank.join(meeting, address), ray.get_runtime_context().get_node_id()

    def try_out(self, worker: int) -> TrialGradient:
        self._output.worker = worker
        return self._rank.try_out(worker)

    def run(self, order: RankTask, vector: list[Any], state: Vector | None) -> Computed:
        """Compute a task. vector: the weights (D,), or a reference to them; empty if the ranks have them."""
        self._output.worker = order.worker
        whole = vector[0] if vector else None
        if isinstance(whole, ray.ObjectRef):
            whole = ray.get(whole)
        return self._rank.run(order, whole, state)

    def step(self, version: int, part: bytes) -> RankStep:
        return self._rank.step(version, part)

    def advance(self, version: int, part: bytes, squares: float) -> None:
        self._rank.advance(version, part, squares)

    @ray.method(concurrency_group="carry")
    def carry(self, worker: int, shard: list[Any]) -> None:
        self._rank.shards.carry(worker, shard)

    @ray.method(concurrency_group="weights")
    def hold(self, version: int, vector: Vector, slots: Mapping[str, Vector]) -> None:
        self._rank.hold(version, vector, slots)

    @ray.method(concurrency_group="weights")
    def held(self, version: int) -> Vector:
        return self._rank.held(version)

    @ray.method(concurrency_group="weights")
    def held_slots(self, version: int) -> Mapping[str, Vector]:
        return self._rank.held_slots(version)

    @ray.method(concurrency_group="weights")
    def value(self, worker: int) -> Vector:
        return self._rank.value(worker)

    @ray.method(concurrency_group="control")
    def leave(self, epoch: int) -> None:
        self._rank.leave(epoch)

    @ray.method(concurrency_group="output")
    def output(self, wait_s: float) -> OutputNews:
        """Return what was printed and logged since the last call, once there is something, or after `wait_s`
        seconds.
        """
        return self._output.news(wait_s)

    @ray.method(concurrency_group="control")
    def last_output(self) -> OutputNews:
        """Return what was printed and logged since the last call, at once."""
        return self._output.news(0.0)

    @ray.method(concurrency_group="notice")
    def notice(self) -> None:
        """Return when this process is asked to end."""
        self._notice.wait()
