"""Takes a run's checkpoints when they are due, and writes them in the background.

A snapshot is a few pointers, as weights never change; turning it into bytes, hashing and writing them is done
by a thread for each place. A place that is slower than its interval misses checkpoints; one that fails loses
none that it has, and never ends the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dsgd.records.stores.store import Store, keep_newest, name_of, version_of
from dsgd.running.checkpoints.codec import Vocabulary
from dsgd.running.checkpoints.run_state import RunState, to_parts
from dsgd.theory.checkpointing import checkpoint_interval


class Tier:
    """A place for checkpoints: when they are due, and how many are kept.

    store: None for memory, and for all places of a run without a record, which leaves nothing.
    every_s: engine seconds between two; None: the best interval for their mean cost and the mtbf.
    cost_s: of each where it is known, else it is measured.
    """

    def __init__(
        self,
        name: str,
        store: Store | None,
        *,
        every_s: float | None,
        keep: int,
        mtbf_s: float | None = None,
        cost_s: float | None = None,
    ) -> None:
        self.name, self.store, self.keep = name, store, keep
        self.written = self.missed = self.failed = 0
        """How many there were: missed, because the one before was still being written."""
        self.error: OSError | None = None
        """The first failure."""
        self._every_s, self._mtbf_s, self._cost_s = every_s, mtbf_s, cost_s
        self._measured_s = 0.0
        self.due_s = self.every_s

    @property
    def outside(self) -> bool:
        """Whether its checkpoints outlive the driver; those of a run without a record are meant to."""
        return self.name != "memory"

    @property
    def every_s(self) -> float:
        """Engine seconds from one checkpoint to the next; 0 where the cost is still unknown."""
        if self._every_s is not None:
            return self._every_s
        assert self._mtbf_s is not None, "auto needs the mtbf"
        if self._cost_s is not None:
            return checkpoint_interval(self._cost_s, self._mtbf_s)
        return checkpoint_interval(self._measured_s / self.written, self._mtbf_s) if self.written else 0.0

    def write(self, state: RunState, known: Vocabulary) -> None:
        """Write a checkpoint, and remove those that are no longer kept."""
        assert self.store is not None
        began_s = time.perf_counter()
        try:
            parts = to_parts(state, known)
            self.store.write(name_of(state.weights.version, parts), parts)
            keep_newest(self.store, self.keep)
        except OSError as error:
            self.failed += 1
            self.error = self.error or error
        else:
            self._measured_s += time.perf_counter() - began_s
            self.written += 1


class Checkpointer:
    """The checkpoints of one run.

    known: what its tasks may be. before: called, in the background, before a checkpoint is written, for what
    must be on the disk by then. waits: whether each checkpoint is waited for, so that none is missed.
    says_missed: whether notes name missed checkpoints; in virtual time, which is faster than any disk, they
    are no surprise.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        known: Vocabulary,
        before: Callable[[], None] = lambda: None,
        *,
        waits: bool = False,
        says_missed: bool = True,
    ) -> None:
        self.tiers = tiers
        self.snapshots: list[RunState] = []
        """Those of the tier in memory, oldest first."""
        self.latest: RunState | None = None
        """The newest that was taken for any place outside this process."""
        self._known, self._before, self._waits, self._says_missed = known, before, waits, says_missed
        self._writers = {tier.name: ThreadPoolExecutor(1) for tier in tiers if tier.store}
        self._writing: dict[str, Future[None]] = {}

    @property
    def next_s(self) -> float:
        """When (engine s) the next checkpoint is due; inf without any."""
        return min((tier.due_s for tier in self.tiers), default=math.inf)

    def is_due(self, now_s: float) -> bool:
        """Whether a checkpoint is due that leaves this process."""
        return any(tier.due_s <= now_s for tier in self.tiers if tier.outside)

    def take(self, now_s: float, state: Callable[[], RunState]) -> None:
        """Take the checkpoints that are due.

        now_s: engine seconds. state: makes the snapshot, once it is known when the next ones are due.
        Raises NotKept if the one before has shown that the run's state cannot be kept.
        """
        due = [tier for tier in self.tiers if tier.due_s <= now_s]
        for tier in due:
            tier.due_s = now_s + tier.every_s
        if due:
            self._keep(due, state())

    def take_last(self, state: Callable[[], RunState]) -> None:
        """Take a checkpoint of the end of a run, from which more steps can go on."""
        self.wait()
        if outside := [tier for tier in self.tiers if tier.store]:
            self._keep(outside, state())

    def _keep(self, tiers: Sequence[Tier], state: RunState) -> None:
        for tier in tiers:
            if not tier.outside:
                self.remember(state, tier.keep)
                continue
            self.latest = state
            if tier.store is None:
                tier.written += 1
                continue
            before = self._writing.get(tier.name)
            if before and not before.done():
                tier.missed += 1
                continue
            if before:
                before.result()  # raises what is no failure of the place
            self._writing[tier.name] = self._writers[tier.name].submit(self._write, tier, state)
        if self._waits:
            self.wait()

    def _write(self, tier: Tier, state: RunState) -> None:
        self._before()
        tier.write(state, self._known)

    @property
    def due_s(self) -> Mapping[str, float]:
        """When the next checkpoint of each tier is due."""
        return {tier.name: tier.due_s for tier in self.tiers}

    def restore(self, state: RunState) -> None:
        """Go on as the run did that took this checkpoint; tiers that it did not have, or for which it had
        longer intervals, begin now.
        """
        for tier in self.tiers:
            tier.due_s = min(state.due_s.get(tier.name, math.inf), state.cluster.now_s + tier.every_s)
        self.latest = state

    def begin_again(self, now_s: float) -> None:
        """Have the next checkpoints due an interval from now: the run has gone back to an earlier one."""
        for tier in self.tiers:
            tier.due_s = now_s + tier.every_s

    def remember(self, state: RunState, keep: int = 3) -> None:
        """Keep a snapshot in memory."""
        self.snapshots = [*self.snapshots, state][-keep:]

    def forget_after(self, version: int) -> None:
        """Remove the checkpoints of later versions: the run went another way."""
        self.wait()
        for tier in self.tiers:
            if tier.store:
                for name in tier.store.names():
                    if (version_of(name) or 0) > version:
                        tier.store.remove(name)

    def notes(self) -> list[str]:
        """Return what went wrong, in a line for each tier."""
        found = []
        for tier in self.tiers:
            if tier.error:
                found.append(f"{_checkpoints(tier.failed)} could not be written; the first: {tier.error}")
            if tier.missed and self._says_missed:
                before = "the one before was still being written"
                found.append(f"left out ({tier.name}): {_checkpoints(tier.missed)}, as {before}")
        return found

    def wait(self) -> None:
        """Wait for what is being written."""
        for writing in self._writing.values():
            writing.result()

    def close(self) -> None:
        """Finish what is being written, and end the threads."""
        for writer in self._writers.values():
            writer.shutdown()
        self.wait()


def _checkpoints(count: int) -> str:
    return f"{count} checkpoint{'s' * (count != 1)}"
