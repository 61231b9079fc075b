"""What a replay needs of a recorded run: its tasks, its updates, and the faults that it saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SeenTask(Protocol):
    """A task: worker, step and mini-batches as in the ledger, times on the engine's clock."""

    @property
    def worker(self) -> int: ...

    @property
    def step(self) -> int: ...

    @property
    def batches(self) -> int: ...

    @property
    def started_s(self) -> float: ...

    @property
    def finished_s(self) -> float: ...

    @property
    def compute_s(self) -> float: ...


class SeenUpdate(Protocol):
    """An update: the version that it made, when, of which tasks, and those discarded before it."""

    @property
    def version(self) -> int: ...

    @property
    def t_s(self) -> float: ...

    @property
    def gradients(self) -> Sequence[SeenTask]: ...

    @property
    def ignored(self) -> Sequence[SeenTask]: ...


class SeenFault(Protocol):
    """A fault, as it was seen or recorded."""

    @property
    def t_s(self) -> float: ...

    @property
    def kind(self) -> str: ...

    @property
    def workers(self) -> Sequence[int]: ...

    @property
    def asked(self) -> bool: ...

    @property
    def update(self) -> int: ...

    @property
    def came_in(self) -> int: ...

    @property
    def recovered_s(self) -> float | None: ...

    @property
    def back_to(self) -> int | None: ...

    @property
    def answers(self) -> int | None: ...

    @property
    def notice(self) -> bool: ...

    @property
    def at_once(self) -> bool: ...
