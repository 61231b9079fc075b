"""What is measured of a run: `QUANTITIES`, a row each, and `Tally`, which counts them update by update.

Staleness is how many updates were applied between reading the weights and applying a gradient computed at
them, its own update not counted:

    staleness = (version that the update makes) - 1 - (version that the worker read)

Under a barrier it is 0. P equal asynchronous workers average P - 1: meanwhile each of the others pushes once.
SSP bounds it by (P - 1)(2 slack + 1). `idle_s` says who waits, `clock_s` what the same `samples` took.

To measure something new, add a row; records, Prometheus, TensorBoard, reports and the tables in the pages
docs/record.md and docs/observing.md are made from the rows. A number that updates have needs only

    of_updates("consensus", "", "mean distance between neighbours' weights")

and either a strategy hands it over, `Update(w, dones, measured={"consensus": x})`, or the row computes it:
`of=lambda update: ...`. A number of one strategy alone needs no row: `Update(w, dones, extra={"tau": 7})`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from msgspec import UNSET

from dsgd.core import routing
from dsgd.core.clocks import Clocks
from dsgd.core.fault_seen import FOLLOWING, FaultSeen
from dsgd.core.protocol import Engine, Update
from dsgd.core.update_counts import MOST_LISTED, UpdateCounts, finite


class Tally(UpdateCounts):
    """Counts over the updates of a run; the parameters are those of UpdateCounts."""

    def __init__(
        self, num_workers: int, samples_per_batch: int, clocks: Clocks, *, reduces: bool = False
    ) -> None:
        always, taken = any(row.of and not row.handed_over for row in QUANTITIES), taken_of_updates()
        super().__init__(num_workers, samples_per_batch, clocks, taken, always=always, reduces=reduces)

    def summary(self, cluster: Engine) -> dict[str, Any]:
        """Return the counted part of summary.json; `cluster` adds what no update has."""
        by_worker = {row.name: row.by_worker(self, cluster) for row in QUANTITIES if row.by_worker}
        large = len(self.tasks) > MOST_LISTED
        totals = {row.name: row.total(self, cluster) for row in QUANTITIES if row.total}
        return {
            **{name: total for name, total in totals.items() if total is not UNSET},
            "workers": {
                str(worker): {name: values[worker] for name, values in by_worker.items()}
                for worker in self.listed
            },
            "over_workers": self.over_workers(by_worker) if large else {},
            **({"extra": self.extra_summary()} if self.extra else {}),
        }


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
    """Takes the field of summary.json; UNSET where the run has none."""
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


QUANTITIES: list[Quantity] = [
    Quantity("run", "run", "", "the run's options, and whether it is active", families={
        "dsgd_run_info": Family("info", "info", "always 1; the labels describe the run",
            "`experiment` is the folder of its record. Join it to other metrics to split them by engine or "
            "data.", ("engine", "num_workers", "dataset", "experiment", "git_commit", "version")),
        "dsgd_run_active": Family("gauge", "active", "1 while the run takes updates, 0 once it has ended",
            "Alerts on stalled runs require 1: the series of an ended run stay while the process lives."),
        "dsgd_startup_seconds": Family("gauge", "startup_s", "wall seconds since the run began",
            "`until` its data were made and all `workers` ready, and the `first_update`: by then all groups "
            "of processes that exchange values have formed.", ("until",), "wall s"),
        "dsgd_last_update_timestamp_seconds": Family("gauge", "last_update_epoch_s",
            "wall time of the last update, since 1970", "Absent before the first.", unit="wall s"),
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
                "training samples in the applied mini-batches", "Modes are compared at equal samples."),
            "dsgd_samples_per_second": Family("gauge", "samples_per_s",
                "samples applied per engine second, whole run so far",
                "`experiment` is the folder of its record, by which runs are compared over weeks.",
                ("experiment",), "per engine s")}),
    Quantity("tokens", "run", "tokens", "samples · tokens of a sample; of language models alone",
        total=lambda tally, _: UNSET if tally.tokens is None else tally.tokens,
        families={
            "dsgd_tokens_total": Family("counter", "tally.tokens", "tokens in the applied mini-batches"),
            "dsgd_tokens_per_second": Family("gauge", "tokens_per_s",
                "tokens applied per engine second, whole run so far", unit="per engine s")},
        columns=_columns(float, "tokens_per_s")),
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
            "dsgd_gradient_norm": Family("gauge", "gradient_norm", "norm of an update's mean gradient",
                "It is looked at once a second, or less often if it takes long. In local SGD and AdaComm: "
                "see [the log](#the-log). Absent in other modes.")}),
    Quantity("staleness", "task", "updates",
        "updates between reading weights and applying the result, its own not counted",
        total=lambda tally, _: tally.staleness_summary(),
        points=lambda update: map(update.staleness, update.dones),
        families={
            "dsgd_staleness_updates": Family("histogram", "staleness",
                note="0 is fresh; equal asynchronous workers average `num_workers - 1`. Sum over count is "
                "the exact mean; quantiles are interpolated between 0, 1, 2, 4, 8, …, 4096.",
                labels=("worker",)),
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
        "of computing; a task in flight at the end counts since it was given out",
        by_worker=lambda tally, cluster: tally.busy_until_now(cluster),
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
        by_worker=lambda tally, cluster: [tally.last_update_s - s for s in tally.busy_until_now(cluster)],
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
        total=lambda tally, _: tally.recovery_summary(), of_fault=lambda fault: fault.to_recover_s,
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
        of_evaluation={name: routing.of_evaluation(name) for name in routing.ROUTING},
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
        columns={name: Column(float, routing.of_summary(name)) for name in routing.ROUTING}),
]  # fmt: skip
"""All that is measured, a row each."""
