"""The live page: one HTML page that shows runs while they go on, from the records that they write.

`main.py watch` serves it, and so does a run with `--dashboard`, from a separate process: whatever browsers
do, it cannot slow the run down. It reads the record's files (docs/record.md) as they grow, at low priority,
and never talks to the run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsgd.process.environment import of_python
from dsgd.show.live import server
from dsgd.show.live.followed_folder import FollowedFolder
from dsgd.show.live.followed_run import FollowedRun
from dsgd.show.live.server import Response
from dsgd.show.report.colours import on_dark, shades
from dsgd.show.report.style import DASHES, styles

_LOOK_EVERY_S = 0.5
_PING_EVERY = 20  # looks: how often a stream with nothing to send checks that its client is there
_LAST_LINES_S = 2.5
_FAREWELL_S = 2.0  # for sending the browsers the end
_STOP_S = 5.0
_SHADES = 3  # of a mode; more of its runs differ by dashes
_HEADERS = (
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy: no-referrer",
)


class LivePage:
    """The page's process, as seen by the one that trains. Use it as a context manager.

    port: of 127.0.0.1; 0 takes any. The port is taken at once, and the process starts with `show`. It ends
    with this one, however this one ends. Raises ValueError if the port is not available.
    """

    def __init__(self, port: int) -> None:
        self._listener = server.listen("--dashboard", "127.0.0.1", port)
        self.url = server.url_of(self._listener)
        self._process: subprocess.Popen[bytes] | None = None

    def show(self, folder: Path) -> None:
        """Show a record, or a folder of records, which need not be there yet; the first call counts."""
        if self._process:
            return
        number = self._listener.fileno()
        command = [sys.executable, "-P", "-m", "dsgd.show.live.page", str(folder)]
        self._process = subprocess.Popen(
            [*command, "--listener", str(number), "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=of_python(),
            pass_fds=[number],
            process_group=0,  # ctrl-C is for the run; the page shows how it ends
        )
        self._listener.close()

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextmanager
def serve(folder: Path, port: int) -> Iterator[str]:
    """Show a folder's records, from a separate process, until the block ends; yield the page's address.

    Raises ValueError if the port is not available.
    """
    with LivePage(port) as page:
        page.show(folder)
        yield page.url


class _Feed:
    """What the browsers are sent: the runs as they are, and every change from then on."""

    def __init__(self, folder: Path) -> None:
        self._folder = FollowedFolder(folder)
        self._over = asyncio.Event()  # no need to read on
        self._finished = False  # nothing more will be read
        self._streams = 0
        self._views: dict[tuple[str, int], tuple[int, bytes]] = {}

    async def follow(self, parent: int | None) -> None:
        """Read on until `finish`, or until the process `parent` is gone."""
        while not self._over.is_set() and (parent is None or os.getppid() == parent):
            if not await self._read():
                await self._pause()
        # The last lines of a run that has ended; a folder that is only looked at is left at once.
        until_s = time.monotonic() + (_LAST_LINES_S if parent else 0)
        while time.monotonic() < until_s and await self._read():
            pass
        self._finished = True
        until_s = time.monotonic() + _FAREWELL_S
        while self._streams and time.monotonic() < until_s:
            await asyncio.sleep(0.05)

    async def _read(self) -> bool:
        rest = False
        for more in self._folder.read():
            rest |= more
            await asyncio.sleep(0)  # the browsers' turn
        self._views = {key: view for key, view in self._views.items() if key in self._folder.runs}
        return rest

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), _LOOK_EVERY_S)

    def finish(self) -> None:
        self._over.set()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events: `clock`, `page`, a `run` for each that has changed, `gone`, and `end`."""
        self._streams += 1
        try:
            sent: dict[tuple[str, int], int] = {}
            page, looks = b"", 0
            yield _event("clock", {"now_s": time.time()})  # noqa: TID251 - the browser's may differ
            while True:
                over, runs = self._finished, self._folder.runs
                about = _event("page", self._about())
                if about != page:
                    page = about
                    yield page
                for key in sent.keys() - runs.keys():
                    del sent[key]
                    yield _event("gone", {"id": _id(key)})
                for key, run in runs.items():
                    if sent.get(key) != run.revision:
                        sent[key] = run.revision
                        yield self._view(key, run)
                if over:
                    yield _event("end", {})
                    return
                looks += 1
                if looks % _PING_EVERY == 0:
                    yield b":\n\n"
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            self._streams -= 1

    def _about(self) -> dict[str, Any]:
        """Return what concerns all runs together; a mode has the hue that reports give it."""
        folder = self._folder
        looks = styles({run.mode: run.mode for run in folder.runs.values()})
        return {
            "title": folder.title,
            "planned": folder.planned,
            "older": folder.older,
            "unreadable": folder.unreadable,
            "shades": {
                mode: [(colour, on_dark(colour)) for colour in shades(look.colour, _SHADES)]
                for mode, look in looks.items()
            },
            "dashes": ["", *(" ".join(str(2 * x) for x in lengths) for _, lengths in DASHES[1:])],
        }

    def _view(self, key: tuple[str, int], run: FollowedRun) -> bytes:
        """Return the event that describes a run, made once for all listeners."""
        revision, event = self._views.get(key, (0, b""))
        if revision != run.revision:
            event = _event("run", {"id": _id(key), **run.view()})
            self._views[key] = run.revision, event
        return event


def _id(key: tuple[str, int]) -> str:
    name, inode = key
    return f"{name}/{inode}"


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


async def _work(folder: Path, listener: socket.socket, parent: int | None) -> None:
    feed = _Feed(folder)
    html = Path(__file__).with_name("page.html").read_bytes()
    routes = {
        "/": lambda: Response("text/html; charset=utf-8", html, _HEADERS),
        "/events": lambda: Response("text/event-stream", feed.stream()),
    }
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, feed.finish)
    loop.add_signal_handler(signal.SIGINT, feed.finish)
    serving = loop.create_task(server.serve(listener, routes))
    await feed.follow(parent)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def show(folder: Path, listener: socket.socket, parent: int | None = None) -> None:
    """Serve the records in a folder until SIGINT, SIGTERM or the end of the process `parent`."""
    asyncio.run(_work(folder, listener, parent))


def main(arguments: list[str]) -> None:
    """Serve as the process that `LivePage` starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--listener", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    given = parser.parse_args(arguments)
    os.nice(10)
    show(given.folder, socket.socket(fileno=given.listener), given.parent)


if __name__ == "__main__":
    main(sys.argv[1:])
