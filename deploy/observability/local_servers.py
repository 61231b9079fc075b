"""Prometheus and Alertmanager as processes of this machine, on 127.0.0.1, configured by this folder."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from deploy.local_processes import end
from dsgd.process.environment import of_server

FOLDER = Path(__file__).parent
PROMETHEUS_PORT, ALERTMANAGER_PORT, RECEIVER_PORT = 9090, 9093, 9095  # as in the files of this folder
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


class NotStarted(Exception):
    """A program is missing, or did not start: one line with the remedy."""


def prometheus_config(
    *, alertmanager_port: int = ALERTMANAGER_PORT, targets: Sequence[str] | None = None
) -> str:
    """Return prometheus.yaml for use in any folder; other `targets` (host:port) may be scraped instead."""
    text = (FOLDER / "prometheus.yaml").read_text()
    text = text.replace("rules/*.yaml", f"{FOLDER}/rules/*.yaml")
    text = text.replace(f":{ALERTMANAGER_PORT}", f":{alertmanager_port}")
    if targets is None:
        return text
    return text.partition("      - targets:\n")[0] + f"      - targets: {json.dumps(list(targets))}\n"


def alertmanager_config(*, receiver_port: int = RECEIVER_PORT) -> str:
    """Return alertmanager.yaml, with the receiver at another port."""
    return (FOLDER / "alertmanager.yaml").read_text().replace(f":{RECEIVER_PORT}", f":{receiver_port}")


@contextmanager
def prometheus(config: str, folder: Path, port: int) -> Iterator[str]:
    """Run Prometheus, its files in `folder`; yield its URL once it is ready. Raises NotStarted."""
    (folder / "prometheus.yaml").write_text(config)
    arguments = [
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with _running(["prometheus"], arguments, folder / "prometheus.log", port) as url:
        yield url


@contextmanager
def alertmanager(config: str, folder: Path, port: int) -> Iterator[str]:
    """Run Alertmanager, its files in `folder`; yield its URL once it is ready. Raises NotStarted."""
    (folder / "alertmanager.yaml").write_text(config)
    arguments = [
        f"--config.file={folder / 'alertmanager.yaml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",  # alone; otherwise it opens a port to other machines
    ]
    names = ["prometheus-alertmanager", "alertmanager"]  # Debian's, and upstream's
    with _running(names, arguments, folder / "alertmanager.log", port) as url:
        yield url


@contextmanager
def receiver(take: Callable[[dict[str, Any]], None], port: int) -> Iterator[None]:
    """Pass each message that Alertmanager posts to `port` to `take`, in another thread."""

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Webhook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def _running(names: Sequence[str], arguments: Sequence[str], log: Path, port: int) -> Iterator[str]:
    program = next(filter(None, map(shutil.which, names)), None)
    if not program:
        raise NotStarted(f"{names[0]} is not installed; on Debian: apt-get install {names[0]}")
    _require_free(port, names[0])
    url = f"http://127.0.0.1:{port}"
    with log.open("w", encoding="utf-8") as stream:
        # In a new session, so that ctrl-C reaches it only through this process, in order.
        process = subprocess.Popen(
            [program, *arguments], stdout=stream, stderr=stream, env=of_server(), start_new_session=True
        )
    try:
        _wait_until_ready(process, url, names[0], log)
        yield url
    finally:
        end(process, _STOP_TIMEOUT_S)


def _require_free(port: int, name: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise NotStarted(f"port {port} for {name}: {error.strerror}; choose another port") from None


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, name: str, log: Path) -> None:
    give_up = time.monotonic() + _START_TIMEOUT_S
    here = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to this machine
    while process.poll() is None and time.monotonic() < give_up:
        try:
            with here.open(f"{url}/-/ready", timeout=1.0):
                return
        except OSError:  # not yet listening, or not yet ready
            time.sleep(0.05)
    said = log.read_text(encoding="utf-8").strip().splitlines()
    raise NotStarted(f"{name} did not start: {said[-1] if said else 'it said nothing'}")
