"""How many bytes a message has: the same on both engines."""

from __future__ import annotations

from dsgd.core.tasks import Task, value_bytes
from dsgd.core.weights import Weights


class MessageSizes:
    """Bytes of the messages of a run: those of the vector in it, and the padding.

    num_weights: D. padding_bytes: added to each message. peers: whether the workers keep weights and
    values, so that no task has a message.
    """

    def __init__(self, num_weights: int, padding_bytes: int, *, peers: bool = False) -> None:
        self._peers = peers
        self.padding_bytes = padding_bytes
        self.vector = 4 * num_weights + padding_bytes
        """Of a message with a vector of D float32 numbers."""
        self.of_whole = 0 if peers else self.vector
        """Of a task's message with weights that are not compressed."""
        self._num_weights = num_weights
        self._task: Task | None = None
        self._of_value = 0

    def to_worker(self, w: Weights) -> int:
        """Return the bytes of a task's message, which has these weights."""
        if self._peers:
            return 0
        return self.vector if w.wire_bytes is None else w.wire_bytes + self.padding_bytes

    def to_server(self, task: Task) -> int:
        """Return the bytes of the message that has the task's value."""
        if self._peers:
            return 0
        if task is not self._task:  # most are the same object as the one before
            self._task, self._of_value = task, value_bytes(task, self._num_weights) + self.padding_bytes
        return self._of_value
