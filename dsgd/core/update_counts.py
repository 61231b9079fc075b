"""Counts over the updates of a run, in memory and in constant time per gradient."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from statistics import median
from typing import Any, NamedTuple

from dsgd.core.clocks import Clocks
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Engine, Update

MOST_LISTED = 1024
"""Most workers that a summary lists one by one, and most values of staleness that it counts one by one."""

MOST_EXTRA = 16
"""Most names in `Update.extra` that a run may use: each is a series, a curve and a column."""

_NOT_COUNTED = {"_samples_per_batch", "tokens_per_sample", "_clocks", "_taken", "_has_computed", "_reduces"}
_BY_WORKER = {"steps", "tasks", "staleness_sums", "busy_s"}
_MOST_MARKS = 32  # between the first and the last
_SLOWEST = 10  # workers that the summary of a larger run lists


class Totals(NamedTuple):
    """What a run has counted up to one of its updates."""

    updates: int = 0
    tasks: int = 0
    clock_s: float = 0.0
    staleness: int = 0
    """Summed over the tasks, in updates."""
    fresh: int = 0
    """Tasks with staleness 0."""


class Marks:
    """Totals of a run at equal intervals, which double as it grows: never more than 33.

    apart: mini-batches between two marks, at first.
    """

    def __init__(self, apart: int) -> None:
        self.rows = [Totals()]
        self._apart = apart

    def add(self, mini_batches: int, totals: Totals) -> int:
        """Keep a mark; return at how many mini-batches the next one is due.

        >>> marks, due = Marks(1), 1
        >>> for n in range(1, 1001):
        ...     if n >= due:
        ...         due = marks.add(n, Totals(updates=n))
        >>> len(marks.rows), marks.rows[1].updates, marks.rows[-1].updates
        (32, 32, 992)
        """
        self.rows.append(totals)
        if len(self.rows) > _MOST_MARKS:
            self.rows = self.rows[::2]
            self._apart *= 2
        return mini_batches + self._apart

    def state(self) -> list[Any]:
        """Return all of it, as values that a checkpoint can keep."""
        return [self._apart, [tuple(row) for row in self.rows]]

    def restore(self, state: Sequence[Any]) -> None:
        """Go back to what `state` returned."""
        self._apart, rows = state
        self.rows = [Totals(*row) for row in rows]


class Extra(NamedTuple):
    """What a strategy has handed over by one name, in `Update.extra`."""

    total: float
    updates: int
    """How many reported it."""
    last: float

    @property
    def mean(self) -> float:
        return self.total / self.updates


class UpdateCounts:
    """What is counted of a run while it goes on.

    clocks: those of the cluster that makes the updates.
    taken: how the numbers that updates have are taken from one, by name; each gives None where it has none.
    always: whether any is taken from updates whose strategy hands over nothing.
    reduces: whether workers combine their results themselves, by an all-reduce.
    """

    def __init__(
        self,
        num_workers: int,
        samples_per_batch: int,
        clocks: Clocks,
        taken: Mapping[str, Callable[[Update], float | None]],
        *,
        always: bool,
        reduces: bool = False,
    ) -> None:
        self.updates = 0
        self.gradients = 0
        """Mini-batches whose results have been applied."""
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.last_update_s = 0.0
        self.staleness_counts: dict[int, int] = {}
        self.clock_gap_max = 0
        self.useful_bytes = 0
        """Bytes of the messages of tasks whose results have been applied."""
        self.exchange_s = 0.0
        """Seconds of the messages of tasks whose results have been applied, there and back, with
        waiting for links and servers, but not for others that compute."""
        self.ignored = 0
        """Mini-batches that came back and were not used."""
        self.steps = [0] * num_workers
        """By worker: mini-batches that came back, used or not."""
        self.tasks = [0] * num_workers
        self.staleness_sums = [0] * num_workers
        self.busy_s = [0.0] * num_workers
        self.faults: dict[str, int] = {}
        """By kind: faults that are over, or that the run ended in."""
        self.repeated = 0
        """Mini-batches that faults had computed again."""
        self.wasted_by_faults = 0
        """Mini-batches whose results faults made useless."""
        self.recovery_s: list[float] = []
        """Of each fault but leaving and joining: seconds until all workers concerned computed again."""
        self._marks = Marks(apart=num_workers)  # so that each worker delivers about once between two
        self._next_mark = num_workers
        self._samples_per_batch, self._clocks = samples_per_batch, clocks
        self.tokens_per_sample = 0
        """Of a language model."""
        self._taken, self._has_computed, self._reduces = taken, always, reduces
        self._sums = dict.fromkeys(self._taken, (0.0, 0))
        self.has_means = False
        """Whether any update has had a number that `means` is of."""
        self.extra: dict[str, Extra] = {}
        """By name: what updates have in `extra`."""

    def add(self, update: Update) -> None:
        applied_to, counts, steps = update.weights.version - 1, self.staleness_counts, self.steps
        dones = update.dones
        # By position: twelve attributes by name would cost as much as all the rest.
        for worker, _, batches, read, _, _, began_s, came_s, compute_s, to_worker, to_server, _ in dones:
            staleness = applied_to - read  # as in Update.staleness, without the call
            counts[staleness] = counts.get(staleness, 0) + 1
            self.staleness_sums[worker] += staleness
            self.tasks[worker] += 1
            self.busy_s[worker] += compute_s
            self.exchange_s += came_s - began_s - compute_s
            self.useful_bytes += to_worker + to_server
            self.gradients += batches
            steps[worker] += batches
        for done in update.ignored:  # the work was done, but not used
            self.ignored += done.batches
            self.busy_s[done.worker] += done.compute_s
            steps[done.worker] += done.batches
        self.updates += 1
        gap = self._clocks.fastest - self._clocks.slowest  # clocks.gap, without the call
        if gap > self.clock_gap_max:
            self.clock_gap_max = gap
        if len(dones) == 1:  # as update.loss and update.finished_s, without the calls
            loss, self.last_update_s = dones[0].loss, update.made_s or dones[0].finished_s
        else:
            loss, self.last_update_s = update.loss, update.finished_s
        if self._reduces:  # the workers combine their results, once the last of them is ready
            came_s = max(done.finished_s for done in dones)
            self.exchange_s += len(dones) * (self.last_update_s - came_s)
        if loss is not None:
            self.last_loss = loss
            if self.first_loss is None:
                self.first_loss = loss
        if update.measured or self._has_computed:
            self._measure(update)
        if update.extra:
            self._take_extra(update.extra)
        if self.gradients >= self._next_mark:
            self._next_mark = self._marks.add(self.gradients, self._totals)

    def fault(self, fault: FaultSeen) -> None:
        """Count a fault that is over, or that the run ended in."""
        self.faults[fault.kind] = self.faults.get(fault.kind, 0) + 1
        self.repeated += fault.repeated
        self.wasted_by_faults += fault.wasted
        if (recovery_s := fault.to_recover_s) is not None:
            self.recovery_s.append(recovery_s)

    def state(self) -> dict[str, Any]:
        """Return all counts so far, as values that a checkpoint can keep."""
        counts = {name: copy(value) for name, value in vars(self).items() if name not in _NOT_COUNTED}
        extra = {name: tuple(seen) for name, seen in self.extra.items()}
        return counts | {"_marks": self._marks.state(), "extra": extra}

    def restore(self, state: Mapping[str, Any], clocks: Clocks) -> None:
        """Go back, or on, to what `state` returned; clocks: of the cluster that goes on.

        Raises ValueError for a count of another type.
        """
        own = self.state()
        for name in own.keys() & state.keys():
            if not _is_like(state[name], own[name], name):
                raise ValueError(f"the tally's {name} cannot be {state[name]!r:.60}")
            if name != "_marks":
                vars(self)[name] = copy(state[name])
        self._marks.restore(state["_marks"])
        self.extra = {name: Extra(*seen) for name, seen in state.get("extra", {}).items()}
        self._clocks = clocks

    def _measure(self, update: Update) -> None:
        if unknown := update.measured.keys() - self._sums.keys():
            raise ValueError(
                f"Update.measured has {', '.join(sorted(unknown))}, which dsgd.metrics.QUANTITIES lacks; "
                "add a row with of_updates"
            )
        for name, of in self._taken.items():
            value = of(update)
            if value is not None:
                total, count = self._sums[name]
                self._sums[name] = total + value, count + 1
                self.has_means = True

    def _take_extra(self, extra: Mapping[str, float]) -> None:
        for name, value in extra.items():
            before = self.extra.get(name)
            if before is None:
                self._require_extra(name)
                before = Extra(0.0, 0, 0.0)
            self.extra[name] = Extra(before.total + value, before.updates + 1, float(value))

    def _require_extra(self, name: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name):
            raise ValueError(f"Update.extra has {name!r}: a name has small letters, digits and _; rename it")
        if len(self.extra) == MOST_EXTRA:
            raise ValueError(f"Update.extra has {name!r}, beyond {MOST_EXTRA} other names; hand over fewer")

    @property
    def _totals(self) -> Totals:
        tasks, staleness = sum(self.tasks), sum(self.staleness_sums)
        return Totals(self.updates, tasks, self.last_update_s, staleness, self.staleness_counts.get(0, 0))

    @property
    def totals(self) -> list[Totals]:
        """The totals at some updates, at equal distances, and at the last: standard errors come from them."""
        return [*self._marks.rows, self._totals]

    @property
    def means(self) -> dict[str, float | None]:
        """The mean of each number that updates have, over those that have it; None without any."""
        return {name: total / count if count else None for name, (total, count) in self._sums.items()}

    @property
    def exchange_mean_s(self) -> float | None:
        """Mean over tasks of the seconds of their exchanges, there and back; None before the first."""
        tasks = sum(self.tasks)
        return round(self.exchange_s / tasks, 9) if tasks else None  # so that a rounding error becomes 0

    @property
    def samples(self) -> int:
        return self.gradients * self._samples_per_batch

    @property
    def tokens(self) -> int | None:
        """Tokens in the applied mini-batches; None for what is no language model."""
        return self.samples * self.tokens_per_sample if self.tokens_per_sample else None

    @property
    def clock_gap(self) -> int:
        """Fastest minus slowest clock after the last update, in mini-batches."""
        return self._clocks.gap

    @property
    def staleness_mean(self) -> float:
        """Mean over all gradients, in updates; 0 before the first."""
        return sum(self.staleness_sums) / max(1, sum(self.tasks))

    def busy_until_now(self, cluster: Engine) -> list[float]:
        """Return the seconds each worker computed; one in the middle of a task, or whose task was cancelled,
        was not idle meanwhile.
        """
        clock_s, in_flight = self.last_update_s, cluster.in_flight
        return [
            min(clock_s, busy_s + cancelled_s + max(0.0, clock_s - in_flight.get(worker, math.inf)))
            for worker, (busy_s, cancelled_s) in enumerate(zip(self.busy_s, cluster.cancelled_s, strict=True))
        ]

    def staleness_summary(self) -> dict[str, Any]:
        """Return the distribution of staleness over all gradients, and its mean by worker."""
        by_worker = zip(self.staleness_sums, self.tasks, strict=True)
        means = [total / tasks if tasks else None for total, tasks in by_worker]
        listed = {str(worker): means[worker] for worker in self.listed if means[worker] is not None}
        return {**distribution(self.staleness_counts), "by_worker": listed}

    def recovery_summary(self) -> dict[str, float | None]:
        """Return the median and the longest of the seconds that faults took to recover from."""
        found = self.recovery_s
        return {"p50": median(found) if found else None, "max": max(found, default=None)}

    def over_workers(self, by_worker: Mapping[str, Sequence[float | None]]) -> dict[str, dict[str, float]]:
        """Return mean, quantiles and extremes over workers: of what is known by worker, and of mean
        staleness, each over the workers that have it.
        """
        staleness = [s / n for s, n in zip(self.staleness_sums, self.tasks, strict=True) if n]
        values = {**by_worker, "staleness": staleness}
        known = {name: sorted(x for x in found if x is not None) for name, found in values.items()}
        return {name: spread(found) for name, found in known.items() if found}

    def extra_summary(self) -> dict[str, dict[str, float | None]]:
        return {
            name: {"mean": finite(seen.mean), "last": finite(seen.last)} for name, seen in self.extra.items()
        }

    @property
    def listed(self) -> Sequence[int]:
        """The workers that the summary lists: all, or of a large run the slowest, slowest first.

        Those are the ones with the fewest mini-batches; of equal ones, those that computed longest.
        """
        workers = range(len(self.tasks))
        if len(workers) <= MOST_LISTED:
            return workers
        return heapq.nsmallest(_SLOWEST, workers, key=lambda w: (self.steps[w], -self.busy_s[w]))


def _is_like(value: Any, own: Any, name: str) -> bool:
    """Whether a value can be the count of that name: of its type, made of numbers, of as many workers."""
    if not isinstance(own, dict | list | tuple):
        return isinstance(value, int | float) or (value is None and name in ("first_loss", "last_loss"))
    if type(value) is not type(own) or (name in _BY_WORKER and len(value) != len(own)):
        return False
    items = value.values() if isinstance(value, dict) else value
    return all(_is_like(item, item if isinstance(item, list | tuple) else 0, "") for item in items)


def spread(ordered: Sequence[float]) -> dict[str, float]:
    """Return mean, quantiles and extremes of numbers in ascending order."""
    n = len(ordered)
    quantiles = {f"p{q:02}": ordered[max(0, math.ceil(q / 100 * n) - 1)] for q in (5, 50, 95)}
    return {"mean": math.fsum(ordered) / n, "min": ordered[0], **quantiles, "max": ordered[-1]}


def distribution(counts: Mapping[int, int]) -> dict[str, Any]:
    """Return mean, quantiles, maximum and counts of a distribution given as value -> count."""
    values = sorted(counts)
    total = sum(counts.values())

    def quantile(q: float) -> int | None:
        reached = 0
        for value in values:
            reached += counts[value]
            if reached >= q * total:
                return value
        return None

    return {
        "mean": sum(value * counts[value] for value in values) / total if total else None,
        "p50": quantile(0.50),
        "p95": quantile(0.95),
        "max": values[-1] if values else None,
        "counts": {str(value): n for value, n in _thinned({v: counts[v] for v in values}).items()},
    }


def _thinned(counts: dict[int, int]) -> dict[int, int]:
    """Return the counts; where they are of too many values, these are cut to three significant digits.

    >>> _thinned({n: 1 for n in range(2000)})[1230]
    10
    """
    if len(counts) <= MOST_LISTED:
        return counts
    thinned: dict[int, int] = {}
    for value, n in counts.items():
        unit = 10 ** max(0, len(str(value)) - 3)
        thinned[value // unit * unit] = thinned.get(value // unit * unit, 0) + n
    return thinned


def finite(x: float | None) -> float | None:
    """JSON has no NaN and no infinity: such a loss becomes null."""
    return float(x) if x is not None and math.isfinite(x) else None
