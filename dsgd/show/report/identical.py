"""Variants that are the same runs under other names."""

from __future__ import annotations

from dsgd.records.reader import Record
from dsgd.show.report.frames import Frames


def identical(frames: Frames) -> list[list[str]]:
    """Return the variants whose runs are the same with every seed: same weights, times and evaluations."""
    classes: dict[object, list[str]] = {}
    for variant in frames.variants:
        key = tuple(_of_a_run(record) for record in frames.of(variant))
        classes.setdefault(key, []).append(variant)
    return [variants for variants in classes.values() if len(variants) > 1]


def _of_a_run(record: Record) -> tuple[object, ...]:
    summary = record.summary
    evaluations = tuple((e.version, e.t_s, e.loss) for e in record.evals)
    counts = tuple(sorted(summary.staleness.counts.items()))
    return summary.seed, summary.weights_sha256, summary.clock_s, summary.gradients, counts, evaluations
