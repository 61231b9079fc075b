"""What is recorded of a fault, whether it was asked for or happened by itself."""

from __future__ import annotations

from typing import Final, NamedTuple

MEMBERSHIP: Final = ("leave", "join")
"""Kinds of faults that change the members."""

FOLLOWING = ("leave", "join", "suspect", "given-up")
"""Kinds that are no damage: members that change, asked or not, and what an engine decides itself."""


class FaultSeen(NamedTuple):
    """A fault that is over, or that the run ended in; a line of faults.jsonl."""

    t_s: float
    """When it began, on the engine's clock."""
    kind: str
    """As in dsgd/scenario/fault.py; a process that died by itself is a `kill`. Also `suspect`, a silent task
    that a second host got too; `given-up`, a host that is not started again; `divergence`; and
    `lost-weights`, of all processes that held them.
    """
    workers: tuple[int, ...]
    """Whom it hit."""
    asked: bool
    """Whether `--faults` asked for it."""
    update: int
    """The version of the weights when it began."""
    came_in: int
    """Tasks that had come in when it began: its place in the order of events, for replays."""
    text: str
    """What was done about it, in words: `worker 2 moved to host 3`."""
    detected_s: float | None = None
    """Seconds from its beginning until the driver knew."""
    recovered_s: float | None = None
    """Seconds from its beginning until all workers concerned computed or were honest again, or had left;
    None: never.
    """
    repeated: int = 0
    """Mini-batches that were computed again, or partly."""
    wasted: int = 0
    """Mini-batches whose result was not used: a second copy came first, or the member left."""
    back_to: int | None = None
    """The version of the weights that the run went back to; None if it did not."""
    answers: int | None = None
    """How often the strategy's waiting had ended when it began, with a task or a change of the members: two
    changes with the same number were seen together. None in older simulations.
    """
    notice: bool = False
    """Whether the process was asked to end (SIGTERM): the tasks that it had came in all the same."""
    at_once: bool = False
    """Whether the strategy, in the simulator, was not waiting, and so saw it at once; else its wait ended."""

    @property
    def to_recover_s(self) -> float | None:
        """`recovered_s`; None for a leave, a join or a lie, after which nothing has to recover."""
        return None if self.kind in (*MEMBERSHIP, "lie") else self.recovered_s
