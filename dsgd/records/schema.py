"""The files of a run record as types: the one definition from which they are written, read and documented.

`encode` and the `write` functions of writer.py make the files from these types; reader.py,
followed_run.py and trace.py decode them with `decode`, which names the file, the line and the field that is
wrong; documents.py makes the tables of docs/record.md and docs/record.schema.json from them.

msgspec does it: one class both encodes and decodes, an error carries the path of its field, a JSON Schema
comes with it, and a line of updates.jsonl takes a few microseconds. config.yaml is a flat mapping from option
to value, whose types are those of config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from statistics import median
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dsgd.core.routing import ROUTING
from dsgd.metrics import QUANTITIES, Quantity, quantity
from dsgd.process.checked_yaml import KINDS
from dsgd.scenario.fault import LASTING

T = TypeVar("T")


class RecordError(ValueError):
    """A folder cannot be read as a run record; the message is one line."""


def field(unit: str, text: str, key: str = "") -> msgspec.Meta:
    """Describe a field: its unit (empty without one) and what it means.

    key: what stands for the names in a mapping, like I for a worker's number.
    """
    extra = {name: value for name, value in (("unit", unit), ("key", key)) if value}
    return msgspec.Meta(description=text, extra=extra, extra_json_schema={"unit": unit} if unit else None)


def of_table(name: str) -> msgspec.Meta:
    """Describe a field by its row in the table of quantities."""
    row = quantity(name)
    return field(row.unit, row.text)


def of_routing(name: str) -> msgspec.Meta:
    """Describe a field by its entry in `ROUTING`."""
    return field(*ROUTING[name])


# fmt: off
# --- updates.jsonl


class RecordedTask(Struct, frozen=True, kw_only=True, gc=False):
    """A task: an entry of `gradients` or `ignored` in a line of updates.jsonl."""

    worker: Annotated[int, field("", "which worker took the task, from 0")]
    step: Annotated[int, field("mini-batches", "the worker's step when the task began")]
    batches: Annotated[int, field("mini-batches", "in the task")]
    staleness: Annotated[int, field("updates",
        "between reading and applying, its own not counted: `version - 1 -` version read")]
    started_s: Annotated[float, field("engine s", "when the server gave out the task, before any transfer")]
    finished_s: Annotated[float, field("engine s",
        "when the server had the result, after any transfer and service")]
    compute_s: Annotated[float, field("engine s",
        "of computing or, as a straggler on Ray, sleeping; the rest is transfer and waiting")]
    loss: Annotated[float | None, field("",
        "mean mini-batch loss, at the weights read (local steps: at the local ones)")]


class RecordedUpdate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of updates.jsonl; `update_type` adds the numbers that the table of quantities has."""

    version: Annotated[int, field("updates", "the version that this update made, from 1")]
    t_s: Annotated[float, field("engine s",
        "when it was made: as its last task came in, or later")]
    loss: Annotated[float | None, field("", "mean of its tasks' losses")]
    gradients: Annotated[tuple[RecordedTask, ...], field("", "its tasks, each with the fields below")]
    ignored: Annotated[tuple[RecordedTask, ...], field("",
        "the tasks that were discarded since the previous update; left out where there are none")] = ()
    extra: Annotated[dict[str, float | None], field("",
        "what the strategy handed over in `Update.extra`, by name; left out where there is "
        "none")] = msgspec.field(default_factory=dict)
    sent: Annotated[dict[str, tuple[int, ...]], field("bytes",
        "that the run had sent by then, by direction and worker; only on Ray, and where something was sent "
        "that does not follow from the tasks, like what was sent again after a "
        "fault")] = msgspec.field(default_factory=dict)

    @property
    def measured(self) -> dict[str, float | None]:
        """The numbers that the update has, by the names of their rows, like drift."""
        return _measured(self, RecordedUpdate)


# --- evals.jsonl


class RoutingNumbers(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`experts` of a line of evals.jsonl and of `eval` in summary.json: of a mixture of experts alone."""

    max_violation: Annotated[float, of_routing("max_violation")]
    router_entropy: Annotated[float, of_routing("router_entropy")]
    idle_experts: Annotated[int, of_routing("idle_experts")]
    dropped: Annotated[float | None, of_routing("dropped")] = None
    agreement: Annotated[float | None, of_routing("agreement")] = None
    agreement_with_server: Annotated[float | None, of_routing("agreement_with_server")] = None
    worker_max_violation: Annotated[float | None, of_routing("worker_max_violation")] = None
    worker_dropped: Annotated[float | None, of_routing("worker_dropped")] = None


class RecordedRouting(RoutingNumbers, frozen=True, kw_only=True, omit_defaults=True):
    """`experts` of a line of evals.jsonl."""

    load: Annotated[tuple[tuple[float, ...], ...], field("0 to 1",
        "by layer, then by expert: its share of the choices on the test data")]
    entropy: Annotated[tuple[float, ...], field("log E",
        "by layer: of the router, the mean of its scores' entropy")]
    capacity: Annotated[float | None, field("means", "of an expert in training; left out without one")] = None
    workers: Annotated[dict[int, tuple[tuple[float, ...], ...]], field("0 to 1",
        "`load` by worker, of at most 8: where workers return gradients, of the mini-batches of the last "
        "update; where they return weights, of these on the first eighth of the test "
        "data", key="I")] = msgspec.field(default_factory=dict)


class RecordedEvaluation(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A line of evals.jsonl."""

    version: Annotated[int, field("updates", "the weights evaluated")]
    t_s: Annotated[float, field("engine s", "`t_s` of that version's update; 0 for version 0")]
    gradients: Annotated[int, field("mini-batches", "applied by then")]
    bytes: Annotated[int, field("bytes", "that had been sent by then, of all messages")]
    loss: Annotated[float | None, field("",
        "on held-out samples; quadratic: the exact objective, the mean over workers")]
    accuracy: Annotated[float | None, field("0 to 1",
        "share of held-out samples classified correctly; null for the quadratic")]
    bits_per_byte: Annotated[float | None, field("bits a byte",
        "of held-out text: the loss to base 2; left out of all but language models")] = None
    experts: Annotated[RecordedRouting | None, field("",
        "how they are used; left out of all but mixtures of experts")] = None


# --- faults.jsonl


class RecordedFault(Struct, frozen=True, kw_only=True, gc=False):
    """A line of faults.jsonl: a `FaultSeen` (dsgd/core/fault_seen.py)."""

    t_s: Annotated[float, field("engine s", "when it began")]
    kind: Annotated[str, field("",
        "`kill`, `pause`, `slow`, `cut`, `node`, `leave`, `join`, `driver`, `torn`, `rot`, `full`, "
        "`slow-disk` or `lie`, as in `--faults`; a process that died by itself is a `kill`. Also `suspect`, "
        "a silent task that a second host got too, `given-up`, a host that is not started again, and "
        "`divergence` and `lost-weights`, after which the run went back")]
    workers: Annotated[tuple[int, ...], field("", "whom it hit, from 0")]
    asked: Annotated[bool, field("", "whether `--faults` asked for it")]
    update: Annotated[int, field("updates", "the version of the weights when it began")]
    came_in: Annotated[int, field("tasks",
        "that had come in when it began: its place in the order of events")]
    text: Annotated[str, field("", "what was done about it, in words")]
    detected_s: Annotated[float | None, field("engine s",
        "from its beginning until the driver knew; null: never, or not applicable")] = None
    recovered_s: Annotated[float | None, field("engine s",
        "from its beginning until all workers concerned computed again or had left; null: never")] = None
    repeated: Annotated[int, field("mini-batches", "that were computed again, or partly")] = 0
    wasted: Annotated[int, field("mini-batches",
        "whose result was not used: a second copy came first, or the member left")] = 0
    back_to: Annotated[int | None, field("updates",
        "the version that the run went back to; null if it did not")] = None
    answers: Annotated[int | None, field("",
        "how often the strategy's waiting had ended when it began, with a task or a change of members: two "
        "changes with the same number were seen together; null in older simulations")] = None
    notice: Annotated[bool, field("",
        "whether the process was asked to end (SIGTERM): its tasks came in all the same")] = False
    at_once: Annotated[bool, field("",
        "whether the strategy, in the simulator, was not waiting, and so saw it at once")] = False

    @property
    def over_s(self) -> float | None:
        """When (engine s) it was over; None: it was not when the run ended."""
        if self.recovered_s is None:
            return None if self.kind in LASTING else self.t_s
        return self.t_s + self.recovered_s


# --- summary.json


class LastEvaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`eval` of summary.json."""

    loss: Annotated[float | None, field("", "of the last evaluation")]
    accuracy: Annotated[float | None, field("0 to 1",
        "of the last evaluation; the score of a workload that has one")]
    score_name: Annotated[str, field("", "what that is called; left out if it is the accuracy")] = "accuracy"
    bits_per_byte: Annotated[float | None, field("bits a byte",
        "of the last evaluation; left out of all but language models")] = None
    perplexity: Annotated[float | None, field("tokens",
        "e to the loss; left out of all but language models")] = None
    experts: Annotated[RoutingNumbers | None, field("",
        "of the last evaluation; left out of all but mixtures of experts")] = None


class FirstAndLast(Struct, frozen=True, kw_only=True):
    """`loss` of summary.json."""

    first: Annotated[float | None, field("", "`loss` of the first update")]
    last: Annotated[float | None, field("", "`loss` of the last update")]


class Staleness(Struct, frozen=True, kw_only=True):
    """`staleness` of summary.json; a number is null if no task was applied."""

    mean: Annotated[float | None, field("updates", "over all applied tasks; null without one")]
    p50: Annotated[int | None, field("updates", "the median")]
    p95: Annotated[int | None, field("updates", "the 95th percentile")]
    max: Annotated[int | None, field("updates", "the largest")]
    counts: Annotated[dict[int, int], field("tasks",
        "by staleness; only values that occurred. Of more than 1,024 values: cut to three significant "
        "digits, so 1234 counts as 1230")]
    by_worker: Annotated[dict[int, float], field("updates",
        "mean by worker, of the workers in `workers`; only those with an applied task")]


class WorkerTotals(Struct, frozen=True, kw_only=True):
    """An entry of `workers` in summary.json."""

    steps: Annotated[int, of_table("steps")]
    busy_s: Annotated[float, of_table("busy_s")]
    batch_s: Annotated[float | None, field(quantity("batch_s").unit,
        f"{quantity('batch_s').text}. Old records lack it")] = None
    idle_s: Annotated[float, of_table("idle_s")]
    restarts: Annotated[int, of_table("restarts")]
    sent_bytes: Annotated[int, of_table("sent_bytes")] = 0
    received_bytes: Annotated[int, of_table("received_bytes")] = 0


class Spread(Struct, frozen=True, kw_only=True):
    """An entry of `over_workers` in summary.json; each number has the unit of its quantity."""

    mean: Annotated[float, field("",
        "over all workers, of `steps`, `busy_s`, `idle_s`, `restarts`, `sent_bytes` and `received_bytes`, "
        "and over those that have one, of `batch_s`, the seconds of computing per mini-batch, and "
        "`staleness`, the mean of a worker's tasks")]
    min: Annotated[float, field("", "the smallest")]
    p05: Annotated[float, field("", "the 5th percentile")]
    p50: Annotated[float, field("", "the median")]
    p95: Annotated[float, field("", "the 95th percentile")]
    max: Annotated[float, field("", "the largest")]


class Wasted(Struct, frozen=True, kw_only=True):
    """`wasted` of summary.json."""

    ignored: Annotated[int, field("mini-batches", "that came back and were not used")]
    cancelled: Annotated[int, field("mini-batches", "whose tasks were cancelled")]
    faults: Annotated[int, field("mini-batches",
        "whose results faults made useless, the sum of `wasted` in `faults.jsonl`")] = 0

    @property
    def total(self) -> int:
        return self.ignored + self.cancelled + self.faults


class Recovery(Struct, frozen=True, kw_only=True):
    """`recovery_s` of summary.json; null where nothing had to recover."""

    p50: Annotated[float | None, field("engine s", "the median of `recovered_s` in `faults.jsonl`")] = None
    max: Annotated[float | None, field("engine s", "the longest")] = None


class Travelled(Struct, frozen=True, kw_only=True):
    """`bytes` of summary.json."""

    to_workers: Annotated[int, field("bytes", "with tasks: 4·D + padding for each, each time it was sent")]
    to_server: Annotated[int, field("bytes", "with results: as many, unless they are compressed")]
    between_workers: Annotated[int, field("bytes",
        "from one worker to another; 0 unless the topology or the mode has such messages")] = 0
    between_servers: Annotated[int, field("bytes",
        "with results that servers pass on to their backups; 0 without `replicas=2`")] = 0
    fetched: Annotated[int, field("bytes",
        "that the driver asked for to evaluate or keep them, where it has no weights")] = 0

    @property
    def total(self) -> int:
        tasks = self.to_workers + self.to_server
        return tasks + self.between_workers + self.between_servers + self.fetched


class Compared(Struct, frozen=True, kw_only=True):
    """An entry of `theory` in summary.json."""

    theory: Annotated[float, field("",
        "what a formula says of this run: `s_per_update` (engine s), `staleness_mean`, `staleness_max` "
        "(updates), `staleness_p0` (share of tasks), `clock_gap_max` (mini-batches), `run_s` (engine s of "
        "the whole run); only those known")]
    measured: Annotated[float | None, field("",
        "the same in this run: after its warm-up where there is a standard error, else in the whole")]
    relative_difference: Annotated[float | None, field("",
        "(measured - theory)/theory; null for the bounds, those that end in `_max`")]
    standard_error: Annotated[float | None, field("",
        "of `measured`, from batch means; null for bounds, and where the two are not compared")] = None
    batches: Annotated[int, field("",
        "from which that standard error is; 0 where nothing is left to chance")] = 0
    verdict: Annotated[str, field("",
        "`agrees`, `may be chance`, `differs` (by more than chance does once in 1,000 runs), `differs by "
        "real time`; of bounds `kept` or `broken`; or why the two are not compared. Empty in old "
        "records")] = ""
    needs_updates: Annotated[int | None, field("updates",
        "as long a run is needed to compare; null where none is, or no length is")] = None


class BriefSummary(Struct, frozen=True, kw_only=True):
    """What a list of runs and the live page show of a summary.json, of whichever version."""

    stopped_by: str
    error: str | None = None
    eval: LastEvaluation
    updates: int
    gradients: int
    clock_s: float
    wall_s: float | None = None
    loss: FirstAndLast
    staleness: dict[str, Any] = {}
    workers: dict[int, WorkerTotals] = {}
    over_workers: dict[str, Spread] = {}

    @property
    def staleness_mean(self) -> float | None:
        return self.staleness.get("mean")


class MeanAndLast(Struct, frozen=True, kw_only=True):
    """An entry of `extra` in summary.json."""

    mean: Annotated[float | None, field("", "over the updates that had it")]
    last: Annotated[float | None, field("", "of the last of them")]


class Summary(Struct, frozen=True, kw_only=True):
    """summary.json; `summary_type` adds the means of the numbers that the table of quantities has."""

    mode: Annotated[str, field("", "as in `config.yaml`")]
    engine: Annotated[str, field("", "as in `config.yaml`")]
    num_workers: Annotated[int, field("", "as in `config.yaml`")]
    steps: Annotated[int, field("mini-batches", "of each worker, as in `config.yaml`")]
    seed: Annotated[int, field("", "as in `config.yaml`")]
    stopped_by: Annotated[str, field("", "how the run ended, see below")]
    error: Annotated[str | None, field("", "one line, for `failed` and `diverged`")]
    eval: LastEvaluation
    updates: Annotated[int, of_table("updates")]
    gradients: Annotated[int, of_table("gradients")]
    samples: Annotated[int, of_table("samples")]
    overflows: Annotated[int | UnsetType, field("mini-batches",
        "whose gradient overflowed in float16 and was left out; only with `--precision fp16`")] = UNSET
    tokens: Annotated[int | UnsetType, of_table("tokens")] = UNSET
    clock_s: Annotated[float, of_table("clock_s")]
    loss: FirstAndLast
    staleness: Staleness
    clock_gap_max: Annotated[int, of_table("clock_gap_max")]
    workers: Annotated[dict[int, WorkerTotals], field("", "by worker, 0 first", key="I")]
    over_workers: Annotated[dict[str, Spread], field("",
        "by quantity", key="NAME")] = msgspec.field( default_factory=dict )
    wasted: Wasted
    faults: Annotated[dict[str, int], field("",
        "how many, by kind; only kinds that occurred. Old records lack "
        "it", key="KIND")] = msgspec.field(default_factory=dict)
    repeated: Annotated[int, of_table("repeated")] = 0
    recovery_s: Recovery = msgspec.field(default_factory=Recovery)
    exchange_s: Annotated[float | None, of_table("exchange_s")] = None
    extra: Annotated[dict[str, MeanAndLast] | UnsetType, field("",
        "what a strategy handed over in `Update.extra`, by name; left out without any", key="NAME")] = UNSET
    bytes: Travelled
    wasted_bytes: Annotated[int, of_table("wasted_bytes")] = 0
    theory: Annotated[dict[str, Compared], field("",
        "by name", key="NAME")] = msgspec.field( default_factory=dict )
    wall_s: Annotated[float, field("wall s",
        "from the first task to the end of the last evaluation, on either engine")]
    startup_s: Annotated[float, field("wall s", "from the beginning of `main` to the first task")]
    weights_sha256: Annotated[str, field("", "SHA-256, in hex, of the weights' 4·D bytes (not of the file)")]

    @property
    def measured(self) -> dict[str, float | None]:
        """The means of the numbers that updates have, by the names of their rows, like drift."""
        return _measured(self, Summary)

    @property
    def exchange_batches(self) -> float | None:
        """How many mini-batches a worker could compute while its task's messages travel, there and back."""
        return self.exchange_s / self.batch_s if self.exchange_s is not None and self.batch_s else None

    @property
    def restarts(self) -> int:
        """How often any worker was started again."""
        if spread := self.over_workers.get("restarts"):
            return round(spread.mean * self.num_workers)
        return sum(worker.restarts for worker in self.workers.values())

    @property
    def gradients_per_s(self) -> float | None:
        """Mini-batches applied per engine second; None for a run without time."""
        return self.gradients / self.clock_s if self.clock_s else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens applied per engine second; None for a run without time, or without tokens."""
        return None if self.tokens is UNSET or not self.clock_s else self.tokens / self.clock_s

    @property
    def updates_per_s(self) -> float | None:
        """Updates per engine second; None for a run without time."""
        return self.updates / self.clock_s if self.clock_s else None

    @property
    def idle_shares(self) -> list[float]:
        """The share of time that each worker idled, worker 0 first; empty if not all workers are listed."""
        if self.over_workers:
            return []
        return [w.idle_s / self.clock_s if self.clock_s else 0.0 for w in self.workers.values()]

    @property
    def idle_share(self) -> float:
        """Mean over workers of the share of time that each idled."""
        if spread := self.over_workers.get("idle_s"):
            return spread.mean / self.clock_s if self.clock_s else 0.0
        return sum(self.idle_shares) / len(self.workers)

    @property
    def batch_s(self) -> float:
        """The median over workers of the seconds of computing per mini-batch; `clock_s` without any."""
        if spread := self.over_workers.get("batch_s"):
            return spread.p50
        return median(self._batch_times or [self.clock_s])

    @property
    def slowest_ratio(self) -> float:
        """How many times as long as the median worker the slowest one takes for a mini-batch, or 1."""
        if spread := self.over_workers.get("batch_s"):
            return spread.max / spread.p50 if spread.p50 else 1.0
        return max(self._batch_times) / self.batch_s if self._batch_times and self.batch_s else 1.0

    @property
    def _batch_times(self) -> list[float]:
        """Of the workers of which any mini-batch came back."""
        times = ((w.batch_s, w.busy_s, w.steps) for w in self.workers.values() if w.steps)
        return [busy_s / steps if batch_s is None else batch_s for batch_s, busy_s, steps in times]


# --- meta.json


class LaterAttempt(Struct, frozen=True, kw_only=True):
    """An entry of `attempts` in meta.json: the run went on, after `--resume`."""

    started_epoch_s: Annotated[float, field("s", "when this attempt began, since 1970-01-01 UTC")]
    from_version: Annotated[int, field("updates", "the version of the weights from which it went on")]
    why: Annotated[str, field("", "how the attempt before it ended, as far as is known")]
    host: Annotated[str, field("", "the driver's machine")]
    pid: Annotated[int, field("", "the driver's process")]
    worker_pids: Annotated[list[int], field("", "the workers' processes; empty in the sim")]
    steps_before: Annotated[int | None, field("mini-batches",
        "of each worker, if this attempt was asked for more; else null")] = None


class Meta(Struct, frozen=True, kw_only=True):
    """meta.json."""

    started_epoch_s: Annotated[float, field("s", "when `main` began, since 1970-01-01 UTC")]
    started: Annotated[str, field("", "the same, as ISO 8601 in UTC")]
    command: Annotated[list[str], field("", "the command line, the program's name first")]
    git_commit: Annotated[str | None, field("",
        "commit of the code: what `DSGD_GIT_COMMIT` says, which the image sets, else git; null outside a "
        "checkout")]
    git_dirty: Annotated[bool | None, field("",
        "uncommitted changes or new files there; null outside a checkout")]
    versions: Annotated[dict[str, str], field("", "of `python`, `ray`, `torch`, `numpy`, by name")]
    host: Annotated[str, field("", "the driver's machine")]
    platform: Annotated[str, field("", "its system")]
    cpus: Annotated[int | None, field("", "its logical CPUs")]
    device: Annotated[str, field("", "where gradients are computed: `cpu` or `cuda`")]
    worker_pids: Annotated[list[int], field("", "processes at the start, worker 0 first; empty in the sim")]
    options_sha256: Annotated[str | None, field("",
        "of the options in config.yaml that never change, by name as JSON; null in older records")] = None
    init_sha256: Annotated[str | None, field("",
        "of the weights that `init_from` gave, as `weights_sha256`; null without")] = None
    workload_sha256: Annotated[str | None, field("",
        "of the file of `workload`, which the record has as `workload.py`; null without")] = None
    workload_files: Annotated[dict[str, str], field("",
        "SHA-256 of that file and of those that it imports from its folder, by their paths there; the record "
        "has them in `code/`. Empty if it imports none", key="FILE")] = msgspec.field(default_factory=dict)
    workload: Annotated[dict[str, Any], field("",
        "the model and data of `workload`: `weights`, `first` (initial weights and loss, a number each), "
        "`bytes_per_token` (null unless a language model), `score_name`, `train` and `test` (`samples`, "
        "`arrays`, `sha256`, `classes`: dsgd/models/datasets/splits.py), and what its file adds, like "
        "`flops_per_sample` of a gradient and, of text, `gzip_bits_per_byte` and `xz_bits_per_byte`. Empty "
        "without",
        key="NAME")] = msgspec.field(default_factory=dict)
    attempts: Annotated[tuple[LaterAttempt, ...], field("",
        "the later ones of a resumed run, each with the fields below")] = ()

    @property
    def grown(self) -> list[tuple[int, int]]:
        """The versions from which the run went on with more steps, and how many each worker had before."""
        found: list[tuple[int, int]] = []
        for attempt in self.attempts:  # one that begins earlier has made later versions anew
            found = [(min(version, attempt.from_version), steps) for version, steps in found]
            found += [(attempt.from_version, attempt.steps_before)] if attempt.steps_before else []
        return found


# --- comparison.json, of `--engine both`


class Difference(Struct, frozen=True, kw_only=True):
    """A measurement on both engines."""

    ray: Annotated[float | None, field("", "on Ray")]
    sim: Annotated[float | None, field("", "in the simulator")]
    relative_difference: Annotated[float | None, field("", "(sim - ray)/ray; null where that is undefined")]


class Distance(Struct, frozen=True, kw_only=True):
    """How far two distributions are apart."""

    ray: Annotated[None, field("", "always null")] = None
    sim: Annotated[None, field("", "always null")] = None
    total_variation: Annotated[float, field("0 to 1",
        "half the sum of absolute differences: 0 if equal, 1 if disjoint")]


class EngineComparison(Struct, frozen=True, kw_only=True):
    """comparison.json."""

    s_per_update: Annotated[Difference, field("engine s", "seconds an update")]
    staleness_mean: Annotated[Difference, field("updates", "over all applied tasks")]
    staleness_p95: Annotated[Difference, field("updates", "its 95th percentile")]
    idle_share: Annotated[Difference, field("0 to 1", "mean over workers")]
    loss_at_the_end: Annotated[Difference, field("", "of the last evaluation")]
    staleness_distance: Annotated[Distance, field("", "of the two distributions of staleness")]


# fmt: on
# --- with the numbers that the table of quantities has


def update_type() -> type[RecordedUpdate]:
    """Return the type of a line of updates.jsonl, with a field for each number that updates have.

    Such a field is null where an update has no such number, and need not be there: older records lack it.
    """
    kind: type[RecordedUpdate] = _extended(
        RecordedUpdate, tuple((row.name, row.unit, row.text) for row in _rows())
    )
    return kind


def summary_type() -> type[Summary]:
    """Return the type of summary.json, with a field for the mean of each number that updates have."""
    mean = "mean of the updates' `{}`; null without any"
    kind: type[Summary] = _extended(
        Summary, tuple((row.name, row.unit, mean.format(row.name)) for row in _rows())
    )
    return kind


def _rows() -> list[Quantity]:
    return [row for row in QUANTITIES if row.of]


@cache
def _extended(base: Any, fields: tuple[tuple[str, str, str], ...]) -> Any:
    own: list[Any] = [
        # A factory: what equals a plain default would be left out of a line.
        (name, Annotated[float | None, field(unit, text)], msgspec.field(default_factory=lambda: None))
        for name, unit, text in fields
    ]
    return msgspec.defstruct(base.__name__, own, bases=(base,), module=__name__, kw_only=True)


def _measured(value: Struct, base: type[Struct]) -> dict[str, float | None]:
    names = value.__struct_fields__[len(base.__struct_fields__) :]
    return {name: getattr(value, name) for name in names}


def files() -> dict[str, type[Struct]]:
    """Return what each file holds; a .jsonl file one in each line."""
    return {
        "meta.json": Meta,
        "updates.jsonl": update_type(),
        "evals.jsonl": RecordedEvaluation,
        "faults.jsonl": RecordedFault,
        "summary.json": summary_type(),
        "comparison.json": EngineComparison,
    }


# --- to and from bytes


_ENCODER = msgspec.json.Encoder(enc_hook=lambda x: x.item())  # numpy's numbers


def encode(value: Struct) -> bytes:
    """Return a line, without its end. A number that is NaN or infinite becomes null."""
    return _ENCODER.encode(value)


def encode_file(value: Struct) -> bytes:
    """Return a .json file, for people to read too."""
    return msgspec.json.format(_ENCODER.encode(value), indent=2) + b"\n"


def built(values: Mapping[str, Any], kind: type[T]) -> T:
    """Return values by name as one of these types; raises ValueError if they are not what it says."""
    value: T = _decoder(kind).decode(_ENCODER.encode(values))
    return value


class Damaged(RecordError):
    """Bytes that are not JSON: a line that was cut off, or rubbish."""


def decode(content: bytes | str, kind: type[T], where: object) -> T:
    """Return a file's content, or a line's.

    where: names the file, and the line if it has many. Raises Damaged for what is not JSON, and RecordError,
    in one line that names the field, for what is not of this kind.
    """
    try:
        value: T = _decoder(kind).decode(content)
        return value
    except msgspec.ValidationError as error:
        raise RecordError(_meaning(str(error), where)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{where}: is not JSON ({error})") from None


_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: type) -> msgspec.json.Decoder[Any]:
    if kind not in _DECODERS:
        _DECODERS[kind] = msgspec.json.Decoder(kind)
    return _DECODERS[kind]


_KINDS = KINDS | {"object": "an object"}  # as JSON calls it


def _meaning(error: str, where: object) -> str:
    """Return what an error of msgspec's says, as one that names the field.

    >>> _meaning("Expected `int | null`, got `str` - at `$.gradients[0].loss`", "updates.jsonl, line 3")
    'updates.jsonl, line 3: gradients[0].loss is not a whole number or null'
    """
    what, _, path = error.partition(" - at ")
    place = path.removeprefix("`$").rstrip("`").lstrip(".")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        name = f"{place}.{missing[1]}" if place else missing[1]
        return f"{where}: has no {name}; the record is from an older version, run it again"
    if inside := re.fullmatch(r"`key` in `\$\.(.*)`", path):
        return f"{where}: {inside[1]} has a name that is not a whole number"
    if expected := re.match(r"Expected `([\w |]+)`", what):
        kinds = " or ".join(_KINDS.get(kind, kind) for kind in expected[1].split(" | "))
        return f"{where}: {place} is not {kinds}" if place else f"{where}: is not {kinds}"
    return f"{where}: {' '.join(error.split())}"
