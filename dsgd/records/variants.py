"""Which options tell runs apart, and how their values are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dsgd.config import DataConfig
from dsgd.core.option_rules import option_fields
from dsgd.models.workloads import module_of, names, options_of
from dsgd.process.outcomes import escaped
from dsgd.records.output_options import OutputConfig
from dsgd.records.reader import Record
from dsgd.show.watching_options import LiveConfig, LogConfig
from dsgd.strategies import defaults

NOT_COMPARED = {
    *option_fields(OutputConfig),
    *option_fields(LiveConfig),
    *option_fields(LogConfig),
    "seed",
    "restarts",
    "start_timeout_s",
}
"""Options that do not define a variant."""


def of_workload(config: Mapping[str, Any]) -> list[str]:
    """Return the options of a recorded run that its workload adds to those that describe data."""
    workload = module_of(config)
    if workload in names():
        own = options_of(workload)
        return [] if own is None else [o for o in option_fields(own) if o not in option_fields(DataConfig)]
    if workload is None or config.get("strategy_file") is not None:  # whose they are is not in the record
        return []
    known = defaults(config)
    return [option for option in config if option not in known]


def differing(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the options that have more than one value, in the order of config.yaml."""
    values: dict[str, set[str]] = {}
    for config in configs:
        for option, value in config.items():
            if option not in NOT_COMPARED:
                values.setdefault(option, set()).add(option_text(value))
    return [option for option, texts in values.items() if len(texts) > 1]


def option_text(value: Any) -> str:
    """Return an option's value as the command line has it.

    >>> option_text(0.5), option_text(4.0), option_text(None), option_text(True)
    ('0.5', '4', 'none', 'true')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def printable(text: str) -> str:
    r"""Return text in one line without control characters, which XML cannot hold; nothing is left out.

    >>> print(printable("red \x1b[31m"), len(printable("x" * 5_000)))
    red \x1b[31m 5000
    """
    return escaped(" ".join(text.split()))


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
        (other.path.name, f"has the same options and seed as {counted.path.name}; only that one counts")
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
