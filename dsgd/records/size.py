"""How large a record will be, said before it is written."""

from __future__ import annotations

import math

from dsgd.config import TrainConfig

LARGE_BYTES = 100_000_000
"""From this size on, a record is announced."""

_TASK_BYTES, _UPDATE_BYTES = 155, 80  # in updates.jsonl; an update's without its tasks


def estimated_bytes(cfg: TrainConfig) -> int:
    """Return about how many bytes updates.jsonl will have at most, when the whole budget is spent.

    That is with an update for each task, as without a barrier; with one it is up to a third less.
    """
    every = cfg.output.record_every
    if not every:
        return 0
    tasks = cfg.budget / getattr(cfg, "local_steps", 1)
    return round(tasks * (_TASK_BYTES + _UPDATE_BYTES) / every)


def announcement(cfg: TrainConfig) -> str | None:
    """Return a line that announces a large record, and how to make it smaller; None for others."""
    size = estimated_bytes(cfg)
    if size < LARGE_BYTES:
        return None
    every = cfg.output.record_every * math.ceil(size / LARGE_BYTES)
    digit = 10 ** (len(str(every)) - 1)
    rounded = math.ceil(every / digit) * digit
    return (
        f"record  up to {_words(size)} will be written; --record every:{rounded} keeps "
        f"{_words(size * cfg.output.record_every / rounded)}, --record none a few kB"
    )


def _words(size: float) -> str:
    """Return a size in MB or GB.

    >>> _words(2.4e8), _words(1.2e10)
    ('240 MB', '12 GB')
    """
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{float(f'{size / unit:.2g}'):g} {name}"
    return "1 MB"
