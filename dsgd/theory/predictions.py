"""What theory predicts of a run, from its options alone, compared with what was measured.

The closed forms are declared by the strategies: `theory(cfg)` in `train_<mode>.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dsgd.config import TrainConfig
from dsgd.strategies import strategy_of
from dsgd.theory.closed_forms import ClosedForms

BOUNDS = ("staleness_max", "clock_gap_max")  # of these, theory gives a bound; of all else, the value

T = TypeVar("T")


def closed_forms(cfg: TrainConfig) -> ClosedForms:
    """Return the closed forms that a run's strategy declares."""
    theory: Callable[[Any], ClosedForms] = getattr(strategy_of(cfg), "theory", lambda cfg: ClosedForms())
    return theory(cfg)


def known(form: Callable[[], T]) -> T | None:
    """Return what a closed form gives; None outside its assumptions, or where none is known."""
    try:
        return form()
    except ValueError:
        return None


def predict(cfg: TrainConfig) -> dict[str, float]:
    """Return what the literature's closed forms give for this mode, law and scenario.

    Keys: s_per_update (seconds on the engine's clock), staleness_mean and staleness_max (updates),
    staleness_p0 (the share of fresh gradients), clock_gap_max (mini-batches). What has no formula is left
    out.
    """
    forms = closed_forms(cfg)
    values = {
        "staleness_mean": known(forms.staleness_mean),
        "staleness_p0": known(lambda: forms.staleness_pmf(0)),
        "staleness_max": known(forms.staleness_max),
        "clock_gap_max": known(forms.clock_gap_max),
        "s_per_update": known(forms.s_per_update),
    }
    # An infinite bound says nothing, an infinite time is never measured.
    return {name: float(x) for name, x in values.items() if x is not None and math.isfinite(x)}


def staleness_bound(cfg: TrainConfig) -> float | None:
    """Return the upper bound of the staleness, in updates; None if theory has none."""
    predicted = predict(cfg)
    fresh = predicted.get("staleness_mean") == 0
    return predicted.get("staleness_max", 0.0 if fresh else None)


def compare(cfg: TrainConfig, summary: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return predictions and measurements side by side, as `theory` of summary.json has them.

    Each entry: theory, measured, and relative_difference, (measured - theory)/theory, None for bounds.
    """
    updates, staleness = summary["updates"], summary["staleness"]
    if not updates:
        return {}
    measured = {
        "s_per_update": summary["clock_s"] / updates,
        "staleness_mean": staleness["mean"],
        "staleness_p0": staleness["counts"].get("0", 0) / sum(staleness["counts"].values()),
        "staleness_max": staleness["max"],
        "clock_gap_max": summary["clock_gap_max"],
    }
    return {
        name: {
            "theory": value,
            "measured": measured[name],
            "relative_difference": (measured[name] - value) / value if value and name not in BOUNDS else None,
        }
        for name, value in predict(cfg).items()
    }
