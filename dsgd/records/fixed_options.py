"""The options that a run keeps when it goes on, and those that may change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dsgd.config import TrainConfig
from dsgd.core.old_options import recorded, today
from dsgd.core.option_rules import option_fields, options
from dsgd.core.option_texts import with_restarts

MAY_CHANGE = (
    "steps", "max_seconds", "target_loss",
    "checkpoint_every", "keep", "restarts", "start_timeout_s",
    "ranks_per_worker", "parallel", "recompute_activations",
    "metrics_port", "metrics_host", "metrics_linger_s", "dashboard",
    "note", "trace_last", "quiet", "profile", "log_level", "log_format", "upload_every",
)  # fmt: skip
"""The options that may change when a run goes on."""

GONE = frozenset({"pushgateway"})
"""Options that older versions had, and that changed nothing in a run: they are left out of what is read."""

_WHERE = ("out", "run_name")


def options_digest(given: Mapping[str, Any]) -> str:
    """Return the SHA-256 of those of a run's options that may not change when it goes on."""
    fixed = {name: value for name, value in given.items() if today(name) not in (*MAY_CHANGE, *_WHERE)}
    if "schedule" in fixed:  # a restart comes with more steps, which may change
        fixed["schedule"] = with_restarts(str(fixed["schedule"]), ())
    return hashlib.sha256(json.dumps(fixed, sort_keys=True, default=str).encode()).hexdigest()


def options_written(cfg: TrainConfig, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what config.yaml has of a run that goes on.

    before: what it had. What has not changed stays as an older version wrote it, and what that did not have
    is left out at its default: so the digest stays what it was.
    """
    had = {**_defaults(cfg), **recorded(before)}
    new = {name: value for name, value in options(cfg).items() if value != had.get(name, value)}
    return {name: value for name, value in before.items() if name in new or today(name) not in new} | new


def changed(was: Mapping[str, Any], cfg: TrainConfig) -> tuple[str, Any] | None:
    """Return the first option that differs from what the run had, and may not; and what that was."""
    had, fixed = {**_defaults(cfg), **was}, set(options(cfg)).difference(MAY_CHANGE, _WHERE)
    differing = [name for name, value in options(cfg).items() if name in fixed and had[name] != value]
    return next(((name, had[name]) for name in differing), None)


def _defaults(cfg: TrainConfig) -> dict[str, Any]:
    return {name: option.default for name, option in option_fields(type(cfg)).items()}
