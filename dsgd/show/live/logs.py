"""The log of a run, by the standard library's `logging`: on standard error, as text or as JSON lines.

Every line has the time (UTC), the level, who says it (the driver, or a worker), and the run:

    2026-11-22T21:04:07.120Z INFO    driver    ssp-4w-s0  37% · 1480 updates · loss 0.214 · …

A command installs it with `logged`. A library that is imported leaves logging to its program, so in a
notebook `logging.basicConfig(level="INFO")` shows the same records.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Update
from dsgd.core.update_counts import finite
from dsgd.running.keeper import Running, Watcher
from dsgd.show.live.run_now import gradient_norm, step_size
from dsgd.show.watching_options import LogConfig

LINE_S = 10.0
"""Seconds between two lines about a run."""

# What they log at info is about themselves: connections, fonts, credentials that were found.
_OTHERS = ("asyncio", "boto3", "botocore", "filelock", "matplotlib", "ray", "s3transfer", "urllib3")
_ON_A_CLUSTER = ("KUBERNETES_SERVICE_HOST", "RAY_JOB_CONFIG_JSON_ENV_VAR")

_RUN = logging.getLogger("dsgd.run")


class LogHandler(logging.Handler):
    """Writes records to standard error, whatever that is at the moment: a live display may have replaced it.

    as_json: a JSON object a line.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self.run_id = "-"
        """The name of the record of the run that goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self._json(record) if self._as_json else self._text(record)
        except Exception:  # as in logging's own handlers: a record that cannot be formatted ends nothing
            self.handleError(record)
            return
        # Closed, or no such characters: a log that cannot be written ends no run.
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)

    def _text(self, record: logging.LogRecord) -> str:
        head = f"{_time(record)} {record.levelname:7} {_rank(record):9} {self.run_id}  "
        return "\n".join(head + line for line in _message(record).splitlines() or [""])

    def _json(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {
                "time": _time(record),
                "level": record.levelname.lower(),
                "rank": _rank(record),
                "run": self.run_id,
                "logger": record.name,
                "message": _message(record),
                **getattr(record, "numbers", {}),
            },
            ensure_ascii=False,
        )


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _rank(record: logging.LogRecord) -> str:
    return getattr(record, "rank", "driver")


def _message(record: logging.LogRecord) -> str:
    error = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
    return "\n".join(filter(None, (record.getMessage(), error)))


@contextmanager
def logged(log: LogConfig, *, quiet: bool = False) -> Iterator[LogHandler]:
    """Write what is logged in the block as these options say. quiet: only warnings and errors."""
    root, level = logging.getLogger(), log.least_level
    before = root.level
    others = [logging.getLogger(name) for name in _OTHERS]
    levels = [other.level for other in others]
    handler = LogHandler(as_json=_as_json(log.log_format))
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING) if quiet else level)
    for other in others:
        other.setLevel(max(level, logging.WARNING))
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        for other, had in zip(others, levels, strict=True):
            other.setLevel(had)


def _as_json(log_format: str) -> bool:
    if log_format == "auto":
        return not sys.stderr.isatty() and any(name in os.environ for name in _ON_A_CLUSTER)
    return log_format == "json"


class RunLog(Watcher):
    """Logs how a run goes: where standard output is no terminal, which shows it, a line every ten seconds.

    handler: names the run in its lines.
    """

    def __init__(self, handler: LogHandler) -> None:
        self._handler = handler
        self._every_s = math.inf if sys.stdout.isatty() or not _RUN.isEnabledFor(logging.INFO) else LINE_S
        self._next_s = 0.0

    @property
    def follows_updates(self) -> bool:
        return self._every_s < math.inf

    def started(self, running: Running) -> None:
        self._running = running
        self._next_s = time.monotonic() + self._every_s
        self._samples, self._clock_s = running.tally.samples, running.tally.last_update_s
        if running.path:
            self._handler.run_id = running.path.name
        cfg = running.cfg
        _RUN.debug("started: %s on %s, %d workers", cfg.mode, cfg.engine, cfg.num_workers)

    def updated(self, update: Update) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._say(update)

    def fault(self, fault: FaultSeen) -> None:
        level = logging.INFO if fault.asked else logging.WARNING
        _RUN.log(level, "fault: %s: %s", fault.kind, fault.text, extra={"numbers": {"t_s": fault.t_s}})

    def ended(self) -> None:
        _RUN.debug("ended after %d updates", self._running.tally.updates)

    def _say(self, update: Update) -> None:
        running = self._running
        cfg, tally = running.cfg, running.tally
        elapsed_s = tally.last_update_s - self._clock_s
        numbers = {
            "done": min(1.0, tally.gradients / cfg.budget),
            "updates": tally.updates,
            "loss": finite(tally.last_loss),
            "samples_per_s": (tally.samples - self._samples) / elapsed_s if elapsed_s > 0 else None,
            "lr": step_size(cfg, tally),
            "gradient_norm": finite(gradient_norm(cfg, update)),
            "staleness": tally.staleness_mean,
            "busy": len(running.cluster.in_flight),
            "workers": len(running.cluster.workers),
        }
        self._samples, self._clock_s = tally.samples, tally.last_update_s
        _RUN.info("%s", in_words(numbers), extra={"numbers": numbers})


def in_words(numbers: Mapping[str, Any]) -> str:
    """Return the numbers of a line in words.

    >>> in_words({"done": 0.25, "updates": 2, "loss": 0.5, "samples_per_s": 1234.5, "lr": 0.1,
    ...           "gradient_norm": None, "staleness": 1.0, "busy": 2, "workers": 2})
    '25% · 2 updates · loss 0.5 · 1234 samples/s · lr 0.1 · gradient norm – · staleness 1.00 · 2/2 busy'
    """
    shown = {name: "–" if x is None else f"{x:.4g}" for name, x in numbers.items()}
    return (
        f"{numbers['done']:.0%} · {numbers['updates']} updates · loss {shown['loss']} · "
        f"{shown['samples_per_s']} samples/s · lr {shown['lr']} · gradient norm {shown['gradient_norm']} · "
        f"staleness {numbers['staleness']:.2f} · {numbers['busy']}/{numbers['workers']} busy"
    )
