"""The mean of what workers computed, made by the processes that have it: all-reduce, by torch.distributed.

    direct   all-to-all, sum, all-gather: each process adds one slice of all workers' values, in worker order.
             The bits are those of a server that adds whole values in that order.
             A short vector goes whole, in one message to each: who adds all slices needs no second one.
    ring     torch's all-reduce, which sends fewer messages of its choice: it differs by rounding.

Both send 2 (N - 1)/N of a vector from each of N processes. A process that dies breaks the group for good; the
others form another, of the next epoch. None of them hangs: who loses a connection drops the group, which
closes the connections of those that wait for it (torch's `abort` does not wake a process that waits for one
that lives). Where a machine is out of reach, or a process dies before it is connected, no connection ends:
then a process leaves the group when it is asked to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ErrorType
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # untyped

from dsgd.core.weights import CHUNK

Order: TypeAlias = Literal["direct", "ring"]

_SENT_WHOLE = 1 << 13  # numbers: fewer cost less to send than another message does
_FORMED_WITHIN = timedelta(seconds=20)  # once all processes are there
_ANSWERED_WITHIN = timedelta(days=1)  # a process may be paused: that it is lost shows in its connections
_LOOK = timedelta(seconds=0.1)  # how often a process that waits looks whether it is to leave
_LOOK_S = 1e-3  # the same where torch cannot wait for so long
_LOOK_AT_GPU_S = 1e-4

# Groups that were left in the midst of a sum, and these sums: to end one, torch waits for it.
_unfinished: list[tuple[Any, Any]] = []


class GroupBroken(Exception):
    """A process of the group has died, or has left it: nothing more can be computed with this group."""


class Meeting(NamedTuple):
    """Where the processes of a group find each other, and how this one is reached."""

    address: str
    """Of the machine with the store."""
    port: int
    """Of the store."""
    epoch: int
    """No other group of the run has it."""
    own_address: str
    """Of this process's machine, as the others reach it."""
    device: str
    """Where sums are made: cpu (gloo), or a CUDA device that no other process of the group uses (NCCL)."""
    part: int = 0
    """Of the weights: where each process has one of several slices, those with the same one meet."""


def open_store(address: str) -> TCPStore:
    """Return a store on this machine at which the processes of a group find each other.

    Its `port` is free and chosen by the system. It must live as long as groups are formed: a process that
    looks for a store that is closed does so for minutes.
    """
    return TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=_FORMED_WITHIN)


def join_store(meeting: Meeting) -> TCPStore:
    """Return the store that the driver has opened. Raises GroupBroken if it is closed.

    A process joins it once, for all groups: torch looks up the name of an address, which may take seconds.
    """
    try:
        return TCPStore(meeting.address, meeting.port, wait_for_workers=False, timeout=_FORMED_WITHIN)
    except RuntimeError as error:
        raise GroupBroken(str(error)) from error


class ReducingGroup:
    """One epoch of a group of processes, of which this is the one with number `rank`, of `size`.

    store: where its processes find each other. is_left: whether this process is to leave the group, asked
    while it waits. A process drops the group that it is in before it forms another. Raises GroupBroken if
    this one cannot be formed: then a thread may use the store for a while yet, and have others wait for it.
    """

    def __init__(
        self,
        store: TCPStore,
        meeting: Meeting,
        rank: int,
        size: int,
        is_left: Callable[[], bool] = lambda: False,
    ) -> None:
        self._rank, self._size, self._device = rank, size, meeting.device
        self._on_gpu = torch.device(meeting.device).type == "cuda"
        self._is_left = is_left
        self._buffers: dict[str, Tensor] = {}
        _unfinished[:] = [(group, work) for group, work in _unfinished if not work.is_completed()]
        try:
            here = PrefixStore(f"epoch{meeting.epoch}/{meeting.part}", store)
            self._await_all(here)
            self._group: Any = self._formed_unless_left(here, meeting.own_address)
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def _await_all(self, store: PrefixStore) -> None:
        """Wait until all processes are there: torch, which forms the group, would not stop waiting."""
        store.set(f"here{self._rank}", "")
        while not store.check([f"here{rank}" for rank in range(self._size)]):
            if self._is_left():
                raise RuntimeError("a process was lost")
            time.sleep(_LOOK_S)

    def _formed_unless_left(self, store: PrefixStore, own_address: str) -> Any:
        """Return the group. Nothing ends torch's attempt to connect before its time-out: if this process
        leaves, it goes on in its thread, and what it makes is dropped.
        """
        made: SimpleQueue[Any] = SimpleQueue()

        def form() -> None:
            try:
                made.put(self._formed(store, own_address))
            except RuntimeError as error:
                made.put(error)

        threading.Thread(target=form, daemon=True).start()
        while True:
            try:
                group = made.get(timeout=_LOOK.total_seconds())
            except Empty:
                if self._is_left():
                    raise RuntimeError("a process was lost") from None
                continue
            if isinstance(group, RuntimeError):
                raise group
            return group

    def _formed(self, store: PrefixStore, own_address: str) -> Any:
        """Return the group; torch's own types leave out most of its methods."""
        if self._on_gpu:
            # Else NCCL's watchdog would end this process because another has died.
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = _ANSWERED_WITHIN
            return dist.ProcessGroupNCCL(store, self._rank, self._size, options)
        # Left alone, gloo would choose the interface that the machine's name stands for.
        here: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # untyped
        here._devices = [dist.ProcessGroupGloo.create_device(hostname=own_address)]
        here._timeout = _FORMED_WITHIN
        group = dist.ProcessGroupGloo(store, self._rank, self._size, here)
        group._set_default_timeout(_ANSWERED_WITHIN)
        return group

    def mean(self, values: Sequence[Tensor], workers: Sequence[Sequence[int]], order: Order) -> Tensor:
        """Return the mean (D,) over the values (D,) of all workers.

        workers: by rank, whose values the process has; `values` are those of this one, in that order. What is
        returned is overwritten by the next call. Raises GroupBroken; the values are as they were, to be tried
        again with another group.
        """
        assert len(values) == len(workers[self._rank])
        assert len(workers) == self._size
        try:
            if order == "direct":
                return self._direct(values, workers)
            return self._ring(values, sum(map(len, workers)))
        except RuntimeError as error:
            self.drop()
            raise GroupBroken(str(error)) from error

    def drop(self) -> None:
        """Leave the group: those that wait for this process then know that it is broken."""
        group, self._group = self._group, None
        if group is not None and self._on_gpu:
            group.abort()

    def _finish(self, work: Any) -> None:
        """Wait for what the processes compute together. Raises RuntimeError if they cannot."""
        if self._on_gpu:  # with a time-out, NCCL would end the group
            work.wait()  # here only the GPU waits: what it computes next comes after
            done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
            while not done.query():
                self._look(work)
                if self._alive.get_error() != ErrorType.SUCCESS:
                    raise RuntimeError("NCCL has lost a process")
                time.sleep(_LOOK_AT_GPU_S)
            return
        while True:
            try:
                work.wait(_LOOK)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # it may have ended well since the time was up: else this raises why
                    return
            self._look(work)

    def _look(self, work: Any) -> None:
        if self._is_left():
            if not self._on_gpu:
                _unfinished.append((self._group, work))
            raise RuntimeError("a process was lost")

    def _direct(self, values: Sequence[Tensor], workers: Sequence[Sequence[int]]) -> Tensor:
        group, size, num_weights = self._alive, self._size, len(values[0])
        counts = [len(numbers) for numbers in workers]
        if whole := num_weights <= _SENT_WHOLE:
            length = num_weights
            mine = torch.cat(list(values)).repeat(size)
        else:
            length = -(-num_weights // size)  # of a slice; the last may be filled up
            mine = self._in_slices(values, length)
        here = self._buffer("received", sum(counts), length)
        sent = [len(values) * length] * size
        received = [count * length for count in counts]
        self._finish(group.alltoall_base(here.flatten(), mine, received, sent))
        numbers = [number for by_rank in workers for number in by_rank]
        first, *others = sorted(range(len(numbers)), key=numbers.__getitem__)
        total = self._buffer("sum", length)
        # What is added stays in the processor's cache; a GPU has better ones.
        step = length if self._on_gpu else CHUNK
        for some in (slice(lo, lo + step) for lo in range(0, length, step)):
            part = total[some].copy_(here[first, some])
            for row in others:
                part += here[row, some]
            part /= len(numbers)
        if whole:
            return total
        mean = self._buffer("mean", size * length)
        self._finish(group._allgather_base(mean, total))
        return mean[:num_weights]

    def _in_slices(self, values: Sequence[Tensor], length: int) -> Tensor:
        """Return the slices that each process gets of these values (D,), one after another, the last one
        filled up. A lone value is in this order already: it is sent from where it is, if there is room.
        """
        size, first = self._size, values[0]
        room = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
        if len(values) == 1 and room >= size * length:
            return first.as_strided((size * length,), (1,))
        mine, whole = self._buffer("sent", size, len(values), length), len(first) // length
        for row, value in enumerate(values):
            mine[:whole, row] = value[: whole * length].view(whole, length)
            if rest := len(value) - whole * length:
                mine[whole, row, :rest] = value[whole * length :]
        return mine.flatten()

    def _ring(self, values: Sequence[Tensor], count: int) -> Tensor:
        total = self._buffer("sum", len(values[0])).copy_(values[0])
        for value in values[1:]:
            total += value
        self._finish(self._alive.allreduce([total]))
        total /= count
        return total

    @property
    def _alive(self) -> Any:
        if self._group is None:
            raise RuntimeError("this process has dropped the group")
        return self._group

    def _buffer(self, name: str, *shape: int) -> Tensor:
        """Return memory that is used in every round: its pages are there after the first."""
        found = self._buffers.get(name)
        if found is None or found.shape != shape:
            found = self._buffers[name] = torch.zeros(shape, dtype=torch.float32, device=self._device)
        return found
