"""How many bytes a message has, the same on both engines; and the bytes that a run sends, counted by whoever
sends them: of tasks that came back, and of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


_COUNTS = ("to_worker", "to_server", "to_peers", "from_peers", "to_backups", "fetched")


class Traffic:
    """Bytes sent so far; they only grow, also where a run goes back to a checkpoint.

    num_workers: P.
    """

    def __init__(self, num_workers: int) -> None:
        self.to_worker = [0] * num_workers
        """By worker: weights that it was sent with its tasks."""
        self.to_server = [0] * num_workers
        """By worker: results of tasks."""
        self.to_peers = [0] * num_workers
        """By worker: what it sent to other workers."""
        self.from_peers = [0] * num_workers
        """By worker: what it was sent by other workers."""
        self.to_backups = [0] * num_workers
        """By worker: its results, which servers pass on to their backups."""
        self.fetched = [0] * num_workers
        """By worker: weights that the driver had it send, to evaluate or keep them."""
        self.by_chance = False
        """Whether something was sent since the last recorded update that does not follow from the tasks, and
        so is not counted when they are computed again (`ReplayCluster`).
        """

    def join(self, num_workers: int) -> None:
        """Count for so many workers from now on."""
        for name in _COUNTS:
            counts: list[int] = getattr(self, name)
            counts += [0] * (num_workers - len(counts))

    def exchanged(self, workers: Sequence[int], sent: Sequence[int], received: Sequence[int]) -> None:
        """Count what workers sent each other in an all-reduce: bytes, in the order of `workers`."""
        for worker, out_bytes, in_bytes in zip(workers, sent, received, strict=True):
            self.to_peers[worker] += out_bytes
            self.from_peers[worker] += in_bytes

    @property
    def by_direction(self) -> dict[str, int]:
        """Bytes sent by direction; each message counts once."""
        return {
            "to_workers": sum(self.to_worker),
            "to_server": sum(self.to_server),
            "between_workers": sum(self.to_peers),
            "between_servers": sum(self.to_backups),
            "fetched": sum(self.fetched),
        }

    @property
    def total(self) -> int:
        """Bytes sent; each message counts once."""
        return sum(self.by_direction.values())

    @property
    def of_tasks(self) -> int:
        """Bytes sent as weights of tasks and as their results."""
        return sum(self.to_worker) + sum(self.to_server)

    @property
    def sent(self) -> Sequence[int]:
        """By worker: bytes over its link, from it."""
        return [*map(sum, zip(self.to_server, self.to_peers, self.fetched, strict=True))]

    @property
    def received(self) -> Sequence[int]:
        """By worker: bytes over its link, to it."""
        return [*map(sum, zip(self.to_worker, self.from_peers, strict=True))]

    def state(self) -> dict[str, list[int]]:
        """Return all counts by their names."""
        return {name: list(getattr(self, name)) for name in _COUNTS}

    def restore(self, state: Mapping[str, Sequence[int]]) -> None:
        """Take what `state` returned."""
        vars(self).update({name: list(counts) for name, counts in state.items()})
