"""The command line of the live page: `main.py --watch DIR`."""

from __future__ import annotations

import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from dsgd.process.interruptions import Interruptions
from dsgd.process.outcomes import UsageError
from dsgd.show.live import server
from dsgd.show.terminal.usage import Parser, usage_errors

_PORT = 8000


def watch(arguments: Sequence[str], _: Interruptions) -> int:
    """Serve the records in a folder as a page, until ctrl-C.

    Raises UsageError in one line for anything that is wrong.
    """
    parser = Parser(
        "--watch",
        "Show runs in a browser, those that go on and those that have ended: a folder of runs, an "
        "experiment's folder, or one run. ctrl-C ends it.",
    )
    parser.add_argument("--watch", metavar="DIR", required=True, help="the folder, like runs")
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=int,
        help=f"of 127.0.0.1; 0 takes any (default: {_PORT}, or any if that is taken)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser of this machine")
    given = parser.parse(arguments)
    folder = Path(given.watch)
    if not folder.is_dir():
        raise UsageError(f"--watch {folder}: is not a folder; give a run, or a folder of runs, like runs")
    with usage_errors():
        listener = _listener(given.port)
    from dsgd.show.live.page import show

    url = server.url_of(listener)
    print(f"live    {url}", flush=True)
    if given.open:
        webbrowser.open(url)
    show(folder, listener)
    return 0


def _listener(port: int | None) -> socket.socket:
    """Return a socket at a port; without one at the usual port, or another if that is taken.

    Raises ValueError if the port is not available.
    """
    if port is not None:
        if not 0 <= port < 65536:
            raise ValueError(f"--port {port}: must be a port, 0 to 65535")
        return server.listen("--port", "127.0.0.1", port)
    try:
        return server.listen("--port", "127.0.0.1", _PORT)
    except ValueError:
        return server.listen("--port", "127.0.0.1", 0)
