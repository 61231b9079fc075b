"""What a job reports: its driver's metrics, losses in records, and what its logs say."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

# --- the driver's metrics


class ScrapedRun(Struct, frozen=True, kw_only=True):
    """What the driver's metrics say of one run at one moment, as status.schema.json has it."""

    mode: str
    run_id: str
    updates: int
    samples: int
    samples_per_s: float | None
    train_loss: float | None
    eval_loss: float | None
    staleness_mean: float | None
    staleness_max: float | None
    staleness_bound: float | None
    idle_share: float | None
    restarts: int
    tokens_per_s: float | None = None
    workers_ready_s: float | None = None
    first_update_s: float | None = None

    @property
    def loss(self) -> float | None:
        """The evaluated loss, or the training loss where nothing has been evaluated."""
        return self.train_loss if self.eval_loss is None else self.eval_loss

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"{self.mode} {self.updates} updates{loss}"


def runs_in_metrics(text: str) -> dict[str, ScrapedRun]:
    """Return the runs, by run_id, in a page of metrics. Raises ValueError if it is not one."""
    # By run, then by metric: the sum over the workers.
    values: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            if sample.name.startswith("dsgd_") and "run_id" in labels and "le" not in labels:
                until = f" {labels['until']}" if "until" in labels else ""
                values[labels["run_id"], labels.get("mode", "")][sample.name + until] += sample.value
    return {run_id: _run(mode, run_id, of_run) for (run_id, mode), of_run in values.items()}


def _run(mode: str, run_id: str, of_run: dict[str, float]) -> ScrapedRun:
    samples = int(of_run.get("dsgd_samples_total", 0))
    waited_s = of_run.get("dsgd_wait_seconds_sum", 0.0)
    gradients = of_run.get("dsgd_staleness_updates_count", 0.0)
    return ScrapedRun(
        mode=mode,
        run_id=run_id,
        updates=int(of_run.get("dsgd_updates_total", 0)),
        samples=samples,
        samples_per_s=_ratio(samples, of_run.get("dsgd_update_seconds_sum", 0.0)),
        train_loss=of_run.get("dsgd_train_loss"),
        eval_loss=of_run.get("dsgd_eval_loss"),
        staleness_mean=_ratio(of_run.get("dsgd_staleness_updates_sum", 0.0), gradients),
        staleness_max=of_run.get("dsgd_staleness_max_updates") if gradients else None,
        staleness_bound=of_run.get("dsgd_staleness_bound_updates"),
        idle_share=_ratio(waited_s, of_run.get("dsgd_compute_seconds_sum", 0.0) + waited_s),
        restarts=int(of_run.get("dsgd_worker_restarts_total", 0)),
        tokens_per_s=of_run.get("dsgd_tokens_per_second"),
        workers_ready_s=of_run.get("dsgd_startup_seconds workers"),
        first_update_s=of_run.get("dsgd_startup_seconds first_update"),
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# --- records and logs

# Of the evaluations of all runs with a record below the folder `runs`: the file's name, its first line and
# its last one. Runs that tune an experiment's options are left out: some of them may diverge.
READ_EVALUATIONS = (
    *("find", "runs", "-name", "evals.jsonl", "-not", "-path", "*/tuning/*"),
    *("-exec", "sed", "-n", "-e", "1F", "-e", "1p", "-e", "$p", "{}", ";"),
)


def losses_in_records(text: str) -> dict[str, tuple[float | None, float | None]]:
    """Return the first and the last loss of each run, by its record's path.

    text: what READ_EVALUATIONS prints. A loss that was not finite is None.
    Raises ValueError for anything else.
    """
    lines = text.splitlines()
    if len(lines) % 3:
        raise ValueError(f"evals.jsonl: {lines[-1]} is cut off")
    losses = {}
    for path, first, last in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        losses[str(PurePosixPath(path).parent)] = (json.loads(first)["loss"], json.loads(last)["loss"])
    return losses


class ReadBack(Struct, frozen=True):
    """What `main.py evaluate` found of weights that were read back from the bucket, with that of its JSON."""

    run: str
    version: int
    ended: bool
    loss: float | None
    damaged_checkpoints: int = 0
    """How many newer ones could not be read."""


def read_back_of(records: Iterable[str]) -> tuple[str, ...]:
    """Return the command that evaluates what the bucket has of the last of these records: its newest
    checkpoint or, where a finished run has none left, its last weights. Empty if none is of a bucket.
    """
    urls = [path.replace("runs/s3/", "s3://") for path in records if path.startswith("runs/s3/")]
    return ("python", "main.py", "evaluate", f"{urls[-1]}@newest", "--json") if urls else ()


_UPLOADED = re.compile(r"^(?:\w+ +)?(s3://\S+)$", re.MULTILINE)
_PREMISE = re.compile(r"^premise (.+: (?:holds|does not hold|was not measured).*)$", re.MULTILINE)
_NCCL = re.compile(
    r"nccl(?:UnhandledCuda|System|Internal|Remote|InvalidUsage|InvalidArgument)\w*"
    r"|NCCL (?:WARN .*(?:error|fail|abort|timed? ?out)|error|watchdog)"
    r"|ProcessGroupNCCL.*(?:exception|timeout|timed out|abort|terminat)",
    re.IGNORECASE,
)


def uploads_in_log(text: str) -> list[str]:
    """Return the URL in a driver's log line of its upload: `upload  s3://BUCKET/PREFIX/NAME`."""
    return _UPLOADED.findall(text)


def premises_in_log(text: str) -> dict[str, bool]:
    """Return an experiment's premises as a driver's log has them, each with whether it held.

    >>> premises_in_log("premise idle_share is 0.7, at least 0.6: holds")
    {'idle_share is 0.7, at least 0.6: holds': True}
    """
    return {line: line.endswith(": holds") for line in _PREMISE.findall(text)}


def nccl_errors(text: str) -> list[str]:
    """Return the lines of a log in which NCCL, or torch about it, reports an error."""
    return [" ".join(line.split()) for line in text.splitlines() if _NCCL.search(line)]
