"""Tasks as processes have them, and what the driver learns of processes and their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dsgd.core.tasks import Task
from dsgd.core.weights import Vector, Weights
from dsgd.engines.ray.driver.host_process import HostProcess
from dsgd.engines.ray.transport.arena import Bytes
from dsgd.engines.ray.transport.messages import SentVector


class RayFlight(NamedTuple):
    """A task that was handed out, and all that is needed to send it again."""

    ticket: int
    task: Task
    w: Weights
    started_s: float
    step: int
    pickled: bytes


@dataclass(eq=False, slots=True)
class Sent:
    """A task in flight as one process has it."""

    worker: int
    ticket: int
    process: HostProcess
    flight: RayFlight
    state: Any
    """What the task begins with: an array, or a reference to one."""
    left_by: int = -1
    """The ticket of the task that has left it; -1: it does not matter."""
    weights: SentVector | None = None
    """What the task reads: its memory is not used again before the task is over."""
    block: Bytes | None = None
    """Where the task is, if it is large."""
    value: Any = None
    """The block that the value is written to, or references to its slices."""
    left: Any = None
    """What the task hands on: the block that it is written to, or a reference to it."""
    slower: float = 1.0
    again: bool = False
    """It was computed before: its value has been read, and only what it hands on is wanted."""
    stopped: bool = False
    """Its answer is not awaited."""


class Answered(NamedTuple):
    """A task has been computed."""

    sent: Sent
    loss: float
    compute_s: float
    value: Vector


class Failed(NamedTuple):
    """A task has raised an error, which `text` names; by_problem: a workload's own, meant for its author."""

    sent: Sent
    text: str
    by_problem: bool


class StateLost(NamedTuple):
    """A task's answer, or the state that it needs, was lost with a machine."""

    sent: Sent


class Stepped(NamedTuple):
    """A process has taken its part in an all-reduce, or the group is broken."""

    process: HostProcess
    distances: Sequence[float] = ()
    """Of its workers' values from their mean."""
    broken: str = ""
    """Why the group is broken."""


class Ready(NamedTuple):
    """A process can compute."""

    process: HostProcess


class Replied(NamedTuple):
    """A process has no longer any of the tasks that it had when it was asked."""

    process: HostProcess


class Noticed(NamedTuple):
    """A process has been asked to end."""

    process: HostProcess


class Gone(NamedTuple):
    """A process has ended, or is out of reach for good."""

    process: HostProcess


OF_TASKS = (Answered, Failed, StateLost)
"""News of a task: they have it as `sent`."""
News: TypeAlias = Answered | Failed | StateLost | Stepped | Ready | Replied | Noticed | Gone


def process_of(news: News) -> HostProcess:
    """Return the process that news are of."""
    return news.sent.process if isinstance(news, OF_TASKS) else news.process
