"""How far a job is while it runs: from the metrics that its driver exports."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Values = defaultdict[str, float]


@dataclass(frozen=True, kw_only=True)
class ScrapedRun:
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
    """Share of the workers' time without computing."""

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


def runs_in_metrics(text: str) -> dict[str, ScrapedRun]:
    """Return the runs, by run_id, in a page of metrics. Raises ValueError if it is not one."""
    # By run, then by metric: the sum over the workers.
    values: defaultdict[tuple[str, str], Values] = defaultdict(lambda: defaultdict(float))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            if sample.name.startswith("dsgd_") and "run_id" in labels and "le" not in labels:
                values[labels["run_id"], labels.get("mode", "")][sample.name] += sample.value
    return {run_id: _run(mode, run_id, of_run) for (run_id, mode), of_run in values.items()}


def _run(mode: str, run_id: str, of_run: Values) -> ScrapedRun:
    gradients = of_run.get("dsgd_staleness_updates_count", 0.0)
    computed_s = of_run.get("dsgd_compute_seconds_sum", 0.0)
    waited_s = of_run.get("dsgd_wait_seconds_sum", 0.0)
    busy_or_not_s = computed_s + waited_s
    return ScrapedRun(
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
