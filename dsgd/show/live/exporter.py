"""Shows the metrics of this process's runs, and its health: at a separate port."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from dsgd.config import TrainConfig
from dsgd.core.protocol import Engine
from dsgd.metrics import Tally
from dsgd.records.reader import read_meta
from dsgd.running.predict.predictions import staleness_bound
from dsgd.show.live.prometheus import RunMetrics, RunsCollector
from dsgd.show.live.server import Response, listen, serving, url_of

# A simulation in the main thread never waits and so never releases the GIL voluntarily, only every 5 ms by
# default; each read from a socket would cost the other threads that long.
_SWITCH_S = 0.0002


class Exporter:
    """Lives as long as the process: runs come and go. Use it as a context manager.

    Raises ValueError, naming the option, if the port is not available.
    """

    def __init__(self, host: str, port: int) -> None:
        self._runs = RunsCollector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._runs)
        self._listener = listen("--metrics-port", host, port)
        self._stack = ExitStack()

    @property
    def url(self) -> str:
        """Where the metrics are."""
        return f"{url_of(self._listener)}/metrics"

    def __enter__(self) -> Exporter:
        self._stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_S)
        routes = {"/metrics": self._answer, "/healthz": _alive, "/readyz": self._ready}
        self._stack.enter_context(serving(self._listener, routes))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(
        self, cfg: TrainConfig, record: Path, cluster: Engine, tally: Tally, began_s: float
    ) -> RunMetrics:
        """Return the metrics of a run whose record is open; its run_id is the record's name.

        began_s: seconds of `time.monotonic` when its workers were asked for; by now they are ready.
        """
        meta = read_meta(record)
        info = {
            "engine": cfg.engine,
            "num_workers": str(cfg.num_workers),
            "dataset": cfg.data.name,
            "experiment": record.absolute().parent.name,
            "git_commit": meta.git_commit or "unknown",
            "version": _version(),
        }
        bound = staleness_bound(cfg)
        run = RunMetrics(cfg.mode, record.name, info, cluster, tally, bound, cfg, began_s)
        self._runs.add(run)
        return run

    def _answer(self) -> Response:
        return Response(CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry))

    def _ready(self) -> Response:
        """Say whether a run has its workers; before the first, between two and after the last, none has."""
        if self._runs.active:
            return Response("text/plain", b"ready\n")
        return Response("text/plain", b"no run has its workers\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


def _alive() -> Response:
    return Response("text/plain", b"alive\n")


def _version() -> str:
    return version("dsgd-lab")
