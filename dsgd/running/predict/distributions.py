"""Theory's lines in figures: what the closed forms say of a recorded run.

A run's own predictions are in its summary. Here are those that need more than one number: distributions,
and values by worker.
"""

from __future__ import annotations

import numpy as np

from dsgd.core.time_laws import Floats
from dsgd.records.reader import Record
from dsgd.records.schema import Summary
from dsgd.running.predict import predictions
from dsgd.running.predict.predictions import closed_forms
from dsgd.strategies import configured
from dsgd.theory.assumptions import known
from dsgd.theory.closed_forms import ClosedForms


def staleness_pmf(record: Record, largest: int) -> Floats | None:
    """Return P(staleness = 0 ... `largest`) where a closed form is known, shape (largest + 1,)."""
    forms = _closed_forms(record)
    return known(lambda: np.array([forms.staleness_pmf(tau) for tau in range(largest + 1)]))


def staleness_by_worker(record: Record) -> Floats | None:
    """Return each worker's mean staleness, shape (P,), where a closed form is known."""
    return known(_closed_forms(record).staleness_by_worker)


def gradients_per_s(summary: Summary) -> float | None:
    """Return the throughput (mini-batches applied per engine second) that theory predicts."""
    entry = summary.theory.get("s_per_update")
    if entry is None or not entry.theory or not summary.updates:
        return None
    return summary.gradients / summary.updates / entry.theory


def value(summary: Summary, name: str) -> float | None:
    """Return a prediction in the summary, like `staleness_mean`."""
    entry = summary.theory.get(name)
    return entry.theory if entry else None


def of_drawn_times(record: Record) -> set[str]:
    """Return the predictions of a run that know of drawn compute times only, not of those on Ray."""
    cfg = known(lambda: configured(record.config))
    return predictions.of_drawn_times(cfg) if cfg else set()


def _closed_forms(record: Record) -> ClosedForms:
    """Return the run's closed forms: none where its strategy or the trace of its times is no longer there."""
    cfg = known(lambda: configured(record.config))
    return closed_forms(cfg) if cfg else ClosedForms()
