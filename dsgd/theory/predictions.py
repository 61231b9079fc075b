"""What theory predicts of a run, from its options alone, compared with what was measured.

The closed forms are declared by the strategies: `theory(cfg)` in `train_<mode>.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dsgd.config import TrainConfig
from dsgd.strategies import strategy_of
from dsgd.theory.closed_forms import ClosedForms, delivery_cycle
from dsgd.theory.laws_of_times import memory_steps
from dsgd.theory.order_statistics import order_statistic_skewness
from dsgd.theory.uncertainty import Estimate, Totals, ratio_of_means, steady, updates_needed, with_ends
from dsgd.theory.verdicts import BOUNDS, Verdict, judged

T = TypeVar("T")

_SUMS: Mapping[str, Callable[[Totals], tuple[float, float]]] = {
    "s_per_update": lambda row: (row.clock_s, row.updates),
    "staleness_mean": lambda row: (row.staleness, row.tasks),
    "staleness_p0": lambda row: (row.fresh, row.tasks),
}
"""What each average is a ratio of."""

_BROKEN_OFF: Mapping[str, Verdict] = {"diverged": "diverged", "failed": "failed"}


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


def memory(cfg: TrainConfig) -> float:
    """Return the updates in which a run forgets how it began; inf if it never does."""
    known_memory = closed_forms(cfg).memory
    return known_memory() if known_memory else delivery_cycle(cfg)


def needed(cfg: TrainConfig, name: str) -> float:
    """Return how many updates a run needs before its average `name` is compared; inf: it never is."""
    if name == "staleness_p0":
        p = predict(cfg)[name]
        return updates_needed(memory(cfg), (1 - 2 * p) / math.sqrt(p * (1 - p)))  # workers are drawn afresh
    known_skewness = closed_forms(cfg).skewness
    laws = [law for law in (cfg.timing.compute_law, cfg.timing.server_law) if law]
    skewness = known_skewness() if known_skewness else max(map(order_statistic_skewness, laws))
    return updates_needed(memory(cfg), skewness, memory_steps(cfg.timing.compute_law))


def of_drawn_times(cfg: TrainConfig) -> set[str]:
    """Return the predictions that know of drawn compute times only: on Ray, real time is added to these.

    What theory says with nothing known of the times, it says of real ones too.
    """
    if cfg.engine == "sim":
        return set()
    always = predict(replace(cfg, timing=replace(cfg.timing, compute_time="none")))
    return {name for name, value in predict(cfg).items() if always.get(name) != value}


def compare(
    cfg: TrainConfig, counted: Mapping[str, Any], rows: Sequence[Totals], stopped_by: str, restarts: int
) -> dict[str, dict[str, Any]]:
    """Return predictions and measurements side by side, as `theory` of summary.json has them.

    counted: the counted part of the summary. rows: the totals at the run's marks, and at its end. restarts:
    of workers that were lost.
    """
    updates, staleness = counted["updates"], counted["staleness"]
    if not updates:
        return {}
    whole = {
        "staleness_max": staleness["max"],
        "clock_gap_max": counted["clock_gap_max"],
        **{name: y / x for name, sums in _SUMS.items() for y, x in [sums(rows[-1])]},
    }
    broken_off: Verdict | None = _BROKEN_OFF.get(stopped_by) or ("workers were lost" if restarts else None)
    drawn = of_drawn_times(cfg)
    entries = {}
    for name, value in predict(cfg).items():
        fixed = name in BOUNDS or (name, value) in (("staleness_mean", 0.0), ("staleness_p0", 1.0))
        estimate: Estimate | None = None
        needs: int | None = None
        never = None if fixed else broken_off
        if not fixed and not never:
            least = needed(cfg, name)
            estimate = _steady_mean(cfg, name, value, rows) if updates >= least else None
            if least < math.inf:
                needs = int(least)
                never = None if estimate else "too short to compare"
            else:
                never = "never settles" if memory(cfg) == math.inf else "too heavy a tail to compare"
        entries[name] = judged(
            name,
            value,
            estimate or Estimate(whole[name], 0.0, 0),
            fixed=fixed,
            not_compared=never,
            needs_updates=needs,
            of_drawn_times=name in drawn,
        )
    return entries


def _steady_mean(cfg: TrainConfig, name: str, value: float, rows: Sequence[Totals]) -> Estimate | None:
    forgotten = memory(cfg)
    part = steady(rows, forgotten)
    estimate = ratio_of_means([_SUMS[name](row) for row in part])
    return with_ends(estimate, value, forgotten, part[-1].updates - part[0].updates) if estimate else None
