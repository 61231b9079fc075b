"""Shows the metrics of this process's runs to Prometheus: at a separate port, and to a Pushgateway."""

from __future__ import annotations

import http.client
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, push_to_gateway
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from dsgd.config import LiveConfig, TrainConfig
from dsgd.core.protocol import Engine
from dsgd.metrics import Tally
from dsgd.process.outcomes import echoed, program
from dsgd.records.reader import read_meta
from dsgd.running.predict.predictions import staleness_bound
from dsgd.show.live.prometheus import RunMetrics, RunsCollector
from dsgd.show.live.server import Response, listen, serving, url_of

_PUSH_EVERY_S = 10.0
_PUSH_TIMEOUT_S = 5.0
# A simulation in the main thread never waits and so never releases the GIL voluntarily, only every 5 ms by
# default; each read from a socket would cost the other threads that long.
_SWITCH_S = 0.0002


class Exporter:
    """Lives as long as the process: runs come and go. Use it as a context manager.

    Raises ValueError, naming the option, if the port is not available.
    """

    def __init__(self, live: LiveConfig) -> None:
        self._runs = RunsCollector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._runs)
        self._pushgateway = live.pushgateway
        self._listener = None
        if live.metrics_port is not None:
            self._listener = listen("--metrics-port", live.metrics_host, live.metrics_port)
        self._stack = ExitStack()

    @property
    def url(self) -> str | None:
        """Where the metrics are; None without a port."""
        return f"{url_of(self._listener)}/metrics" if self._listener else None

    def __enter__(self) -> Exporter:
        self._stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_S)
        if self._listener:
            self._stack.enter_context(serving(self._listener, {"/metrics": self._answer}))
        if self._pushgateway:
            pushing = _Pushing(self._pushgateway, self._push)
            pushing.start()
            self._stack.callback(pushing.finish)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, cfg: TrainConfig, record: Path, cluster: Engine, tally: Tally) -> RunMetrics:
        """Return the metrics of a run whose record is open; its run_id is the record's name."""
        meta = read_meta(record)
        info = {
            "engine": cfg.engine,
            "num_workers": str(cfg.num_workers),
            "dataset": cfg.data.name,
            "experiment": record.absolute().parent.name,
            "git_commit": meta.git_commit or "unknown",
            "version": _version(),
        }
        run = RunMetrics(cfg.mode, record.name, info, cluster, tally, staleness_bound(cfg), cfg)
        self._runs.add(run)
        return run

    def _answer(self) -> Response:
        return Response(CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry))

    def _push(self) -> None:
        assert self._pushgateway
        key = {"instance": f"{socket.gethostname()}:{os.getpid()}"}
        push_to_gateway(self._pushgateway, "dsgd", self._registry, key, timeout=_PUSH_TIMEOUT_S)


class _Pushing:
    """Pushes from a thread, so that training never waits for the gateway."""

    def __init__(self, url: str, push: Callable[[], None]) -> None:
        self._url, self._push = url, push
        self._over = threading.Event()
        self._warned = False
        # A gateway that answers nothing must not keep the process: hence a daemon.
        self._thread = threading.Thread(target=self._work, name="dsgd-push", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Push once more; wait for that no longer than a push may take."""
        self._over.set()
        self._thread.join(_PUSH_TIMEOUT_S)
        if self._thread.is_alive():
            self._warn("no answer")

    def _work(self) -> None:
        while not self._over.wait(_PUSH_EVERY_S):
            self._try()
        self._try()

    def _try(self) -> None:
        try:
            self._push()
        except (OSError, ValueError, http.client.HTTPException) as error:  # gone, refused, no such host …
            self._warn(str(getattr(error, "reason", error)) or type(error).__name__)

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            print(
                f"{program()}: warning: the Pushgateway {self._url} does not take the metrics "
                f"({echoed(reason)}); training goes on without it",
                file=sys.stderr,
            )


def _version() -> str:
    return version("dsgd-lab")
