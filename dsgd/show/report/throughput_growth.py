"""The answer where only the number of workers differs: how throughput grows with it."""

from __future__ import annotations

from collections.abc import Sequence

from dsgd.show.report.frames import Frames
from dsgd.show.report.layout import alone
from dsgd.show.report.page_parts import Answer
from dsgd.show.report.panels.scaling import Series
from dsgd.show.report.questions import questions
from dsgd.show.report.statistics import median_interval
from dsgd.show.report.theory_words import throughput_beside_theory
from dsgd.show.report.winners import only_group
from dsgd.show.report.written_numbers import listed, number, plural, with_interval


def of_growth(frames: Frames, found: Sequence[Series]) -> Answer:
    """Return how throughput grows with workers, and the result."""
    unit, asked = frames.seconds, questions(frames, alone(frames.variants))
    ranges = {(one.variants[0][0], one.variants[-1][0]) for one in found}
    growth = [_growth(frames, one, alike=len(ranges) == 1) for one in found]
    workers = ""
    if len(ranges) == 1:
        few_workers, many_workers = ranges.pop()
        workers = f" from {few_workers:,} to {many_workers:,} workers"
    most = max(len(frames.of(variant)) for variant in frames.variants)
    level = f"{round(100 * median_interval(list(range(most))).level)}\N{NO-BREAK SPACE}%"
    basis = (
        f"Medians of {plural(most, 'seed')} with {level} intervals."
        if most > 1
        else "There is one seed per variant, so no interval can be given."
    )
    if len(asked) > 1:
        second = only_group(asked[0])
    else:
        fastest, rate = next(iter(asked[0].ranking("").items()))
        second = f"The highest is {number(rate.centre)} gradients per {unit}, by {fastest}"
        beside = throughput_beside_theory([run.record for run in frames.records])
        second += f"; {beside}." if beside else "."
    return Answer(headline=f"Throughput grows {listed(growth)}{workers}.", points=[second], basis=basis)


def _growth(frames: Frames, one: Series, *, alike: bool) -> str:
    """Return how many times the throughput of the fewest workers that of the most is.

    alike: all series go from as few to as many workers.
    """
    (few_workers, start), *_, (many_workers, end) = one.variants
    before, after = ({r.summary.seed: r.summary.gradients_per_s for r in frames.of(v)} for v in (start, end))
    times = [y / x for seed, x in before.items() if x and (y := after.get(seed))]
    if not times:
        return f"for {one.name} by an unknown factor (no seed in common)"
    text = f"{with_interval(median_interval(times))} times for {one.name}"
    return text if alike else f"{text} ({few_workers:,} to {many_workers:,} workers)"
