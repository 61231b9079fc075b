"""What is measured of a run: one table of quantities, and the tally that counts them, update by update.

A quantity is one row of `QUANTITIES`. Whatever shows quantities is made from the rows: summary.json and
updates.jsonl (dsgd/records), Prometheus (dsgd/show/live/prometheus.py), TensorBoard, the tables of reports
(dsgd/show/report/frames.py), and the tables of docs/record.md and docs/observing.md, which explain each.

To measure something new, add a row. A number that updates have needs only `of_updates`:

    of_updates("consensus", "", "mean distance between neighbours' weights")

and then either a strategy hands it over, `Update(w, dones, measured={"consensus": x})`, or the row computes
it from the update: `of=lambda update: ...`. A number of one strategy alone needs no row:
`Update(w, dones, extra={"tau": 7})`.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any, Literal, NamedTuple

from dsgd.core.clocks import Clocks
from dsgd.core.fault_seen import FOLLOWING, FaultSeen
from dsgd.core.protocol import Engine, Update
from dsgd.core.routing import ExpertUse
from dsgd.theory.uncertainty import Marks, Totals

MOST_LISTED = 1024
"""Most workers that a summary lists one by one, and most values of staleness that it counts one by one."""

MOST_EXTRA = 16
"""Most names in `Update.extra` that a run may use: each is a series, a curve and a column."""

_NOT_COUNTED = {"_samples_per_batch", "_clocks", "_taken", "_has_computed"}
_BY_WORKER = {"steps", "tasks", "staleness_sums", "busy_s"}
_SLOWEST = 10  # workers that the summary of a larger run lists


class Extra(NamedTuple):
    """What a strategy has handed over by one name, in `Update.extra`."""

    total: float
    updates: int
    """How many reported it."""
    last: float

    @property
    def mean(self) -> float:
        return self.total / self.updates


class Tally:
    """Counts over the updates of a run, in memory, in constant time per gradient.

    clocks: those of the cluster that makes the updates.
    """

    def __init__(self, num_workers: int, samples_per_batch: int, clocks: Clocks) -> None:
        self.updates = 0
        self.gradients = 0
        """Mini-batches whose results have been applied."""
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.last_update_s = 0.0
        self.staleness_counts: dict[int, int] = {}
        self.clock_gap_max = 0
        self.useful_bytes = 0
        """Of the messages of tasks whose results have been applied."""
        self.exchange_s = 0.0
        """Of all tasks whose results have been applied: the seconds of their messages, there and back, with
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
        self._taken = taken_of_updates()
        self._has_computed = any(row.of and not row.handed_over for row in QUANTITIES)
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
        if len(dones) == 1 and not update.weights.made_s:
            # As update.loss and update.finished_s, without the calls.
            loss, self.last_update_s = dones[0].loss, dones[0].finished_s
        else:
            loss, self.last_update_s = update.loss, update.finished_s
            if update.weights.made_s:  # the workers combined their results, once the last of them was ready
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
    def clock_gap(self) -> int:
        """Fastest minus slowest clock after the last update, in mini-batches."""
        return self._clocks.gap

    @property
    def staleness_mean(self) -> float:
        """Mean over all gradients, in updates; 0 before the first."""
        return sum(self.staleness_sums) / max(1, sum(self.tasks))

    def summary(self, cluster: Engine) -> dict[str, Any]:
        """Return the counted part of summary.json; `cluster` adds what no update has."""
        by_worker = {row.name: row.by_worker(self, cluster) for row in QUANTITIES if row.by_worker}
        large = len(self.tasks) > MOST_LISTED
        return {
            **{row.name: row.total(self, cluster) for row in QUANTITIES if row.total},
            "workers": {
                str(worker): {name: values[worker] for name, values in by_worker.items()}
                for worker in self.listed
            },
            "over_workers": _over_workers(self, by_worker) if large else {},
            **({"extra": self._extra_summary()} if self.extra else {}),
        }

    def _extra_summary(self) -> dict[str, dict[str, float | None]]:
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


def finite(x: float | None) -> float | None:
    """JSON has no NaN and no infinity: such a loss becomes null."""
    return float(x) if x is not None and math.isfinite(x) else None


class Family(NamedTuple):
    """A metric as Prometheus knows it; all have the labels mode and run_id too."""

    kind: Literal["counter", "gauge", "histogram", "info"]
    reads: str
    """Which attribute of RunMetrics (dsgd/show/live/prometheus.py) is its value; `tally.NAME` and
    `means.NAME` are an attribute of Tally, and one of its means, after the last update, `traffic.NAME` is one
    of Traffic. Where it has a label, a sequence by worker or a mapping by direction."""
    text: str = ""
    """Its meaning, which is its help; its row's unless given."""
    note: str = ""
    """How to read it, for docs/observing.md."""
    labels: tuple[str, ...] = ()
    unit: str | None = None
    """Its row's unless given."""


class Column(NamedTuple):
    """A column of the tables of reports, with a row for each run."""

    kind: type[int] | type[float]
    of: Callable[[Any], float | None]
    """Takes it from a Summary (dsgd/records/schema.py)."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """A row of the table: what is measured, and where it is shown."""

    name: str
    """Its field in summary.json; of a number that updates have, in the lines of updates.jsonl too."""
    per: Literal["run", "worker", "update", "task", "evaluation"]
    unit: str
    text: str
    """Its meaning, as the documents and the help of its metrics say it."""
    _: KW_ONLY
    total: Callable[[Tally, Engine], Any] | None = None
    """Takes the field of summary.json."""
    by_worker: Callable[[Tally, Engine], Sequence[float | None]] | None = None
    """Takes the field of each entry of `workers` in summary.json, worker 0 first."""
    of: Callable[[Update], float | None] | None = None
    """Takes the number that an update has, or None; of rows made by `of_updates`."""
    handed_over: bool = True
    """Whether it is there only where a strategy hands it over, in `Update.measured`."""
    points: Callable[[Update], Iterable[float]] | None = None
    """What TensorBoard shows the mean of, as update/NAME."""
    of_evaluation: Mapping[str, Callable[[Any], float | None]] = field(default_factory=dict)
    """What TensorBoard shows of an evaluation (dsgd/core/model.py), by the name after NAME/."""
    of_fault: Callable[[FaultSeen], float | None] | None = None
    """What TensorBoard shows of a fault, as fault/NAME."""
    families: Mapping[str, Family] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)


def of_updates(
    name: str,
    unit: str,
    text: str,
    family: str = "",
    note: str = "",
    of: Callable[[Update], float | None] | None = None,
) -> Quantity:
    """Return the row of a number that updates have; of a run its mean over those that have it is shown.

    text: its meaning in one update. family: Prometheus' name, `dsgd_NAME` unless given. note: what
    docs/observing.md says more of that. of: takes it from an update; without, strategies hand it over in
    `Update.measured`.
    """
    take = of or (lambda update: update.measured.get(name))

    def points(update: Update) -> Iterable[float]:
        value = take(update)
        return () if value is None else (value,)

    whole = Family("gauge", f"means.{name}", f"{text}, the mean over the updates so far", note)
    return Quantity(
        name,
        "update",
        unit,
        text,
        total=lambda tally, _: finite(tally.means[name]),
        of=take,
        handed_over=of is None,
        points=points,
        families={family or f"dsgd_{name}": whole},
        columns=_columns(float, name),
    )


def _columns(kind: type[int] | type[float], *fields: str) -> dict[str, Column]:
    """Return a column for each of these fields of a Summary: that of `eval.loss` is eval_loss."""
    return {field.replace(".", "_"): Column(kind, attrgetter(field)) for field in fields}


def taken_of_updates() -> dict[str, Callable[[Update], float | None]]:
    """Return how the numbers that updates have are taken, by the names of their rows."""
    return {row.name: row.of for row in QUANTITIES if row.of}


def quantity(name: str) -> Quantity:
    """Return a row by its name."""
    return next(row for row in QUANTITIES if row.name == name)


def families() -> dict[str, Family]:
    """Return what Prometheus gets of each run, by name, with text and unit."""
    return {
        name: family._replace(
            text=_sentence(family.text or row.text), unit=row.unit if family.unit is None else family.unit
        )
        for row in QUANTITIES
        for name, family in row.families.items()
    }


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _busy_s(tally: Tally, cluster: Engine) -> list[float]:
    """Return the seconds each worker computed; one in the middle of a task, or whose task was cancelled, was
    not idle meanwhile.
    """
    clock_s, in_flight = tally.last_update_s, cluster.in_flight
    return [
        min(clock_s, busy_s + cancelled_s + max(0.0, clock_s - in_flight.get(worker, math.inf)))
        for worker, (busy_s, cancelled_s) in enumerate(zip(tally.busy_s, cluster.cancelled_s, strict=True))
    ]


def _staleness(tally: Tally) -> dict[str, Any]:
    sums, tasks = tally.staleness_sums, tally.tasks
    return {
        **_distribution(tally.staleness_counts),
        "by_worker": {str(worker): sums[worker] / tasks[worker] for worker in tally.listed if tasks[worker]},
    }


def _recovery_s(tally: Tally) -> dict[str, float | None]:
    found = tally.recovery_s
    return {"p50": median(found) if found else None, "max": max(found, default=None)}


def _over_workers(
    tally: Tally, by_worker: Mapping[str, Sequence[float | None]]
) -> dict[str, dict[str, float]]:
    """Return mean, quantiles and extremes over workers: of what is known by worker, and of mean staleness,
    each over the workers that have it.
    """
    staleness = [s / n for s, n in zip(tally.staleness_sums, tally.tasks, strict=True) if n]
    values = {**by_worker, "staleness": staleness}
    known = {name: sorted(x for x in found if x is not None) for name, found in values.items()}
    return {name: _spread(found) for name, found in known.items() if found}


def _spread(ordered: Sequence[float]) -> dict[str, float]:
    n = len(ordered)
    quantiles = {f"p{q:02}": ordered[max(0, math.ceil(q / 100 * n) - 1)] for q in (5, 50, 95)}
    return {"mean": math.fsum(ordered) / n, "min": ordered[0], **quantiles, "max": ordered[-1]}


def _distribution(counts: Mapping[int, int]) -> dict[str, Any]:
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


ROUTING: Mapping[str, tuple[str, str]] = {
    "max_violation": ("means", "of the most loaded expert: by how many mean loads it is above the mean"),
    "router_entropy": ("log E", "mean entropy of the routers' scores of a token"),
    "idle_experts": ("", "experts, in all layers, that no test token chooses"),
    "dropped": ("0 to 1", "share of the choices on the test data beyond `--capacity`, if there is one"),
    "agreement": ("0 to 1", "share of a token's experts that two workers' own weights both choose"),
    "agreement_with_server": (
        "0 to 1",
        "share of a token's experts that a worker's own weights and those evaluated both choose",
    ),
    "worker_max_violation": ("means", "`max_violation` of a worker's loads, the mean over the workers"),
    "worker_dropped": ("0 to 1", "`dropped` of a worker's loads, the mean over the workers"),
}
"""What an evaluation of a mixture of experts says in one number each (dsgd/core/routing.py): the unit, and
its meaning."""


def routing_numbers(use: ExpertUse | None) -> dict[str, float | None] | None:
    """Return the numbers that an evaluation has, by their names in `ROUTING`; None without experts."""
    return None if use is None else {name: getattr(use, name) for name in ROUTING}


def _routing(name: str) -> Callable[[Any], float | None]:
    """Return a function that takes a number of routing from an evaluation, or from `eval` of a summary."""
    return lambda found: None if found.experts is None else getattr(found.experts, name)


def _of_last_evaluation(name: str) -> Callable[[Any], float | None]:
    """Return a function that takes a number of routing from a summary."""
    take = _routing(name)
    return lambda summary: take(summary.eval)


QUANTITIES: list[Quantity] = [
    Quantity("run", "run", "", "the run's options, and whether it is active", families={
        "dsgd_run_info": Family("info", "info", "always 1; the labels describe the run",
            "`experiment` is the folder of its record. Join it to other metrics to split them by engine or "
            "data.", ("engine", "num_workers", "dataset", "experiment", "git_commit", "version")),
        "dsgd_run_active": Family("gauge", "active", "1 while the run takes updates, 0 once it has ended",
            "Alerts on stalled runs require 1, as the series of an ended run stay while the process lives."),
        "dsgd_last_update_timestamp_seconds": Family("gauge", "last_update_epoch_s",
            "wall time of the last update, since 1970, on both engines", "Absent before the first.",
            unit="wall s"),
        "dsgd_tasks_in_flight": Family("gauge", "tasks_in_flight",
            "tasks that were handed out and whose results were not taken: queued, computing or on their way",
            "Near the number of workers nobody waits for work."),
        "dsgd_memory_bytes": Family("gauge", "memory_bytes",
            "what a process of the run has in memory, shared pages included",
            "`process` is `driver`, or `host 0` and so on, with the workers. At most ten seconds old. Ray's "
            "own metrics have the object store.", ("process",), "bytes")}),
    Quantity("eval", "evaluation", "", "loss, and share of samples classified correctly, on held-out data",
        of_evaluation={name: attrgetter(name) for name in ("loss", "accuracy", "bits_per_byte")},
        families={
            "dsgd_eval_loss": Family("gauge", "eval_loss", "loss on held-out samples at the last evaluation"),
            "dsgd_experiment_loss": Family("gauge", "loss_of_experiment",
                "loss on held-out samples at the last evaluation, with the folder of the run's record as "
                "`experiment`", labels=("experiment",)),
            "dsgd_eval_accuracy": Family("gauge", "eval_accuracy",
                "share of held-out samples classified correctly", "Absent for the quadratic.",
                unit="0 to 1")},
        columns=_columns(float, "eval.loss", "eval.accuracy", "eval.bits_per_byte")),
    Quantity("updates", "run", "updates", "updates applied to the weights: their versions",
        total=lambda tally, _: tally.updates,
        families={"dsgd_updates_total": Family("counter", "tally.updates",
            note="Its rate, times gradients per update, is the throughput.")},
        columns=_columns(int, "updates") | _columns(float, "updates_per_s")),
    Quantity("gradients", "worker", "mini-batches", "applied; P·steps if the budget was spent",
        total=lambda tally, _: tally.gradients,
        families={"dsgd_gradients_total": Family("counter", "gradients",
            "mini-batches of a worker that were applied",
            "Rates that differ between workers show stragglers, or a mode that ignores slow workers.",
            ("worker",))},
        columns=_columns(int, "gradients") | _columns(float, "gradients_per_s")),
    Quantity("samples", "run", "samples",
        "gradients · batch size; the quadratic counts 1 a mini-batch, `none` 0",
        total=lambda tally, _: tally.samples,
        families={
            "dsgd_samples_total": Family("counter", "tally.samples",
                "training samples in the applied "
                "mini-batches", "Modes are compared fairly at equal samples."),
            "dsgd_samples_per_second": Family("gauge", "samples_per_s",
                "samples applied per engine second, whole run so far",
                "`experiment` is the folder of its record: runs of one experiment are compared over weeks by "
                "it.", ("experiment",), "per engine s")}),
    Quantity("clock_s", "update", "engine s", "`t_s` of the last update; 0 without one",
        total=lambda tally, _: tally.last_update_s,
        families={"dsgd_update_seconds": Family("histogram", "update_s",
            "engine seconds from one update to the next",
            "Its sum is the engine's clock at the last update.")},
        columns=_columns(float, "clock_s")),
    Quantity("loss", "update", "",
        "mean of the losses of the update's tasks, of the first update and of the last",
        total=lambda tally, _: {"first": finite(tally.first_loss), "last": finite(tally.last_loss)},
        points=lambda update: () if update.loss is None else (update.loss,),
        families={
            "dsgd_train_loss": Family("gauge", "tally.last_loss",
                "mean mini-batch loss of the last update's tasks",
                "It is noisy. NaN and +Inf are exported as they are. Absent for `--workload none`."),
            "dsgd_learning_rate": Family("gauge", "learning_rate",
                "step size at this point of the run: `--lr` times the schedule's factor"),
            "dsgd_gradient_norm": Family("gauge", "gradient_norm",
                "Euclidean norm of the mean gradient of an update",
                "It is looked at once a second, or less often if it takes long. In local SGD and AdaComm: "
                "see [the log](#the-log). Absent in other modes.")}),
    Quantity("staleness", "task", "updates",
        "updates between reading weights and applying the result, its own not counted",
        total=lambda tally, _: _staleness(tally),
        points=lambda update: map(update.staleness, update.dones),
        families={
            "dsgd_staleness_updates": Family("histogram", "staleness",
                note="0 is fresh; equal asynchronous workers average `num_workers - 1`. Sum over count is "
                "the exact mean; quantiles are interpolated between 0, 1, 2, 4, 8, …, "
                "4096.", labels=("worker",)),
            "dsgd_staleness_max_updates": Family("gauge", "staleness_max", "the largest staleness so far"),
            "dsgd_staleness_bound_updates": Family("gauge", "staleness_bound",
                "upper bound of the staleness in this mode with these options",
                "Absent where [theory](theory.md) has none.")},
        columns=_columns(float, "staleness.mean") | _columns(int, "staleness.p95", "staleness.max")),
    Quantity("clock_gap_max", "run", "mini-batches",
        "largest difference between fastest and slowest worker after an update",
        total=lambda tally, _: tally.clock_gap_max,
        families={"dsgd_clock_gap_steps": Family("gauge", "tally.clock_gap",
            "fastest minus slowest worker's clock after the last update",
            "SSP keeps it at `slack + 1` or less.")},
        columns=_columns(int, "clock_gap_max")),
    of_updates("drift", "", "distance of the workers' weights to their average", "dsgd_localsgd_drift",
        "Local modes have it."),
    of_updates("consensus", "",
        "consensus distance: mean squared distance of the workers' weights to their mean",
        note="Modes without a server have it."),
    Quantity("extra", "update", "",
        "what the strategy has handed over in `Update.extra` by this name, at the last update that had it",
        families={"dsgd_extra": Family("gauge", "extra",
            note="Like `tau` of AdaComm, the local steps of a round. At most 16 names a run.",
            labels=("name",))}),
    Quantity("steps", "worker", "mini-batches", "of worker I that came back, applied or ignored",
        by_worker=lambda tally, _: tally.steps),
    Quantity("busy_s", "worker", "engine s",
        "of computing; a task in flight at the end counts since it was given out", by_worker=_busy_s,
        families={"dsgd_compute_seconds": Family("histogram", "compute_s",
            "engine seconds that a worker computed, per task that came back, used or ignored",
            "On Ray the sleep of a straggler counts. A task is one mini-batch, or in local modes a round of "
            "them.", ("worker",))}),
    Quantity("batch_s", "worker", "engine s",
        "of computing, per mini-batch that came back; null before the first",
        by_worker=lambda tally, _: [
            busy_s / steps if steps else None
            for busy_s, steps in zip(tally.busy_s, tally.steps, strict=True)]),
    Quantity("idle_s", "worker", "engine s", "`clock_s` - `busy_s`",
        by_worker=lambda tally, cluster: [tally.last_update_s - busy for busy in _busy_s(tally, cluster)],
        families={"dsgd_wait_seconds": Family("histogram", "wait_s",
            "engine seconds that a worker did not compute, per task: transfer, and idle after it",
            "See below.", ("worker",))},
        # Rounded, so that a mere rounding error becomes 0.
        columns={"idle_share": Column(float, lambda s: round(s.idle_share, 9) if s.clock_s else None)}),
    Quantity("exchange_s", "run", "engine s",
        "of a task, on average: what its messages took, there and back, with all waiting for links and "
        "servers; where workers combine results among themselves, what that took",
        total=lambda tally, _: tally.exchange_mean_s,
        families={"dsgd_exchange_seconds_total": Family("counter", "exchange_s",
            "engine seconds of the messages of a worker's applied tasks, there and back, with all waiting "
            "for links and servers",
            "Over `dsgd_staleness_updates_count` it is the latency of a worker's link; the worker's bytes "
            "over it are its bandwidth.", ("worker",))},
        columns=_columns(float, "exchange_s", "exchange_batches")),
    Quantity("restarts", "worker", "", "how many times a worker was lost and restarted",
        by_worker=lambda _, cluster: cluster.restarts,
        families={"dsgd_worker_restarts_total": Family("counter", "restarts",
            note="Read at the scrape, so it rises while the run waits for the worker.", labels=("worker",))},
        columns=_columns(int, "restarts")),
    Quantity("wasted", "run", "mini-batches",
        "that came back and were not used, whose tasks were cancelled, or that faults made useless",
        total=lambda tally, cluster: {"ignored": tally.ignored, "cancelled": sum(cluster.cancelled),
            "faults": tally.wasted_by_faults},
        columns={"wasted": Column(int, attrgetter("wasted.total"))}),
    Quantity("faults", "run", "",
        "how many, by kind; asked for with `--faults`, or a process that died by itself",
        total=lambda tally, _: dict(sorted(tally.faults.items())),
        families={"dsgd_faults_total": Family("counter", "faults",
            "faults that are over, and at the end those that the run ended in",
            "`kind` is `kill`, `pause`, `slow`, `cut`, `node`, `leave`, `join`, `driver`, `lie`, or one of "
            "the checkpoint store; all are there from the start, at 0. After kills that nobody asked for, "
            "look at the machine's memory.", ("kind",))},
        columns={"faults": Column(int,
            lambda s: sum(n for kind, n in s.faults.items() if kind not in FOLLOWING))}),
    Quantity("repeated", "run", "mini-batches", "mini-batches that faults had computed again, or partly",
        total=lambda tally, _: tally.repeated, of_fault=lambda fault: fault.repeated,
        families={"dsgd_repeated_gradients_total": Family("counter", "repeated",
            note="Its rate over that of `dsgd_gradients_total` is the share of work that faults cost.")},
        columns=_columns(int, "repeated")),
    Quantity("recovery_s", "run", "engine s",
        "engine seconds from a fault until all workers concerned computed again or had left",
        total=lambda tally, _: _recovery_s(tally), of_fault=lambda fault: fault.to_recover_s,
        families={"dsgd_fault_recovery_seconds": Family("histogram", "recovery_s",
            note="Those that the run ended in are not among them.")},
        columns={"recovery_p50_s": Column(float, attrgetter("recovery_s.p50"))}),
    Quantity("bytes", "run", "bytes", "bytes that were sent, those of cancelled and lost tasks too",
        total=lambda _, cluster: cluster.traffic.by_direction,
        families={"dsgd_bytes_total": Family("counter", "traffic.by_direction",
            note="`direction` is `to_workers`, `to_server`, `between_workers`, `between_servers`, or what "
            "the driver `fetched` to evaluate or keep it.", labels=("direction",))},
        columns={"bytes": Column(int, attrgetter("bytes.total"))}),
    Quantity("wasted_bytes", "run", "bytes",
        "sent for tasks whose results no update used: cancelled, lost, sent twice, discarded, or in flight "
        "at the end",
        total=lambda tally, cluster: cluster.traffic.of_tasks - tally.useful_bytes,
        families={"dsgd_useful_bytes_total": Family("counter", "tally.useful_bytes",
            "bytes sent for tasks whose results were applied",
            "The rest of `dsgd_bytes_total` was for tasks that are in flight, or was wasted.")},
        columns=_columns(int, "wasted_bytes")),
    Quantity("sent_bytes", "worker", "bytes", "bytes sent over a worker's link, from it",
        by_worker=lambda _, cluster: cluster.traffic.sent,
        families={"dsgd_worker_sent_bytes_total": Family("counter", "traffic.sent", labels=("worker",))}),
    Quantity("received_bytes", "worker", "bytes", "bytes sent over a worker's link, to it",
        by_worker=lambda _, cluster: cluster.traffic.received,
        families={"dsgd_worker_received_bytes_total": Family("counter", "traffic.received",
            labels=("worker",))}),
    Quantity("experts", "evaluation", "",
        "of a mixture of experts: how it is used by the weights that are evaluated, and by workers",
        of_evaluation={name: _routing(name) for name in ROUTING},
        families={
            "dsgd_expert_load_share": Family("gauge", "experts.load_by_expert",
                "share of a layer's choices that are this expert, on held-out data at the last evaluation",
                "1/E where all is even. Absent where layers and experts are more than 1,024.",
                ("layer", "expert"), "0 to 1"),
            "dsgd_expert_max_violation": Family("gauge", "experts.max_violation",
                "MaxVio: by how many mean loads the most loaded expert is above the mean, at the last "
                "evaluation", "0 is even; E/K - 1, all tokens to the same experts, is the worst.",
                unit="means"),
            "dsgd_worker_expert_max_violation": Family("gauge", "experts.worker_violations",
                "MaxVio of a worker's loads: of its mini-batch where it returns a gradient, else of the "
                "weights that it returns", "At most 8 workers, those of the last update.",
                ("worker",), "means"),
            "dsgd_router_entropy_ratio": Family("gauge", "experts.router_entropy",
                "mean entropy of the routers' scores of a token, as a share of log E", unit="0 to 1"),
            "dsgd_experts_idle": Family("gauge", "experts.idle_experts",
                "experts, in all layers, that no held-out token chooses"),
            "dsgd_choices_dropped_ratio": Family("gauge", "experts.dropped",
                "share of the choices on held-out data that are beyond `--capacity`, as a training pass with "
                "these loads would drop them", "Absent without a capacity.", unit="0 to 1"),
            "dsgd_router_agreement_ratio": Family("gauge", "experts.agreement",
                "share of a token's experts that two workers' own weights both choose, the mean over pairs "
                "of workers", "K/E by chance. Absent where workers return gradients.", unit="0 to 1")},
        columns={name: Column(float, _of_last_evaluation(name)) for name in ROUTING}),
]  # fmt: skip
"""All that is measured, a row each."""
