"""Everything that observes this process while it trains: log, metrics, live page."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dsgd.core.fault_seen import FaultSeen
from dsgd.core.protocol import Evaluated, Update
from dsgd.process.interruptions import Interruptions
from dsgd.running.keeper import Running, Watcher
from dsgd.show.live.logs import LogHandler, RunLog, logged
from dsgd.show.live.prometheus import RunMetrics
from dsgd.show.watching_options import LiveConfig, LogConfig

if TYPE_CHECKING:
    from dsgd.show.live.exporter import Exporter
    from dsgd.show.live.page import LivePage


class _Metrics(Watcher):
    """Exports a run's metrics; made when the run begins."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter, self._began_s = exporter, time.monotonic()
        self._metrics: RunMetrics | None = None

    def started(self, running: Running) -> None:
        assert running.path, "metrics carry the name of a record"
        cfg, path, cluster, tally = running.cfg, running.path, running.cluster, running.tally
        self._metrics = self._exporter.run(cfg, path, cluster, tally, self._began_s)

    def updated(self, update: Update) -> None:
        assert self._metrics
        self._metrics.add(update)

    def evaluated(self, evaluated: Evaluated) -> None:
        assert self._metrics
        self._metrics.evaluated(evaluated.found)

    def fault(self, fault: FaultSeen) -> None:
        assert self._metrics
        self._metrics.fault(fault)

    def ended(self) -> None:
        if self._metrics:
            self._metrics.finish()


class _Shown(Watcher):
    """Has the live page show a run's record."""

    def __init__(self, page: LivePage) -> None:
        self._page = page

    def started(self, running: Running) -> None:
        if running.path:
            self._page.show(running.path)


class Observers:
    """Made once a process, before anything else starts; its runs come and go. Use it as a context manager.

    log: how to log; None: that is the program's affair. quiet: do not print the addresses, and log only
    warnings and errors. Raises ValueError, naming the option, if a port is not available.
    """

    def __init__(self, live: LiveConfig, log: LogConfig | None = None, *, quiet: bool = False) -> None:
        self._live, self._quiet = live, quiet
        self._log: LogHandler | None = None
        self.exporter: Exporter | None = None
        self._page: LivePage | None = None
        with ExitStack() as stack:  # if the second port is not available, the first is released
            if log:
                self._log = stack.enter_context(logged(log, quiet=quiet))
            if live.metrics_port is not None:
                from dsgd.show.live.exporter import Exporter

                self.exporter = stack.enter_context(Exporter(live.metrics_host, live.metrics_port))
                self._say("metrics", self.exporter.url)
            if live.dashboard is not None:
                from dsgd.show.live.page import LivePage

                self._page = stack.enter_context(LivePage(live.dashboard))
                self._say("live", self._page.url)
            self._stack = stack.pop_all()

    def __enter__(self) -> Observers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def watchers(self) -> list[Watcher]:
        """Return those of one run."""
        return [
            *([RunLog(self._log)] if self._log else []),
            *([_Shown(self._page)] if self._page else []),
            *([_Metrics(self.exporter)] if self.exporter else []),
        ]

    def show(self, folder: Path) -> None:
        """Have the live page show a record, or a folder of records, which need not be there yet."""
        if self._page:
            self._page.show(folder)

    def linger(self, interruptions: Interruptions) -> None:
        """Keep what was shown for as long as was asked for, or until ctrl-C."""
        if self._live.metrics_linger_s:
            if not self._quiet:
                print(f"served for {self._live.metrics_linger_s:g} s more; ctrl-C ends it", flush=True)
            interruptions.wait(self._live.metrics_linger_s)

    def _say(self, what: str, url: str) -> None:
        if not self._quiet:
            print(f"{what:7} {url}", flush=True)
