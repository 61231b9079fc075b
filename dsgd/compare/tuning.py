"""Chooses, for each variant, the best of the options that were tried.

A comparison under one step size compares how well that step size suits each variant. So each gets its own,
with which its loss is lowest at the end of the same budget, on seeds that the comparison does not use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from dsgd.compare.experiment import Experiment, PlannedRun, Variant, described
from dsgd.compare.experiment_file import with_each
from dsgd.compare.measured_times import timed
from dsgd.core.option_rules import option_fields
from dsgd.process.outcomes import UsageError
from dsgd.records.reader import read_summary
from dsgd.show.report.experiment_yaml import Tried, Tuned

_MOST_STEPS = 10  # step sizes for one variant


class Selection(NamedTuple):
    """What was chosen for a variant."""

    best: Variant
    tuned: Tuned

    def __str__(self) -> str:
        variant, chosen = self.tuned.variant, self.tuned.chosen
        text = f"{variant}: the best is {' '.join(described(*item) for item in chosen.items())}"
        for option in self.tuned.at_the_edge:
            text += (
                f"; {option} {chosen[option]} is at the edge of what was tried; a better value may lie beyond"
            )
        return text


def choose(experiment: Experiment) -> list[Selection]:
    """Return the choice for each variant of an experiment whose tuning runs have all ended.

    Raises UsageError if everything that was tried for a variant diverged.
    """
    if not experiment.tuning:
        return []
    losses: dict[str, dict[int, float]] = {}
    for run in experiment.tuning_runs():
        losses.setdefault(run.variant, {})[run.cfg.seed] = _loss(run)
    return [
        _choose(name, tried, [losses[v.name] for v in tried], experiment.tuning.values[name])
        for name, tried in experiment.tuning.tried.items()
    ]


def widened(experiment: Experiment, choices: Sequence[Selection]) -> Experiment | None:
    """Return the experiment with step sizes three times beyond those of `tune: auto` for each variant whose
    choice is the smallest or largest; None where there is nothing more to try.
    """
    tuning = experiment.tuning
    assert tuning
    values, tried = dict(tuning.values), dict(tuning.tried)
    for choice in choices:
        name, chosen = choice.tuned.variant, choice.tuned.chosen
        if tuning.auto and "lr" in choice.tuned.at_the_edge and len(values[name]["lr"]) < _MOST_STEPS:
            times = 3 if chosen["lr"] == max(values[name]["lr"]) else 1 / 3
            beyond = float(f"{chosen['lr'] * times:.2g}")
            variant = next(v for v in experiment.variants if v.name == name)
            more = with_each(variant, {**values[name], "lr": [beyond]}, experiment.base, experiment.name)
            values[name] = {**values[name], "lr": [*values[name]["lr"], beyond]}
            tried[name] = [*tried[name], *(timed(v, variant.measured_s) for v in more)]
    if values == tuning.values:
        return None
    return replace(experiment, tuning=replace(tuning, values=values, tried=tried))


def _choose(
    name: str,
    tried: Sequence[Variant],
    losses: Sequence[Mapping[int, float]],
    values: Mapping[str, Sequence[Any]],
) -> Selection:
    loss, at = min((median(by_seed.values()), at) for at, by_seed in enumerate(losses))
    points = [{option: variant.own[option] for option in values} for variant in tried]
    if not math.isfinite(loss):
        raise UsageError(
            f"tune: variant {name} diverged with every value tried ({', '.join(values)}); "
            "try smaller step sizes"
        )
    chosen = points[at]
    edges = [o for o, all_ in values.items() if _at_the_edge(chosen[o], all_) and not _ends(o, tried[at])]
    all_tried = [
        Tried(
            options=point,
            median_loss=_finite(median(by_seed.values())),
            by_seed={seed: _finite(loss) for seed, loss in by_seed.items()},
        )
        for point, by_seed in zip(points, losses, strict=True)
    ]
    return Selection(tried[at], Tuned(variant=name, chosen=chosen, at_the_edge=edges, tried=all_tried))


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _at_the_edge(value: Any, values: Sequence[Any]) -> bool:
    try:
        numbers = [float(v) for v in values]
    except (TypeError, ValueError):  # names have no order
        return False
    return len(numbers) > 1 and float(value) in (min(numbers), max(numbers))


def _ends(option: str, variant: Variant) -> bool:
    """Return whether a variant's value is the lowest or highest that the option may have: 0 of a momentum."""
    bounds = option_fields(type(variant.cfg))[option].rules
    return variant.own[option] in [getattr(bound, "ge", getattr(bound, "le", None)) for bound in bounds]


def _loss(run: PlannedRun) -> float:
    summary = read_summary(run.path)
    loss = summary.eval.loss
    return math.inf if summary.stopped_by == "diverged" or loss is None else loss
