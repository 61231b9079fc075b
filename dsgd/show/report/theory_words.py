"""How a report compares runs with theory: over the seeds of a variant, with the noise of the measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from dsgd.records.reader import Record
from dsgd.records.schema import Compared
from dsgd.running.predict.predictions import predicted_from_drawn_times
from dsgd.running.predict.verdicts import BOUNDS, COMPARED, in_words, verdict_on
from dsgd.show.report.statistics import median_interval
from dsgd.show.report.written_numbers import listed, number, percent, plural
from dsgd.theory.uncertainty import Estimate, pooled


class OverSeeds(NamedTuple):
    """What the seeds of a variant measured of a quantity that theory predicts."""

    theory: float
    measured: float
    """Their mean; the largest for bounds, the median in records that have no standard errors."""
    standard_error: float | None
    """Of that mean; None where there is none."""
    words: str
    """Whether the two agree, or why they are not compared; empty in old records."""

    @property
    def with_noise(self) -> str:
        """The measurement with its standard error."""
        noise = f" ± {number(self.standard_error, 2)}" if self.standard_error else ""
        return f"{number(self.measured, 4)}{noise}"

    @property
    def difference(self) -> str:
        """How far it is from theory, in per cent."""
        if not self.theory:
            return "–"
        return f"{100 * (self.measured - self.theory) / self.theory:+.1f} %".replace("-", "−")


def over_seeds(records: Sequence[Record], name: str) -> OverSeeds | None:
    """Return a variant's measurement beside its theory; None where no form is known.

    The runs are independent, so the standard errors that each of them has by itself give that of their mean:
    five seeds are too few to judge by their spread. Runs that are too short are left out if others are not.
    """
    entries = [e for r in records if (e := r.summary.theory.get(name)) and e.measured is not None]
    if not entries:
        return None
    theory, measured = entries[0].theory, [e.measured for e in entries if e.measured is not None]
    if name in BOUNDS:
        kept = max(measured) <= theory
        return OverSeeds(theory, max(measured), None, "kept" if kept else "BROKEN")
    estimates = [_estimate(entry) for entry in entries if entry.standard_error is not None]
    if estimates:
        mean = pooled(estimates)
        verdict = verdict_on(theory, mean, of_drawn_times=name in predicted_from_drawn_times(records[0]))
        return OverSeeds(theory, mean.mean, mean.standard_error, in_words(verdict, theory, mean))
    why = in_words(entries[0].verdict, theory, _estimate(entries[0]))
    return OverSeeds(theory, median_interval(measured).centre, None, why)


def _estimate(entry: Compared) -> Estimate:
    measured = math.nan if entry.measured is None else entry.measured
    return Estimate(measured, entry.standard_error or 0.0, entry.batches)


def beside_theory(records: Sequence[Record], unit: str) -> str:
    """Return the sentence that says what the workers of one variant did, and whether theory agrees."""
    idle = median_interval([record.summary.idle_share for record in records]).centre
    parts = [f"workers idle {percent(idle)} of the time"]
    for name, phrase in (
        ("staleness_mean", "gradients are {} updates stale on average"),
        ("s_per_update", f"an update takes {{}} {unit}"),
    ):
        found = over_seeds(records, name)
        if found:
            said = found.words or found.difference
            parts.append(f"{phrase.format(found.with_noise)} (theory: {number(found.theory)}, {said})")
        elif measured := [x for r in records if (x := _measured(r, name)) is not None]:
            parts.append(phrase.format(number(median_interval(measured).centre)))
    text = listed(parts)
    return f"{text[0].upper()}{text[1:]}."


def throughput_beside_theory(records: Sequence[Record]) -> str:
    """Return in how many runs theory's time per update, and so the throughput, is what was measured; empty
    where no formula is known.
    """
    entries = [entry for record in records if (entry := record.summary.theory.get("s_per_update"))]
    compared = [entry.verdict for entry in entries if entry.verdict in COMPARED]
    if not compared:
        return (
            "the runs are too short, or their times too irregular, to compare with theory" if entries else ""
        )
    n, differ = len(compared), sum(verdict.startswith("differs") for verdict in compared)
    of = f"of {plural(len(records), 'run')}" + (
        f" ({n} of which can be compared)" if n < len(records) else ""
    )
    if differ:
        return f"throughput differs from theory by more than chance does in {differ} {of}"
    return f"throughput agrees with theory, within its noise, in {n} {of}"


def _measured(record: Record, name: str) -> float | None:
    summary = record.summary
    if name == "staleness_mean":
        return summary.staleness.mean
    return summary.clock_s / summary.updates if summary.updates else None
