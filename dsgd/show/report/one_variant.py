"""The answer of a single variant: how far it got, and what its workers did."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsgd.core.option_texts import StepSchedule
from dsgd.records.fault_words import all_of_them
from dsgd.records.reader import Record
from dsgd.show.report.frames import Frames
from dsgd.show.report.measures import scale_of
from dsgd.show.report.questions import until
from dsgd.show.report.statistics import Interval, median_interval
from dsgd.show.report.theory_words import beside_theory
from dsgd.show.report.written_numbers import Answer, confidence, number, plural


def of_one_variant(frames: Frames) -> Answer:
    """Return how far a single variant got, and what its workers did, compared with theory."""
    unit, records = frames.seconds, [run.record for run in frames.records]
    return Answer(
        headline=_how_it_went(records, frames.target_loss, unit),
        points=[*_faults(records, unit), *_restarts(records), beside_theory(records, unit)],
    )


def _restarts(records: Sequence[Record]) -> list[str]:
    """Return where the step size began again: a curve has a bend there."""
    steps = StepSchedule.parse(str(records[0].config.get("schedule", "constant"))).restarts
    at = " and ".join(map(str, steps))
    return [f"The step size fell to 0 and began again at step {at}."] if steps else []


def _faults(records: Sequence[Record], unit: str) -> list[str]:
    """Return the faults of the first run with any, in a sentence."""
    struck = [record for record in records if record.summary.faults]
    if not struck:
        return []
    summary = struck[0].summary
    found = all_of_them(summary.faults, summary.recovery_s.p50, summary.repeated, summary.wasted.faults, unit)
    of = "" if len(records) == 1 else f" of seed {summary.seed}"
    return [f"Faults{of}: {found}."]


def _how_it_went(records: Sequence[Record], target: float | None, unit: str) -> str:
    one = records[0].summary
    if len(records) == 1 and one.stopped_by in ("failed", "diverged", "interrupted"):
        verb = "was interrupted" if one.stopped_by == "interrupted" else one.stopped_by
        error = f": {one.error}" if one.error else ""
        return f"The run {verb} after {plural(one.updates, 'update')}{error}."
    gradients = median_interval([record.summary.gradients for record in records]).centre
    scale = scale_of(records)
    losses = [loss for record in records if (loss := scale.of(record.summary.eval)) is not None]
    if target is not None and losses:
        times = median_interval([until(record, target, lambda e: e.t_s) for record in records])
        if math.isinf(times.centre):
            return (
                f"Loss {target:g} is not reached within {number(gradients, 6)} gradients ({_detail(times)})."
            )
        return f"Loss {target:g} is reached after {number(times.centre)} {unit} ({_detail(times)})."
    if losses:
        at_end = median_interval(losses)
        clock_s = median_interval([record.summary.clock_s for record in records]).centre
        after = f"after {number(gradients, 6)} gradients and {number(clock_s)} {unit}"
        if scale.in_bits:
            return f"Held-out text takes {number(at_end.centre)} bits a byte {after} ({_detail(at_end)})."
        return f"The loss on held-out data is {number(at_end.centre)} {after} ({_detail(at_end)})."
    rates = [rate for record in records if (rate := record.summary.gradients_per_s) is not None]
    throughput = median_interval(rates or [0.0])
    return f"The workers compute {number(throughput.centre)} gradients per {unit} ({_detail(throughput)})."


def _detail(interval: Interval) -> str:
    if interval.n == 1:
        return "one seed, so no interval can be given"
    return f"median of {interval.n} seeds, {confidence(interval)}"
