"""Loose runs, those of no experiment, as variants: runs that differ in their seed alone are one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsgd.records.reader import Record
from dsgd.records.variants import differing, option_text, printable


def as_variants(
    records: Sequence[Record], like: str | None = None
) -> tuple[list[tuple[str, Record]], list[tuple[str, str]]]:
    """Return each record with its variant's name, seeds ascending, and what is left out with the reason.

    A variant is named by its mode and the options in which the runs of that mode differ. Of runs with the
    same options and seed the one named `like` counts, else the latest.
    """
    names = _names(records)
    same: dict[tuple[str, int], list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.path.name == like, r.meta.started_epoch_s)):
        same.setdefault((names[record.path], record.summary.seed), []).append(record)
    left_out = [
        (other.path.name, f"has the same options and seed as {counted.path.name}, which counts")
        for *others, counted in same.values()
        for other in others
    ]
    order = list(dict.fromkeys(names[record.path] for record in records))
    kept = sorted(same.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    return [(variant, repeated[-1]) for (variant, _), repeated in kept], left_out


def _names(records: Sequence[Record]) -> dict[Path, str]:
    """Name each record's variant by its mode and the options in which runs of that mode differ."""
    names = {}
    for mode in dict.fromkeys(record.summary.mode for record in records):
        same = [record for record in records if record.summary.mode == mode]
        options = differing(record.config for record in same)
        for record in same:
            values = [f"{option}={option_text(record.config.get(option))}" for option in options]
            names[record.path] = printable(" ".join([mode, *values]))
    return names


def own_target(records: Sequence[Record]) -> float | None:
    """Return the `--target-loss` that all of the runs had."""
    targets = {record.config.get("target_loss") for record in records}
    target = targets.pop()
    return float(target) if not targets and isinstance(target, int | float) else None
