"""Which options tell runs apart, and how their values are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dsgd.config import DataConfig, LiveConfig, LogConfig, OutputConfig, option_fields
from dsgd.models.workloads import names, options_of
from dsgd.strategies import defaults

NOT_COMPARED = {
    *option_fields(OutputConfig),
    *option_fields(LiveConfig),
    *option_fields(LogConfig),
    "seed",
    "max_restarts",
    "start_timeout_s",
}
"""Options that do not define a variant."""


def of_workload(config: Mapping[str, Any]) -> list[str]:
    """Return the options of a recorded run that its workload adds to those that describe data."""
    workload = config.get("workload")
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
    """Return text without control characters, which XML cannot hold."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
