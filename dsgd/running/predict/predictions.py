"""What theory predicts of a run, from its options alone, compared with what was measured.

The closed forms are declared by the strategies: `theory(cfg)` in `train_<mode>.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from dsgd.config import TrainConfig
from dsgd.core.fault_seen import FaultSeen
from dsgd.core.time_laws import Floats
from dsgd.core.update_counts import Totals
from dsgd.records.reader import Record
from dsgd.records.schema import Summary
from dsgd.running.predict.members import Stretch, mean_over, stretches, with_members
from dsgd.running.predict.verdicts import BOUNDS, Verdict, judged
from dsgd.scenario.fault import Crash
from dsgd.scenario.possible_faults import takes_processes
from dsgd.strategies import recorded, strategy_of
from dsgd.theory.assumptions import known
from dsgd.theory.checkpointing import completion_deviation, completion_time
from dsgd.theory.closed_forms import ClosedForms, delivery_cycle
from dsgd.theory.disturbances import completion, drops_members, members_stay, undisturbed
from dsgd.theory.laws_of_times import memory_steps
from dsgd.theory.order_statistics import order_statistic_skewness
from dsgd.theory.uncertainty import Estimate, ratio_of_means, steady, updates_needed, with_ends

_SUMS: Mapping[str, Callable[[Totals], tuple[float, float]]] = {
    "s_per_update": lambda row: (row.clock_s, row.updates),
    "staleness_mean": lambda row: (row.staleness, row.tasks),
    "staleness_p0": lambda row: (row.fresh, row.tasks),
}
"""What each average is a ratio of."""

_FEWEST_LOSSES = 20

_BROKEN_OFF: Mapping[str, Verdict] = {"diverged": "diverged", "failed": "failed"}


def _declared(cfg: TrainConfig) -> ClosedForms:
    """Return the closed forms that a run's strategy declares, for a run without faults."""
    theory: Callable[[Any], ClosedForms] = getattr(strategy_of(cfg), "theory", lambda cfg: ClosedForms())
    return theory(cfg)


def closed_forms(cfg: TrainConfig) -> ClosedForms:
    """Return the closed forms that a run's strategy declares, as far as they hold under its faults.

    Where members come and go, only bounds and the 0 of synchronous modes are known beforehand.
    """
    forms, none = _declared(cfg), ClosedForms()
    stay = members_stay(cfg)
    if stay and undisturbed(cfg):
        return forms
    foreseen = stay and known(forms.s_per_update_disturbed) is not None

    def run_s() -> float:
        return completion_time(*completion(cfg, forms.run_s(), forms.s_per_update()))

    synchronous = known(forms.staleness_mean) == 0
    return replace(
        forms,
        s_per_update=forms.s_per_update_disturbed if foreseen else none.s_per_update,
        staleness_mean=forms.staleness_mean if foreseen or synchronous else none.staleness_mean,
        staleness_pmf=none.staleness_pmf,
        staleness_by_worker=none.staleness_by_worker,
        run_s=run_s,
    )


def predict(cfg: TrainConfig) -> dict[str, float]:
    """Return what the literature's closed forms give for this mode, law and scenario.

    Keys: s_per_update (seconds on the engine's clock), staleness_mean and staleness_max (updates),
    staleness_p0 (the share of fresh gradients), clock_gap_max (mini-batches), run_s (seconds of the whole
    run, where its driver is lost at random). What has no formula is left out.
    """
    forms = closed_forms(cfg)
    values = {
        "staleness_mean": known(forms.staleness_mean),
        "staleness_p0": known(lambda: forms.staleness_pmf(0)),
        "staleness_max": known(forms.staleness_max),
        "clock_gap_max": known(forms.clock_gap_max),
        "s_per_update": known(forms.s_per_update),
    }
    if any(isinstance(one, Crash) for one in cfg.fault.fault_list):
        values["run_s"] = known(forms.run_s)
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
        spread = math.sqrt(p * (1 - p))  # 0 where all gradients are fresh: a single worker's
        skewness = (1 - 2 * p) / spread if spread else 0.0  # workers are drawn afresh
        return updates_needed(memory(cfg), skewness)
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
    cfg: TrainConfig,
    counted: Mapping[str, Any],
    rows: Sequence[Totals],
    stopped_by: str,
    restarts: int,
    faults: Sequence[FaultSeen] = (),
) -> dict[str, dict[str, Any]]:
    """Return predictions and measurements side by side, as `theory` of summary.json has them.

    counted: the counted part of the summary. rows: the totals at the run's marks, and at its end. restarts:
    of workers that were lost. faults: those that it saw; between a leave and a join, the formulas for the
    members that are left apply.
    """
    updates, staleness = counted["updates"], counted["staleness"]
    if not updates:
        return {}
    course = _Course(cfg, faults, updates)
    whole = {
        "staleness_max": staleness["max"],
        "clock_gap_max": counted["clock_gap_max"],
        "run_s": rows[-1].clock_s,
        **{name: y / x for name, sums in _SUMS.items() for y, x in [sums(rows[-1])]},
    }
    lost_by_itself = restarts and (
        not cfg.fault.fault_list or any(not f.asked for f in faults if f.kind == "kill")
    )
    broken_off: Verdict | None = _BROKEN_OFF.get(stopped_by) or (
        "workers were lost" if lost_by_itself else None
    )
    drawn = of_drawn_times(cfg)
    entries = {}
    for name, value in course.predicted.items():
        fixed = name in BOUNDS or (name, value) in (("staleness_mean", 0.0), ("staleness_p0", 1.0))
        estimate: Estimate | None = None
        needs: int | None = None
        never = None if fixed else broken_off
        if name == "run_s" and not never:
            if stopped_by != "budget":
                continue
            estimate, needs = _of_whole_run(cfg, rows[-1])
            never = "too short to compare" if estimate is None else None
        elif not fixed and not never:
            least = course.needed(name)
            estimate = course.steady_mean(name, rows) if updates >= least else None
            if least < math.inf:
                needs = int(least)
                never = None if estimate else "too short to compare"
            else:
                never = "never settles" if course.memory == math.inf else "too heavy a tail to compare"
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


def _of_whole_run(cfg: TrainConfig, end: Totals) -> tuple[Estimate | None, int]:
    """Return a run's whole time, its standard error from theory, and how many updates it needs.

    One run is one draw: its standard error is the deviation of Daly's model, for enough losses that
    their sum is nearly normal.
    """
    forms = _declared(cfg)
    model = completion(cfg, forms.run_s(), forms.s_per_update())
    losses, intervals = completion_time(*model) / model.mtbf_s, round(model.work_s / model.interval_s)
    needs = math.ceil(end.updates * _FEWEST_LOSSES / losses)
    if losses < _FEWEST_LOSSES:
        return None, needs
    return Estimate(end.clock_s, completion_deviation(*model), intervals), needs


def _options_of(cfg: TrainConfig, seen: Sequence[Stretch]) -> list[TrainConfig]:
    """Return the options of each stretch; none where no formula is known for one of them."""
    lost = drops_members(cfg) and takes_processes(cfg.fault.fault_list)
    if lost and min(one.members for one in seen) <= cfg.fault.min_workers:
        return []  # some may have waited instead of leaving
    if members_stay(cfg) and len(seen) == 1:
        return [cfg]
    if not undisturbed(cfg):
        return []
    return known(lambda: [with_members(cfg, one.members) for one in seen]) or []


def _fixed_alone(cfg: TrainConfig) -> dict[str, list[tuple[int, float]]]:
    """Return the bounds, and the 0 of synchronous modes: whatever becomes of the members, they hold."""
    return {
        name: [(0, value)]
        for name, value in predict(cfg).items()
        if name in BOUNDS or (name, value) == ("staleness_mean", 0.0)
    }


def predict_seen(cfg: TrainConfig, faults: Sequence[FaultSeen], updates: int) -> Mapping[str, float]:
    """Return what `predict` does, for a run whose members came and went as it saw."""
    return _Course(cfg, faults, updates).predicted


class _Course:
    """A run as the closed forms see it: stretches, each with its members, and their predictions."""

    def __init__(self, cfg: TrainConfig, faults: Sequence[FaultSeen], updates: int) -> None:
        seen = [one for one in stretches(cfg, faults) if one.after < updates]
        self._cfgs = _options_of(cfg, seen)
        fixed, each = _fixed_alone(cfg), [predict(one) for one in self._cfgs]
        by_stretch = {
            name: [(one.after, values[name]) for one, values in zip(seen, each, strict=True)]
            for name in (each[0] if each else ())
            if all(name in values for values in each)
        }
        # A union keeps the order of its left side, that of `predict`, and the values of its right side.
        self._values = {
            name: values
            for name, values in (by_stretch | fixed).items()
            if name in fixed or name not in BOUNDS
        }
        self.predicted = {name: mean_over(values, 0, updates) for name, values in self._values.items()}
        self.memory = max(map(memory, self._cfgs), default=math.inf)

    def needed(self, name: str) -> float:
        return max(needed(one, name) for one in self._cfgs)

    def steady_mean(self, name: str, rows: Sequence[Totals]) -> Estimate | None:
        """Return the mean over the steady part; each stretch counts as much as theory says it should."""
        part, values, theory = steady(rows, self.memory), self._values[name], self.predicted[name]
        sums = [_SUMS[name](row) for row in part]
        scaled = [0.0]
        for (before, (_, x)), (after, (_, x_later)) in pairwise(zip(part, sums, strict=True)):
            share = mean_over(values, before.updates, after.updates) / theory if len(values) > 1 else 1.0
            scaled.append(scaled[-1] + share * (x_later - x))
        if part and not scaled[-1]:  # theory says 0 of the steady part: what is measured there is added
            estimate = ratio_of_means(sums)
            estimate = estimate and estimate._replace(mean=theory + estimate.mean)
        else:
            estimate = ratio_of_means([(y, x) for (y, _), x in zip(sums, scaled, strict=False)])
        if not estimate:
            return None
        updates, changes = part[-1].updates - part[0].updates, len(values) - 1
        return with_ends(estimate, theory, self.memory, updates, ends=2 + changes)


def staleness_pmf(record: Record, largest: int) -> Floats | None:
    """Return P(staleness = 0 ... `largest`) where a closed form is known, shape (largest + 1,)."""
    forms = _recorded_closed_forms(record)
    return known(lambda: np.array([forms.staleness_pmf(tau) for tau in range(largest + 1)]))


def staleness_by_worker(record: Record) -> Floats | None:
    """Return each worker's mean staleness, shape (P,), where a closed form is known."""
    return known(_recorded_closed_forms(record).staleness_by_worker)


def predicted_gradients_per_s(summary: Summary) -> float | None:
    """Return the throughput (mini-batches applied per engine second) that theory predicts."""
    entry = summary.theory.get("s_per_update")
    if entry is None or not entry.theory or not summary.updates:
        return None
    return summary.gradients / summary.updates / entry.theory


def predicted_value(summary: Summary, name: str) -> float | None:
    """Return a prediction in the summary, like `staleness_mean`."""
    entry = summary.theory.get(name)
    return entry.theory if entry else None


def predicted_from_drawn_times(record: Record) -> set[str]:
    """Return the predictions of a run that know of drawn compute times only, not of those on Ray."""
    cfg = known(lambda: recorded(record.config))
    return of_drawn_times(cfg) if cfg else set()


def _recorded_closed_forms(record: Record) -> ClosedForms:
    """Return the run's closed forms: none of a user's own strategy, or where the trace of its times is not
    there any more.
    """
    cfg = known(lambda: recorded(record.config))
    return closed_forms(cfg) if cfg else ClosedForms()
