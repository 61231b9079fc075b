"""How a run is observed while it goes on (docs/observing.md)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge

from dsgd.core.option_rules import FINITE, HIDDEN, Checked, Must, matches, require

PORT = Must("must be a port, 0 to 65535", lambda port: 0 <= port < 65536)
MOST_EXPORTED = 256  # workers, of some 60 series each: a scrape must be quick to write


@dataclass(frozen=True, kw_only=True)
class LogConfig(Checked):
    """What the driver logs, on standard error (docs/observing.md)."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged. info: what workers print too and, without a terminal, a line every
    ten seconds."""

    log_format: Annotated[Literal["auto", "text", "json"], HIDDEN] = "auto"
    """Text, or a JSON object a line. auto: json in a job of Ray and in a pod, text elsewhere."""

    @property
    def least_level(self) -> int:
        """The same as a number of `logging`."""
        return logging.getLevelNamesMapping()[self.log_level.upper()]


@dataclass(frozen=True, kw_only=True)
class LiveConfig(Checked):
    """How a run can be observed while it goes on (docs/observing.md)."""

    metrics_port: Annotated[int | None, PORT] = None
    """Port of the metrics for Prometheus, under /metrics; 0 takes any that is free."""

    metrics_host: Annotated[str, matches(r"\S+", "must be an address, like 0.0.0.0"), HIDDEN] = "127.0.0.1"
    """Address of that port; 0.0.0.0 admits other machines."""

    metrics_linger_s: Annotated[float, FINITE, Ge(0), HIDDEN] = 0.0
    """Wall seconds to keep serving the metrics and the live page after the run; ctrl-C ends it."""

    dashboard: Annotated[int | None, PORT] = None
    """Port of the live page in a browser on this machine (127.0.0.1); 0 takes any that is free."""

    def __post_init__(self) -> None:
        super().__post_init__()
        same = self.dashboard and self.dashboard == self.metrics_port
        require(not same, "dashboard", self.dashboard, "is --metrics-port already; choose another port")
        known = self.metrics_host == "127.0.0.1" or self.metrics_port is not None
        require(known, "metrics-host", self.metrics_host, "belongs to --metrics-port; give that too")
        served = self.metrics_port is not None or self.dashboard is not None
        rule = "keeps --metrics-port and --dashboard open; give one of them"
        require(served or not self.metrics_linger_s, "metrics-linger-s", self.metrics_linger_s, rule)

    def require_possible(self, run: Any) -> None:
        """Raise ValueError if metrics are asked for and there are too many workers for them."""
        rule = (
            f"supports at most {MOST_EXPORTED} workers (about 60 series each); use the record or --dashboard"
        )
        port = self.metrics_port
        require(port is None or run.num_workers <= MOST_EXPORTED, "metrics-port", port, rule)
