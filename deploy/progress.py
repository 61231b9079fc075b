"""How far a job is: from the driver's metrics while it runs, from records and log when it is over."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath

from prometheus_client.parser import text_string_to_metric_families

Values = defaultdict[str, float]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the driver's metrics say of one run at one moment."""

    mode: str
    run_id: str
    updates: int
    samples: int
    train_loss: float | None
    eval_loss: float | None
    staleness_mean: float | None
    staleness_max: float | None
    staleness_bound: float | None
    """In updates; None if the mode has no bound."""
    restarts: int
    update_s: float
    """Engine seconds of all updates so far."""
    idle_share: float | None
    """Of the workers' time, the share in which they did not compute."""

    @property
    def loss(self) -> float | None:
        """The evaluated loss, or the training loss where nothing has been evaluated."""
        return self.train_loss if self.eval_loss is None else self.eval_loss

    @property
    def samples_per_s(self) -> float | None:
        return self.samples / self.update_s if self.update_s else None

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.4g}"
        return f"{self.mode} {self.updates} updates{loss}"


def runs_in_metrics(text: str) -> dict[str, Run]:
    """Return the runs, by run_id, that a page of metrics tells about. Raises ValueError if it is none."""
    # By run, then by metric: the sum over the workers.
    values: defaultdict[tuple[str, str], Values] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            if sample.name.startswith("dsgd_") and "run_id" in labels and "le" not in labels:
                values[labels["run_id"], labels.get("mode", "")][sample.name] += sample.value
    return {run_id: _run(mode, run_id, of_run) for (run_id, mode), of_run in values.items()}


def _run(mode: str, run_id: str, of_run: Values) -> Run:
    gradients = of_run.get("dsgd_staleness_updates_count", 0.0)
    computed_s = of_run.get("dsgd_compute_seconds_sum", 0.0)
    waited_s = of_run.get("dsgd_wait_seconds_sum", 0.0)
    busy_or_not_s = computed_s + waited_s
    return Run(
        mode=mode,
        run_id=run_id,
        updates=int(of_run.get("dsgd_updates_total", 0)),
        samples=int(of_run.get("dsgd_samples_total", 0)),
        train_loss=of_run.get("dsgd_train_loss"),
        eval_loss=of_run.get("dsgd_eval_loss"),
        staleness_mean=of_run["dsgd_staleness_updates_sum"] / gradients if gradients else None,
        staleness_max=of_run.get("dsgd_staleness_max_updates") if gradients else None,
        staleness_bound=of_run.get("dsgd_staleness_bound_updates"),
        restarts=int(of_run.get("dsgd_worker_restarts_total", 0)),
        update_s=of_run.get("dsgd_update_seconds_sum", 0.0),
        idle_share=waited_s / busy_or_not_s if busy_or_not_s else None,
    )


# Of the evaluations of all runs with a record below the folder `runs`: the file's name, its first line and
# its last one. Runs that tune an experiment's options are left out: some of them may diverge.
READ_EVALUATIONS = (
    *("find", "runs", "-name", "evals.jsonl", "-not", "-path", "*/tuning/*"),
    *("-exec", "sed", "-n", "-e", "1F", "-e", "1p", "-e", "$p", "{}", ";"),
)


def losses_in_records(text: str) -> dict[str, tuple[float | None, float | None]]:
    """Return the first and the last loss of each run, from what READ_EVALUATIONS prints.

    A loss that was not finite is None. Raises ValueError for anything else.
    """
    lines = text.splitlines()
    if len(lines) % 3:
        raise ValueError(f"evals.jsonl: {lines[-1]} is cut off")
    losses = {}
    for path, first, last in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        losses[PurePosixPath(path).parent.name] = (json.loads(first)["loss"], json.loads(last)["loss"])
    return losses


_UPLOADED = re.compile(r"^(?:\w+ +)?(s3://\S+)$", re.MULTILINE)


def uploads_in_log(text: str) -> list[str]:
    """Return where a driver's log says that it has put its records: `upload  s3://BUCKET/PREFIX/NAME`."""
    return _UPLOADED.findall(text)


_NCCL = re.compile(
    r"nccl(?:UnhandledCuda|System|Internal|Remote|InvalidUsage|InvalidArgument)\w*"
    r"|NCCL (?:WARN .*(?:error|fail|abort|timed? ?out)|error|watchdog)"
    r"|ProcessGroupNCCL.*(?:exception|timeout|timed out|abort|terminat)",
    re.IGNORECASE,
)


def nccl_errors(text: str) -> list[str]:
    """Return the lines of a log in which NCCL, or torch about it, tells of an error."""
    return [" ".join(line.split()) for line in text.splitlines() if _NCCL.search(line)]
